"""What can be taken out of a lab: what it printed, code of its script, and what it ran on."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

from sphinx.util import parselinenos

from ddplab.recording.machine import processor
from ddplab.recording.words import statement_source

from ..problems import suggestion


class EmbedError(ValueError):
    """A piece cannot be shown; the message says why and what there is instead."""


def stamp_text(evidence: dict[str, Any]) -> str:
    """What a lab ran on: ``2 ranks · gloo · AMD EPYC, 2 cores · torch 2.13.0 · 2026-11-21``.

    Evidence of another edition than the one that is rendered says so.
    """
    if not evidence["date"]:
        return "not run yet"
    launches, machine = evidence["launches"], evidence["machine"]
    gpus = sorted({f"{launch['gpus']} × {launch['gpu']}" for launch in launches if launch.get("gpu")})
    versions = {
        f"{name} {str(launch[key]).partition('+')[0]}"
        for launch in launches
        for name, key in (("torch", "torch"), ("NCCL", "nccl"))
        if launch.get(key) and (key != "nccl" or launch["backend"] == "nccl")
    }
    parts = [
        launches_text(launches),
        " and ".join(gpus) or processor(machine),
        " · ".join(sorted(versions, key=str.lower, reverse=True)),
        evidence["date"][:10],
        f"from the edition {evidence['edition']}" if evidence.get("borrowed") else "",
        "stale: the code changed since" if evidence["stale"] else "",
    ]
    return " · ".join(filter(None, parts))


def runs_nothing(script: Path) -> str:
    """What a lab shows that runs no rank and measures no time, as its comment ``# runs nothing: …`` says; or empty."""
    said = re.search(r"^# runs nothing: (.+)", script.read_text(encoding="utf-8"), re.MULTILINE)
    return said[1].strip() if said else ""


def launches_text(launches: list[dict[str, Any]]) -> str:
    """Ranks and backends of some launches: ``2 and 3 ranks · gloo``; empty if there was no launch."""
    backends = " and ".join(sorted({launch["backend"] for launch in launches}))
    return f"{counts_text(launches)} · {backends}" if launches else ""


def counts_text(launches: list[dict[str, Any]]) -> str:
    """How many ranks some launches had, at least one: ``2 and 3 ranks``.

    Ranks that had to share a GPU under NCCL say so: ``2 ranks sharing one GPU``, or ``1 and 2 ranks, of which 2
    sharing one GPU``.
    """
    shared = [launch for launch in launches if launch.get("shared")]
    said = _counts(launches)
    if shared:
        only = len(shared) == len(launches)
        gpus = max(launch["gpus"] for launch in shared)
        said += "" if only else f", of which {_counts(shared).partition(' rank')[0]}"
        said += f" sharing {'one GPU' if gpus == 1 else f'{gpus} GPUs'}"
    return said


def _counts(launches: list[dict[str, Any]]) -> str:
    counts = [str(count) for count in sorted({launch["ranks"] for launch in launches})]
    listed = " and ".join(filter(None, [", ".join(counts[:-1]), *counts[-1:]]))
    return f"{listed} rank{'s' * (counts != ['1'])}"


def function_source(script: str, name: str, source: str) -> str:
    """The source of a function or class of a script, with its decorators.

    Raises:
        EmbedError: the script has none of that name, or does not parse.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise EmbedError(f"{script}:{error.lineno}: {error.msg}") from error
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if name not in defined:
        raise EmbedError(f"{script} does not define {name!r}{suggestion(name, defined)}")
    return statement_source(defined[name], source)


def between(script: str, source: str, after: str | None, before: str | None) -> str:
    """The lines of a script below the first that contains ``after`` and above the next that contains ``before``.

    Raises:
        EmbedError: a marker is in no line, or nothing is between them.
    """
    lines = source.splitlines()
    start = 0 if after is None else _line_with(script, after, lines, 0) + 1
    end = len(lines) if before is None else _line_with(script, before, lines, start)
    text = textwrap.dedent("\n".join(lines[start:end])).strip("\n")
    if not text:
        raise EmbedError(f"{script} has nothing between {after!r} and {before!r}")
    return text


def _line_with(script: str, marker: str, lines: list[str], start: int) -> int:
    for number in range(start, len(lines)):
        if marker in lines[number]:
            return number
    raise EmbedError(f"{script} has no line with {marker!r}" + (f" below line {start}" if start else ""))


def some_lines(asked: str, text: str) -> str:
    """The lines of a text that ``asked`` names, such as ``1-3,7``.

    Raises:
        EmbedError: it cannot be read, or a line is not there.
    """
    lines = text.splitlines()
    try:
        numbers = parselinenos(asked, len(lines))
    except ValueError as error:
        raise EmbedError(f":lines: {asked} is not a list of lines; write it like 1-3,7") from error
    if not numbers or max(numbers) >= len(lines):
        raise EmbedError(f":lines: {asked} is outside the block; its last line is {len(lines)}")
    return "\n".join(lines[number] for number in numbers)
