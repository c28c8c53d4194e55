"""The messages in Python sources of torch: what is raised, warned of, or logged as a warning or an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

LOGGED = {"warning", "warn", "error", "exception", "critical", "warning_once"}
PERCENT = re.compile(r"%(?:\(\w+\))?[-+ #0]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa]")


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """What the file can print: its kind (an exception's name, ``warning``, ``log``) and text, holes as ``{}``."""
    tree = ast.parse(path.read_text())
    names = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and _text(node.value, {}) not in ("{}", "")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            kind, call = _name(node.exc.func), node.exc
        elif isinstance(node, ast.Call) and (name := _name(node.func)) in LOGGED | {"_log_and_throw", "throw_error"}:
            owner = _name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if name in LOGGED and owner not in ("warnings", "log", "logger", "logging", "_logger", "dist_logger"):
                continue
            kind, call = ("warning" if owner == "warnings" else "RuntimeError" if "throw" in name else "log"), node
        else:
            continue
        arguments = [one for one in call.args if not (isinstance(one, ast.Name) and one.id.endswith("Error"))]
        if arguments and (text := _text(arguments[0], names)):
            text = re.sub(r"(\{\})+", "{}", PERCENT.sub("{}", text))
            yield kind, "\n".join(" ".join(line.split()) for line in text.strip().split("\n"))


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST, names: dict[str, ast.expr]) -> str:
    """The text of an expression, with ``{}`` for what only a run knows."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "{}"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one, names) for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _text(node.left, names)
    if isinstance(node, ast.Call) and _name(node.func) in ("format", "dedent", "join"):
        inner = node.func.value if _name(node.func) == "format" and isinstance(node.func, ast.Attribute) else None
        text = _text(inner, names) if inner is not None else _text(node.args[0], names) if node.args else "{}"
        return re.sub(r"\{[^{}\n]{0,30}\}", "{}", text)
    if isinstance(node, ast.Name) and node.id in names:
        return _text(names[node.id], {})
    return "{}"
