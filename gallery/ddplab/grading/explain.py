"""Explain why a check did not finish: what each rank called, raised, or was doing when it was stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from ..runtime.launcher import LaunchError
from .calls import Call, Recorder, first_difference, has_messages, read_log
from .checks import Check, Wrong, first_line
from .exercises import Source

SAME_CALLS = "Every rank must make the same collective calls, in the same order and with the same sizes."
# What gloo or the launcher reports about a rank whose peer is gone or calls something else.
_LOST_PEER = re.compile(r"SIGABRT|EnforceNotMet|enforce fail|Connection (?:closed|reset)|Broken pipe")
_RECORDER = "internals-flight-recorder"

_ONCE = "A context made by `@contextmanager` works once; each `with` needs a new call."
_MAIN = "Code that should run only when you start the file yourself belongs under `if __name__ == '__main__':`."
# What Python or torch reports when a familiar line is missing, and which line that is.
_HINTS = {
    "SystemExit": f"A rank must stay until the last collective. {_MAIN}",
    "[Errno 27] File too large": "It prints forever; a rank may print 16 MiB.",
    "context manager protocol": "`@contextmanager` and a `yield` turn a method into a context manager.",
    "'_GeneratorContextManager' object has no attribute 'args'": _ONCE,
    "generator didn't yield": _ONCE,
    "is not an iterator": "A function under `@contextmanager` must `yield` once.",
    "leaf Variable that requires grad": "Gradients are in `.grad`; change weights only under `torch.no_grad()`.",
    "has no attribute 'wait'": "`all_reduce` returns something to wait for only with `async_op=True`.",
    "object has no attribute 'module'": "Keep the wrapped module in `self.module`, as the starter does.",
    "initialize the default process group twice": "The ranks have a process group when your file is loaded.",
}


def note_raised(error: BaseException, source: Source, path: Path) -> None:
    """In the rank: save what ``error`` says, and which line of the learner raised it, for :func:`explain`."""
    if isinstance(error, Wrong):
        path.write_text(json.dumps({"wrong": error.message, "read": error.read}))
        return
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(source.path)]
    try:
        text = f"{type(error).__name__}: {first_line(error)}".strip().rstrip(":")
    except Exception:  # the learner's own exception, whose `__str__` fails
        text = type(error).__name__
    where = unwritten = ""
    if frames:
        last = frames[-1]
        where = f" at {_place(last.lineno, last.name, source)}: `{last.line}`"
        if isinstance(error, NotImplementedError):
            unwritten = f"`{last.name}` ({source.path.name}:{last.lineno})"
    path.write_text(json.dumps({"text": text, "where": where, "unwritten": unwritten}))


@contextlib.contextmanager
def end_when_out_of_step(recorder: Recorder, folder: Path, rank: int, source: Source) -> Iterator[None]:
    """In the rank: end the process once the logs of all ranks show that it can never finish.

    That is so when two ranks made different calls, or when another rank is done and made fewer calls than this one.
    gloo would abort, or wait until the time is up.
    """
    over, main = threading.Event(), threading.get_ident()

    def watch() -> None:
        while not over.wait(0.1):
            logs, ended = _read_all(folder)
            behind = any(done and len(log) < len(recorder.calls) for log, done in zip(logs, ended, strict=True))
            if first_difference(logs) is not None or (behind and not any(map(has_messages, logs))):
                frames = traceback.extract_stack(sys._current_frames()[main])
                here = [f"at {_place(f.lineno, f.name, source)}" for f in frames if f.filename == str(source.path)]
                (folder / f"{rank}.place").write_text(here[-1] if here else "")
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _read_all(folder: Path) -> tuple[list[list[Call]], list[bool]]:
    """The calls of all ranks that have begun, in the order of the ranks, and which ranks have made all of theirs."""
    read = [read_log(log) for log in sorted(folder.glob("*.calls"), key=lambda log: int(log.stem))]
    return [calls for calls, _ in read], [ended for _, ended in read]


def _place(line: int | str | None, name: str, source: Source) -> str:
    return f"{source.path.name}:{line}, in `{name}`"


def explain(error: LaunchError, folder: Path, source: Source, check: Check, timeout_s: float) -> Wrong:
    """In the parent: find the cause in what the ranks left in ``folder`` and in the error of ``launch``."""
    logs, ended = _read_all(folder)
    if (wrong := diverged(logs, check.read)) is not None:
        return wrong  # everything else follows from it
    path = folder / f"{error.rank}.raised"
    raised = {"text": "", "where": "", "unwritten": "", **(json.loads(path.read_text()) if path.exists() else {})}
    if "wrong" in raised:
        return Wrong(raised["wrong"], raised["read"])

    hung = "still ran after" in str(error) or "Timed out" in raised["text"]
    stopped = {int(path.stem): path.read_text() for path in folder.glob("*.place")}
    at = {**_places(str(error), source), **{rank: place for rank, place in stopped.items() if place}}
    most, least = max(logs, key=len, default=[]), min(logs, key=len, default=[])
    if len(most) > len(least) and (hung or stopped or _LOST_PEER.search(f"{error} {raised['text']}")):
        ahead, behind = logs.index(most), logs.index(least)
        rest = "was done" if ended[behind] else at.get(behind, "was no longer in your code")
        return Wrong(
            f"The ranks are out of step: rank {ahead} is in call {len(most)}, {most[-1]}"
            f"{', ' + at[ahead] if ahead in at else ''}; rank {behind} made {len(least)} and {rest}. {SAME_CALLS}",
            check.read or _RECORDER,
        )
    if hung:
        where = "; ".join(f"rank {rank} {place}" for rank, place in at.items())
        hint = f" {_MAIN}" if "`<module>`" in where else ""
        return Wrong(f"It still ran after {timeout_s:g} s, and was stopped{': ' + where if where else ''}.{hint}")
    if raised["unwritten"]:
        return Wrong(
            f"Nothing to grade yet: {raised['unwritten']} is as in the starter. Replace its `raise` with your code."
        )
    if raised["text"]:
        hint = next((hint for words, hint in _HINTS.items() if words in raised["text"]), "")
        return Wrong(f"Rank {error.rank} raised {raised['text']}{raised['where']}. {hint}".rstrip())
    how = re.search(r"^rank \d+ ((?:exited with|was killed by) .*?) before", str(error), re.MULTILINE)
    return Wrong(
        f"Rank {error.rank} {how[1] if how else 'ended'} in the middle of the check. "
        "A rank must stay until the last collective, or the others wait for it forever: no `os._exit`, no crash."
    )


def diverged(logs: list[list[Call]], read: str) -> Wrong | None:
    """Return the first call that two ranks made differently, if there is one; ``read`` is the check's own section."""
    index = first_difference(logs)
    if index is None:
        return None
    calls = [f"rank {rank} calls {log[index]}" for rank, log in enumerate(logs) if index < len(log)]
    return Wrong(f"The ranks diverge at call {index + 1}: {', '.join(calls)}. {SAME_CALLS}", read or _RECORDER)


def _places(text: str, source: Source) -> dict[int, str]:
    """Which line of the learner's file each rank that hangs was in."""
    at = {}
    for rank, stack in re.findall(r"^--- rank (\d+) hangs here ---\n((?:(?!--- rank).*\n?)*)", text, re.MULTILINE):
        frame = re.search(rf'File "{re.escape(str(source.path))}", line (\d+) in (\S+)', stack)
        if frame:
            at[int(rank)] = f"at {_place(frame[1], frame[2], source)}"
    return at
