"""Python source without its words: a key does not change with comments, docstrings and blank lines."""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from pathlib import Path


def code_of(text: str, path: Path | str = "?") -> str:
    """Python source without comments, docstrings, and blank lines outside of strings.

    Cut out of the text, not printed from the tree, so that every Python gives the same.
    """
    return "\n".join(line for line in code_lines(text, parse(text, path)) if line is not None)


def code_lines(text: str, tree: ast.Module) -> list[str | None]:
    """Each line of a source as :func:`code_of` leaves it; None for one that goes."""
    lines, literal = text.split("\n"), set[int]()
    in_string = set[int]()  # rows whose end is inside of a string
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            literal.add(id(node))
            in_string.update(range(node.lineno, node.end_lineno or node.lineno))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and scope.body:
            first = scope.body[0]
            if isinstance(first, ast.Expr) and id(first.value) in literal and _alone(first, lines):
                for row in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                    lines[row - 1] = ""
                    in_string.discard(row)
    kept = [line if row in in_string else line.rstrip() for row, line in enumerate(lines, 1)]
    return [line if line or row in in_string else None for row, line in enumerate(kept, 1)]


def _alone(node: ast.Expr, lines: list[str]) -> bool:
    """Whether nothing else stands on the lines of a docstring."""
    before = lines[node.lineno - 1].encode()[: node.col_offset]
    after = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset :]
    return not before.strip() and not after.strip()


def parse(text: str, path: Path | str) -> ast.Module:
    """The tree of a source.

    Raises:
        ValueError: it is not Python; the message names file and line.
    """
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: {error.msg}") from error


def first_line(node: ast.stmt) -> int:
    """The number of a statement's first line, which may be that of a decorator."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def statement_source(node: ast.stmt, source: str) -> str:
    """The source of a statement, with its decorators: `ast.get_source_segment` leaves them out."""
    return textwrap.dedent("\n".join(source.splitlines()[first_line(node) - 1 : node.end_lineno]))
