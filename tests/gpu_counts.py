"""What each lab and each claim does on 0, 1, 2 and 8 GPUs: the rehearsal's table, printed as Markdown.

    python tests/gpu_counts.py                  what is known now
    python tests/gpu_counts.py --simulate 2     run labs and claims as if this machine had 2 GPUs (see tests/simulated);
                                          goes on where it was interrupted; names of labs behind -- run only these

A cell names the backend and what it moved: "gloo" alone is tensors of the CPU, "gloo, GPU" those of a GPU; "gloo, CPU"
is a script that hides the GPUs from its ranks. Or it says why it is not run. It is one of three things, and says which:

    gloo      executed without a GPU: it is in the default edition
    nccl ~    executed, but the GPUs were simulated
    nccl ?    only read: what launch would choose for the ranks that the default edition noted

Nothing here ran on a GPU. The notes are in tests/gpus.toml.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddplab.recording.edition_folder import Edition
from ddplab.recording.items import tests_of
from ddplab.recording.script import lab_id

ROOT = Path(__file__).parents[1]
COUNTS = (1, 2, 8)
SIMULATED = ROOT / "_build" / "simulated"
NOTES = Path(__file__).with_suffix(".toml")


def notes(labs: Iterable[str], claims: Mapping[str, str], path: Path = NOTES) -> dict[str, str]:
    """Return the reviewed note on each lab and each claim, by id.

    Args:
        labs: their ids.
        claims: the file of tests of each; its note is that of a claim which has none of its own.
        path: the file of notes.

    Raises:
        ValueError: a lab or a file of claims has no note or two, or a note is about what is not there.
    """
    found: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["note"]:
        for name in entry["about"]:
            if name in found:
                raise ValueError(f"{path.name}: {name!r} has two notes; keep one")
            found[name] = entry["text"]
    needed, there = {*labs, *claims.values()}, {*labs, *claims.values(), *claims}
    for problem, names in (("has no note", needed - found.keys()), ("is gone: remove its note", found.keys() - there)):
        if names:
            raise ValueError(f"{path.name}: {min(names)!r} {problem}")
    return {lab: found[lab] for lab in labs} | {claim: found.get(claim, found[file]) for claim, file in claims.items()}


def catalog() -> tuple[dict[str, Path], dict[str, str]]:
    """The script of each lab, and the name of the file of tests of each claim."""
    labs = {lab_id(script): script for script in sorted((ROOT / "gallery").glob("*/plot_*.py"))}
    claims = {claim: test.path.stem for test in tests_of(ROOT) for claim in test.claims}
    return labs, dict(sorted(claims.items()))


def default_edition() -> Edition:
    """The one that is recorded without a GPU, whatever others are committed beside it."""
    return Edition(ROOT / "gallery" / "editions" / "cpu-gloo")


def expected(launches: list[dict[str, Any]], gpus: int, one_table: bool) -> str:
    """The backends that ``launch`` takes with so many GPUs and an NCCL that refuses two ranks on one.

    Args:
        launches: as an edition notes them, with their ``ranks``; ``chosen`` if the script chose the devices.
        gpus: how many there are.
        one_table: all launches take the backend of the largest (``up_to``).
    """
    free = [launch["ranks"] for launch in launches if not launch.get("chosen")]
    largest = max(free, default=0)
    backends = {"nccl" if gpus >= (largest if one_table else ranks) else "gloo" for ranks in free}
    if any(launch.get("chosen") for launch in launches):
        backends.add("gloo, CPU")
    return " and ".join(sorted(backends)) or "no launch"


def cell(kept: dict[str, Any] | None) -> str | None:
    """What an edition says of a lab or a claim, in a few words."""
    if kept is None:
        return None
    if kept.get("failed") or kept.get("outcome") == "failed":
        return "**fails**"
    if reason := kept.get("needs") or (kept.get("outcome") == "skipped" and kept.get("why", "skipped")):
        return f"not shown: {reason}"
    return " and ".join(sorted({_moved(one) for one in kept["launches"]})) or "no launch"


def _moved(launch: dict[str, Any]) -> str:
    if launch.get("chosen") and not launch.get("gpus"):
        return "gloo, CPU"
    return "gloo, GPU" if launch["backend"] == "gloo" and launch.get("gpu") else str(launch["backend"])


def row(kept: dict[str, Any] | None, simulated: list[dict[str, Any] | None], one_table: bool) -> list[str]:
    """The cells of 0, 1, 2 and 8 GPUs."""
    launches = kept["launches"] if kept else []
    cells = [cell(kept) or "not recorded"]
    for gpus, there in zip(COUNTS, simulated, strict=True):
        seen = cell(there)
        cells.append(f"{seen} ~" if seen else f"{expected(launches, gpus, one_table)} ?")
    return cells


def table() -> list[str]:
    """The lines of the table, labs before claims."""
    labs, claims = catalog()
    said = notes(labs, claims)
    real, simulated = default_edition(), [Edition(SIMULATED / f"simulated-{gpus}") for gpus in COUNTS]
    lines = ["| Lab or claim | 0 GPUs | 1 | 2 | 8 | Note |", "|---|---|---|---|---|---|"]
    for lab, script in labs.items():
        cells = row(real.lab(lab), [one.lab(lab) for one in simulated], "up_to=" in script.read_text(encoding="utf-8"))
        lines.append(f"| {' | '.join([lab, *cells, said[lab]])} |")
    results, *others = (edition.results() for edition in (real, *simulated))
    for claim in claims:
        cells = row(results.get(claim), [other.get(claim) for other in others], False)
        lines.append(f"| {' | '.join([claim, *cells, said[claim]])} |")
    return [*lines, "", *totals(lines[2:])]


def totals(rows: list[str]) -> list[str]:
    """What came out in each column of the table, in a line each."""
    columns = list(zip(*(line.split(" | ")[1:5] for line in rows), strict=True))
    lines = []
    for gpus, cells in zip((0, *COUNTS), columns, strict=True):
        fails, skipped = sum("fails" in cell for cell in cells), sum("not shown" in cell for cell in cells)
        read = sum(cell.endswith("?") or cell == "not recorded" for cell in cells)
        ran = len(cells) - fails - skipped - read
        lines.append(f"- {gpus} GPUs: {ran} ran, {skipped} not shown for a reason, {fails} failed, {read} not run")
    return lines


def simulate(gpus: int, labs: list[str]) -> int:
    """Record what is not recorded yet of an edition of a simulated machine; return the exit status."""
    env = {**os.environ, "SIMULATED_GPUS": str(gpus), "MPLBACKEND": "agg"}
    for name in ("PATH", "PYTHONPATH"):
        env[name] = f"{ROOT / 'tests' / 'simulated'}:{os.environ.get(name, '')}".rstrip(":")
    command = [sys.executable, "-m", "ddplab.recording", f"simulated-{gpus}", "--into", str(SIMULATED)]
    only = ["--labs", *labs, "--no-claims"] if labs else []
    return subprocess.run([*command, *only], env=env, cwd=ROOT, check=False).returncode


def main() -> int:
    """Print the table, behind a simulation if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", type=int, choices=COUNTS, metavar="GPUS", help="1, 2 or 8")
    parser.add_argument("labs", nargs="*", help="simulate these labs only")
    options = parser.parse_args()
    status = simulate(options.simulate, options.labs) if options.simulate else 0
    print("\n".join(table()))
    return status


if __name__ == "__main__":
    sys.exit(main())
