"""Record an edition: run the labs, then the tests of the claims, and keep what came out.

    python -m ddplab.recording h200                       everything that is not recorded yet on this machine
    python -m ddplab.recording h200 --budget 540          as much as fits into 540 seconds; call it again to go on
    python -m ddplab.recording here --labs bucket-xray --no-claims --into _build/editions

A lab or a claim that fails is recorded as failed, and the next one runs. What is recorded of this machine, this torch
and this code is not run again, unless it failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import evidence
from .edition import DamagedError, Edition
from .keys import KIT, block_key, lab_key
from .machine import machine, same_machine
from .script import code_blocks, lab_id, run, small_svg

ROOT = KIT.parents[1]
UNFINISHED = 3  # exit status: the budget is used up, and something is left


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and record; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ddplab.recording", description="Record an edition of the book.")
    parser.add_argument("name", help="of the edition: small letters, digits and hyphens")
    parser.add_argument("--labs", nargs="+", metavar="ID", help="only these labs")
    parser.add_argument("--no-claims", action="store_true", help="labs only")
    parser.add_argument("--fresh", action="store_true", help="run also what is recorded already")
    parser.add_argument("--budget", type=float, metavar="S", help="stop cleanly before S seconds are over")
    parser.add_argument("--into", type=Path, default=ROOT / "gallery" / "editions", help="folder of the editions")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", options.name):
        parser.error(f"edition name {options.name!r}: use small letters, digits and hyphens")
    if options.budget is not None and not options.budget > 0:
        parser.error(f"--budget {options.budget:g}: give a positive number of seconds")
    labs = {lab_id(script): script for script in sorted((ROOT / "gallery").glob("*/plot_*.py"))}
    unknown = [name for name in options.labs or () if name not in labs]
    if unknown:
        parser.error(f"there is no lab {', '.join(map(repr, unknown))}")
    edition, deadline = Edition(options.into / options.name), time.monotonic() + (options.budget or float("inf"))
    chosen = {name: labs[name] for name in labs if name in (options.labs or labs)}
    try:
        if not options.labs:
            tests = (ROOT / "tests" / "claims").glob("test_*.py")
            edition.drop_all_but(labs, tests)
        failed, left = record_labs(edition, chosen, fresh=options.fresh, deadline=deadline)
        problems = edition.write_manifest()
    except (DamagedError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    status = 0
    if not options.no_claims and not left:
        status = record_claims(edition, fresh=options.fresh, deadline=deadline)
    for name in failed:
        print(f"{name} failed; the edition says so: {edition.lab_file(name)}", file=sys.stderr)
    for problem in problems:
        print(f"the edition does not fit together: {problem}", file=sys.stderr)
    if left or status == UNFINISHED:
        print(f"the budget is used up; {left or 'claims'} left: call the same command again", file=sys.stderr)
        return UNFINISHED
    return 1 if failed or problems or status else 0


# -- labs -------------------------------------------------------------------------------------------


def record_labs(edition: Edition, labs: dict[str, Path], *, fresh: bool, deadline: float) -> tuple[list[str], int]:
    """Run the labs that are not recorded; return which failed, and how many are left when the time is up."""
    here = machine()
    todo = [name for name, script in labs.items() if fresh or not _is_recorded(edition, name, script, here)]
    failed: list[str] = []
    for place, name in enumerate(_progress(todo)):
        if time.monotonic() + _expected_s(edition, name) > deadline:
            return failed, len(todo) - place
        kept, figures = record_lab(name, labs[name])
        edition.write_lab(name, kept, figures)
        if kept.get("failed"):
            failed.append(name)
    return failed, 0


def record_lab(name: str, script: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Run one lab; return its evidence, and its figures by file name."""
    figures: dict[str, str] = {}

    def save(figure: Any, number: int) -> str:
        from io import StringIO

        drawn = StringIO()
        figure.savefig(drawn, format="svg")
        figures[f"{name}-{number}.svg"] = small_svg(drawn.getvalue())
        return f"{name}-{number}.svg"

    blocks = code_blocks(script.read_text(encoding="utf-8"))
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")  # noqa: UP017  also 3.10
    with tempfile.TemporaryDirectory() as folder:
        evidence.begin(Path(folder) / "evidence.json")
        began_s = time.monotonic()
        try:
            outcome = run(script, save)
        finally:
            kept = evidence.end()
    kept |= {
        "key": lab_key(script, kept["read"]),
        "date": date,
        "seconds": round(time.monotonic() - began_s, 1),
        "machine": machine(),
        "blocks": [
            {"code": block_key(block.code), **shown} for block, shown in zip(blocks, outcome.blocks, strict=False)
        ],
    }
    kept |= {name: text for name in ("failed", "needs") if (text := getattr(outcome, name))}
    return kept, figures


def _is_recorded(edition: Edition, name: str, script: Path, here: dict[str, Any]) -> bool:
    kept = edition.lab(name)
    if kept is None or kept.get("failed"):
        return False
    return bool(same_machine(kept["machine"], here) and kept["key"] == lab_key(script, kept["read"]))


def _expected_s(edition: Edition, name: str) -> float:
    """How long a lab took when it was last recorded, here or in another edition; half a minute if never."""
    others = (Edition(path.parent) for path in sorted(edition.folder.parent.glob("*/manifest.json")))
    times = [kept["seconds"] for one in (edition, *others) if (kept := one.lab(name))]
    return float(times[0]) if times else 30.0


def _progress(todo: list[str]) -> Any:
    """The names, with a bar where there is a terminal and tqdm, else a line each."""
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            bar = tqdm(todo, unit="lab")
            return (bar.set_description(name) or name for name in bar)
    return (print(f"[{place}/{len(todo)}] {name}", flush=True) or name for place, name in enumerate(todo, 1))


# -- claims -----------------------------------------------------------------------------------------


def record_claims(edition: Edition, *, fresh: bool, deadline: float) -> int:
    """Run the tests of the claims that are not recorded, several at once; return pytest's exit status."""
    environment = {**os.environ, "DDPLAB_CLAIMS_RESULTS": str((edition.folder / "claims").absolute())}
    if fresh:
        environment["DDPLAB_CLAIMS_FRESH"] = "1"
    if deadline < float("inf"):
        environment["DDPLAB_CLAIMS_DEADLINE"] = str(time.time() + deadline - time.monotonic())
    several = ["-n", str(min(8, 2 * (os.cpu_count() or 1)))] if _has("xdist") else []
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/claims", *several]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")  # no window, whatever the machine has
    sys.exit(main())
