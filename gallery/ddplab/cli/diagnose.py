"""``ddplab diagnose [LOG…]``: what went wrong, from what the ranks printed."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..diagnose import Answer, Diagnosis, Engine, EntryError, Evidence, entries
from ..diagnose.answers import shortened
from ..diagnose.reading import log_files, ranks_of, read_text
from ..diagnose.tables import limits
from ..errors import BadInput
from ..wording import ranks_text
from .handbook import address
from .interrupted import UntilInterrupted
from .terminal import Terminal

EXAMPLE = """\
examples:
  ddplab diagnose train.log             one log of all ranks, plain or .gz
  torchrun … 2>&1 | ddplab diagnose     what a command prints
  ddplab diagnose logs/                 a folder, such as that of torchrun --log-dir
  ddplab diagnose rank*.log             a file per rank
  ddplab diagnose --dump dumps/         the flight recorder's dumps of a hang

exit code: 0 something was diagnosed, 1 the log shows no error, 2 the input cannot be used
"""
_ADVICE_LINES = 12  # of a fix, in the text for people; all of it is on the page and in --json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "logs", metavar="LOG", nargs="*", help="log files or folders of them; without one, or as -, standard input"
    )
    parser.add_argument("--dump", metavar="DIR", type=Path, help="read the flight recorder's dumps in DIR instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--top", type=_count, default=3, metavar="N", help="how many diagnoses to show at most (default: 3)"
    )
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count from 1 on")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.dump is not None:
        if arguments.logs:
            raise BadInput("--dump reads dumps, not logs; give one or the other")
        from .flight import report_dumps

        return int(report_dumps(arguments.dump, arguments.json))
    try:
        engine = Engine(entries())
    except EntryError as error:
        raise BadInput(str(error)) from None
    read = _read(arguments.logs, engine)
    answer = engine.answer()
    more = max(len(answer.diagnoses) - arguments.top, 0)
    del answer.diagnoses[arguments.top :]
    if arguments.json:
        said: dict[str, Any] = {"read": read, **asdict(answer), "more": more}
        for one in said["diagnoses"]:
            one["address"] = address(one["page"])
        print(json.dumps(said, indent=2))  # in ASCII: the text of a log must not control the terminal here, either
    elif answer.nothing:
        characters = sum(one["characters"] for one in read)
        print(_wrapped(f"{plain(answer.nothing.title)} ({characters:,} characters read).", ""))
        print(_wrapped(plain(answer.nothing.text), ""))
        print("What to do next:")
        for line in answer.nothing.collect:
            print(_wrapped(line, "  - ", "    "))
        if answer.diagnoses:
            print("Notices in it, which explain no failure:")
        for one in answer.diagnoses:
            print(_wrapped(f"{inert(plain(one.title))} ({one.id}, line {one.evidence[0].line_number})", "  - ", "    "))
    else:
        print(_text(answer, more))
    return 1 if answer.nothing else 0


def _read(given: list[str], engine: Engine) -> list[dict[str, Any]]:
    """Feed all logs to the engine; how much was read of each.

    Raises:
        BadInput: a log cannot be read.
    """
    if given.count("-") > 1 or ("-" in given and len(given) > 1):
        raise BadInput("- stands for standard input and must be the only LOG")
    if given in ([], ["-"]):
        if sys.stdin is None or (not given and sys.stdin.isatty()):
            raise BadInput("no log given; name a file, or pipe one in: torchrun … 2>&1 | ddplab diagnose")
        engine.start("")
        with UntilInterrupted() as pieces:
            return [{"log": "-", "characters": _feed(engine, pieces(read_text(_standard_input(), "standard input")))}]
    if "" in given:
        raise BadInput("an empty name is no LOG; give a file, a folder, or - for standard input")
    files = log_files([Path(one) for one in given])
    folders = any(Path(one).is_dir() for one in given)
    read = []
    refused = "; give the folder that torchrun --log-dir made"
    for path, rank in zip(files, ranks_of([str(path) for path in files]), strict=True):
        engine.start(str(path), rank)
        try:
            with path.open("rb") as stream:
                read.append({"log": str(path), "characters": _feed(engine, read_text(stream, str(path)))})
        except BadInput as problem:
            if not folders:
                raise
            refused = f"; {problem}"
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}; fix its permissions, or copy it") from None
    if not read:
        raise BadInput(f"{', '.join(given)} holds no text log{refused}")
    return read


def _standard_input() -> BufferedReader:
    buffer: Any = sys.stdin.buffer
    return buffer if isinstance(buffer, BufferedReader) else BufferedReader(buffer)


def _feed(engine: Engine, pieces: Iterator[str]) -> int:
    characters = 0
    for piece in pieces:
        characters += len(piece)
        engine.feed(piece)
    return characters


# -- text ---------------------------------------------------------------------------------------------

_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def inert(text: str) -> str:
    """Text from a log that cannot drive a terminal: what is not plain to see is written as an escape."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text.replace("\t", "    "))


