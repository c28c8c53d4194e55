"""Record an edition: run the labs, then the tests of the claims, and keep what came out.

    python -m ddplab.recording h200                       everything that is not recorded yet on this machine
    python -m ddplab.recording h200 --budget 540          as much as fits into 540 seconds; run it again to continue
    python -m ddplab.recording h200 --plan                what is left, in which order, and how long it may take
    python -m ddplab.recording here --labs bucket-xray --into _build/editions
    python -m ddplab.recording h200 --claims nccl         those that a run on NCCL would tell more of
    python -m ddplab.recording h200 --labs timed          those that measure time

A lab or a claim that fails, hangs or crashes is recorded as failed, and the next one runs. What is recorded of this
code, this torch and these GPUs is not run again, unless it failed, or measures time and ran on another processor. With
DDPLAB_SHARE_GPU=1 ranks share a GPU under NCCL where there are too few, but in what reads a clock. Neither git nor make
is needed: DDPLAB_COMMIT names the commit.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ..runtime import shared_gpu
from ..runtime.ranks import LAUNCH_LIMIT
from . import plan, reach
from .claims import about_nccl
from .edition_folder import DamagedError, Edition
from .items import Item, labs_of, proofs_of, tests_of
from .keys import names_a_clock
from .machine import grouped, hardware, is_good_for, machine, processor
from .reach import KIT
from .recorder import Recorder
from .script import lab_id

ROOT = KIT.parents[1]
UNFINISHED = 3  # exit status: the budget is used up, and something is left
LAB_LIMIT_S, TEST_LIMIT_S = 300.0, 180.0  # what takes longer hangs; the longest on two cores take 31 s and 15 s
NEEDED = ("torch", "numpy", "cloudpickle", "matplotlib", "pytest", "psutil")


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and record; return the exit status."""
    began_s = time.monotonic()
    options = _parse(arguments)
    edition = Edition(options.into / options.name)
    scripts = options.scripts

    @functools.cache
    def timed(lab: str) -> bool:
        return lab in scripts and names_a_clock(scripts[lab])

    try:
        here, more = machine(), hardware()
        at_once = plan.at_once(more)
        times = plan.Times.known(edition, here)
        if options.whole and not options.plan:
            edition.drop_all_but(scripts, (ROOT / "tests" / "claims").glob("test_*.py"))
        labs = plan.in_order({name: scripts[name] for name in options.labs}, times.on_cpu)
        with reach.unchanged():
            todo = [name for name in labs if options.fresh or not Item(labs[name]).is_recorded(edition, here)]
            if options.under_nccl:
                todo = [name for name in todo if name not in times.on_cpu]
        margin_s = min(20.0, options.budget / 10)  # to end what runs, and to write
        deadline_s = began_s + options.budget - margin_s
        limit_s = [min(options.limit or most, options.budget * 0.8) for most in (LAB_LIMIT_S, TEST_LIMIT_S)]
        asked = () if options.claims == [] else tests_of(ROOT)  # not read where none is wanted
        with reach.unchanged():
            tests = [test for test in asked if options.claims is None or {*test.claims} & {*options.claims}]
            tests = [test for test in tests if options.fresh or not test.is_recorded(edition, here)]
            if options.under_nccl:
                tests = [test for test in tests if test.id not in times.on_cpu]
        print(_outlook(todo, len(labs), tests, at_once, times, here), flush=True)
        if beside := _measured_elsewhere(edition, todo, here, timed):
            print(beside, file=sys.stderr)
        if options.plan:
            seconds = {name: times.lab(name) for name in todo} | {test.id: times.test(test.id) for test in tests}
            print("\n".join(f"{took:6.0f} s  {name}" for name, took in seconds.items()))
            return 0
        recorder = Recorder(ROOT, edition, times, deadline_s, _say)
        try:
            failed, labs_left = recorder.record([Item(labs[name]) for name in todo], limit_s[0])
        finally:  # also of a part: it can be rendered and carried
            problems = edition.write_manifest(more, timed)
        tests_left = len(tests)
        if tests and not labs_left:
            try:
                claims_failed, tests_left = recorder.record(tests, limit_s[1], at_once)
            finally:
                problems = edition.write_manifest(more, timed)
            failed += claims_failed
    except (DamagedError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for name in failed:
        print(f"{name} failed; the edition records why", file=sys.stderr)
    for problem in problems:
        print(f"the edition is inconsistent: {problem}", file=sys.stderr)
    if labs_left or tests_left:
        left = f"{_count(labs_left, 'lab')} and {_count(tests_left, 'test')} of claims left"
        none_ran = tests and tests_left == len(tests) and not labs_left
        if options.budget == float("inf") or (none_ran and time.monotonic() < deadline_s - margin_s):
            print(f"{left}: what stands above says why", file=sys.stderr)
            return 1
        print(f"the budget is used up; {left}: run the same command again", file=sys.stderr)
        for name in todo:
            if times.lab(name) > options.budget - margin_s:
                more_than = f"more than a budget of {options.budget:g} s"
                print(f"{name} takes about {times.lab(name):.0f} s, {more_than}: give a larger budget", file=sys.stderr)
        return UNFINISHED
    if todo or tests:
        missing = {name: kept["needs"] for name in todo if (kept := edition.lab(name)) and kept.get("needs")}
        for name, lack in missing.items():
            print(f"{name} is not shown here: {lack}")
        counts = f"{len(failed)} failed, {len(missing)} not shown here"
        print(f"recorded in {edition.folder}: {_count(len(todo), 'lab')} and {_count(len(tests), 'test')}, {counts}")
    return 1 if failed or problems else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ddplab.recording", description="Record an edition of the book.")
    parser.add_argument("name", help="of the edition: small letters, digits and hyphens")
    parser.add_argument("--labs", nargs="+", metavar="ID", help="these labs, or timed; claims only if named, too")
    parser.add_argument("--claims", nargs="+", metavar="ID", help="these claims, or nccl for all that NCCL may change")
    parser.add_argument("--no-claims", action="store_true", help="labs only")
    parser.add_argument("--fresh", action="store_true", help="run also what is recorded already")
    parser.add_argument("--plan", action="store_true", help="print what is left and how long it may take; run nothing")
    parser.add_argument("--budget", type=float, metavar="S", help="stop cleanly before S seconds are over")
    parser.add_argument("--limit", type=float, metavar="S", help="seconds after which a lab or a test has failed")
    parser.add_argument("--launch-limit", type=float, metavar="S", help="seconds after which ranks have")
    parser.add_argument("--into", type=Path, default=ROOT / "gallery" / "editions", help="folder of the editions")
    options = parser.parse_args(arguments)

    def refuse(what: str) -> NoReturn:
        parser.exit(2, f"{parser.prog}: {what}\n")

    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", options.name):
        refuse(f"edition name {options.name!r}: use small letters, digits and hyphens")
    for name in ("budget", "limit", "launch_limit"):
        if (given := getattr(options, name)) is not None and not given > 0:
            refuse(f"--{name.replace('_', '-')} {given:g}: give a positive number of seconds")
    options.budget = options.budget or float("inf")
    if options.launch_limit:
        os.environ[LAUNCH_LIMIT] = str(options.launch_limit)
    options.scripts = {lab_id(lab.path): lab.path for lab in labs_of(ROOT)}
    options.whole = not (options.labs or options.claims)
    if options.labs == ["timed"]:
        options.labs = [name for name, script in options.scripts.items() if names_a_clock(script)]
    options.under_nccl = options.claims == ["nccl"]
    if options.claims and options.no_claims:
        refuse("--claims and --no-claims: give one of them")
    try:
        shared_gpu.is_asked()
        proofs = {claim: item for item in proofs_of(ROOT) for claim in item.claims} if options.claims else {}
        if "nccl" in (options.claims or ()):
            options.claims = [name for name in options.claims if name != "nccl"] + sorted(
                about_nccl(ROOT) & proofs.keys()
            )
    except ValueError as error:
        refuse(str(error))
    for kind, asked, known in (("lab", options.labs, options.scripts), ("claim", options.claims, proofs)):
        if unknown := [name for name in asked or () if name not in known]:
            refuse(f"there is no {kind} {', '.join(map(repr, unknown))}; see {_WHERE[kind]}")
    if options.no_claims or (options.labs and not options.claims):
        options.claims = []
    options.labs = list(options.scripts) if options.whole else options.labs or []
    by_lab = [lab_id(proofs[claim].path) for claim in options.claims or () if not proofs[claim].name]
    options.labs += [lab for lab in dict.fromkeys(by_lab) if lab not in options.labs]
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        refuse(f"modules are missing; install them with: {sys.executable} -m pip install {' '.join(missing)}")
    return options


_WHERE = {"lab": "gallery/", "claim": "the claims page, or tests/claims/"}


def _outlook(
    todo: list[str], labs: int, tests: list[Item], at_once: int, times: plan.Times, here: dict[str, Any]
) -> str:
    """What is left, and an estimate of how long it takes."""
    seconds = sum(map(times.lab, todo)) + plan.seconds_of(tests, times, at_once)
    takes = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    on = " + ".join(here["gpus"]) or f"{here['cpu']}, no GPU"
    left = f"{len(todo)} of {_count(labs, 'lab')} and {_count(len(tests), 'test')} of claims to record on {on}"
    if not todo and not tests:
        return left
    source = f"from the seconds of {', '.join(times.sources)}" if times.sources else "of labs that no edition has"
    cuda = f", and {plan.CUDA_START_S:g} s of CUDA start for each launch recorded without a GPU" if here["gpus"] else ""
    return f"{left}; estimate: {takes} ({source}{cuda}; claims {at_once} at a time)"


def _measured_elsewhere(edition: Edition, todo: list[str], here: dict[str, Any], timed: Callable[[str], bool]) -> str:
    """What it means that labs which measure time will be of two processors, and what to do; empty if they will not."""
    kept = {name: lab for name, lab in edition.labs().items() if name not in todo}
    groups = grouped({name: lab for name, lab in kept.items() if not is_good_for(lab["machine"], here, lambda: True)})
    there = {name for _, names in groups for name in names if timed(name)}
    new = [name for name in todo if timed(name)] if there else []
    if not new:
        return ""
    return (
        f"{', '.join(new)}: what measures time is comparable on one processor only; here it is {processor(here)}, and "
        f"{_count(len(there), 'lab')} of {edition.name} measured on {processor(groups[0][0])}. Keep these for a look; "
        f"to land them, record all labs that measure time here: make edition NAME={edition.name} LABS=timed, or record "
        "an edition of your own under another NAME"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _say(line: str) -> None:
    print(line, flush=True)


# -- as a program -----------------------------------------------------------------------------------


def _program() -> int:
    """Record, and on Ctrl-C, SIGTERM or a lost terminal leave no process and nothing half-written."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stopped)
    if sys.platform == "linux":  # what a lab's process leaves when it crashes becomes ours, so that it can be ended
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
    try:
        return main()
    except KeyboardInterrupt:
        print("stopped; what is recorded is kept; run the same command to continue", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        _end_what_is_left()


def _stopped(number: int, _: object) -> None:
    raise KeyboardInterrupt


def _end_what_is_left() -> None:
    try:
        import psutil
    except ImportError:  # main has reported that; nothing was started
        return
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    sys.exit(_program())