def _width() -> int:
    return min(shutil.get_terminal_size((96, 24)).columns, 110)


def _wrapped(text: str, first: str = "  ", rest: str = "  ") -> str:
    lines = []
    fenced = False
    for line in text.splitlines():
        if line.strip().startswith("```"):
            fenced = not fenced
        elif fenced:
            lines.append(f"{rest}    {line}")
        else:
            lines += textwrap.wrap(
                line, _width(), initial_indent=first, subsequent_indent=rest, break_long_words=False
            ) or [""]
            first = rest
    return "\n".join(lines)


_EMPHASIS = re.compile(r"(`[^`]*`)|(?<!\w)\*\*?([^*\s](?:[^*]*[^*\s])?)\*\*?(?!\w)")  # a star in code is a star


def plain(markdown: str) -> str:
    """Markdown for a terminal: links, roles and emphasis become their text."""
    text = re.sub(r"\{[a-z:-]+\}`([^`<]*?)\s*(?:<[^`>]*>)?`", r"\1", markdown)
    text = re.sub(r"\[([^\]]+)\]\((https?://[^)\s]+)\)", r"\1 (\2)", text)
    return _EMPHASIS.sub(lambda found: found[1] or found[2], text)


def _text(answer: Answer, more: int) -> str:
    terminal = Terminal()
    blocks = []
    for place, one in enumerate(answer.diagnoses, start=1):
        title = inert(plain(one.title))
        lines = [terminal.strong(f"{place}. {title}"), f"   {one.id}" + _ranks(one)]
        lines += [_evidence(evidence) for evidence in one.evidence]
        if place == 1:
            lines += ["", _wrapped(inert(plain(one.why)))]
            if answer.suspect:
                lines.append(_wrapped(inert(plain(f"Suspect: rank {answer.suspect.rank}: {answer.suspect.why}."))))
        lines += _labeled("Cause", one.cause, place) + _labeled("Fix", one.fix, place)
        if place == 1 and one.collect:
            lines += _labeled("To be sure", one.collect, place)
        if one.followed:
            lines += ["", "  What followed from it:"]
            for other in one.followed[:4]:
                who = "" if other.evidence.rank is None else f", first on rank {other.evidence.rank}"
                text = f"{inert(plain(other.title))} ({other.count}×{who}, line {other.evidence.line_number})"
                lines.append(_wrapped(text, "    - ", "      "))
            if len(one.followed) > 4:
                lines.append(f"    - and {len(one.followed) - 4} more")
        if where := address(one.page):
            lines.append(f"  Handbook: {where}")
        blocks.append("\n".join(lines))
    if more:
        blocks.append(f"{more} more: ddplab diagnose --top {len(answer.diagnoses) + more}")
    return "\n\n".join(blocks)


def _ranks(one: Diagnosis) -> str:
    if len(one.ranks) > 1:
        return f", {ranks_text(one.ranks, limits.runs_shown)}, first rank {one.rank}"
    return "" if one.rank is None else f", rank {one.rank}"


def _evidence(one: Evidence) -> str:
    where = f"line {one.line_number}" if not one.source else f"{inert(one.source)}:{one.line_number}"
    who = "" if one.rank is None else f" rank {one.rank}"
    return f"   │ {where}{who}: {shortened(inert(one.text), 240)}"


def _labeled(label: str, markdown: str, place: int) -> list[str]:
    advice = inert_lines(plain(markdown)).strip()
    text = _wrapped(f"{label}:{chr(10) if advice.startswith('```') else ' '}{advice}").splitlines()
    most = _ADVICE_LINES if place == 1 else 3
    if len(text) > most:
        text = [*text[: most - 1], "    …"]
    return ["", *text] if place == 1 else text


def inert_lines(text: str) -> str:
    """Like :func:`inert`, for text of several lines."""
    return "\n".join(inert(line) for line in text.splitlines())
