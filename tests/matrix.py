"""Tests and labs on every torch that a reader may get: `make matrix`; `make matrix ONLY=2.11` for one row of it.

Each row has an environment of its own under .matrix/, made once and kept; its logs and results lie beside it.
FAILED=1 runs again what failed in the last run of a row, and nothing else.

A row takes the build of torch that pip gives here. CPU_INDEX=URL names an index of CPU builds for the first row.
The CUDA row asks pip's own index only: no configuration file and no folder of wheels, where a CPU build may lie.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".matrix"
ALL = ["tests/claims", "tests/kit", "tests/recipes", "tests/exercises"]
# What a cluster with an older torch needs: it has its own torch, and takes the kit and the recipes.
CORE = [f"tests/kit/test_{name}.py" for name in ("launch", "checkpoint", "diagnose", "flight")]
CORE += [f"tests/recipes/test_{name}.py" for name in ("hello_ranks", "train_refusals", "train_resume", "train_runs")]


class Row(NamedTuple):
    """One torch, and what must hold on it."""

    torch: str
    tests: list[str] = ALL
    labs: bool = True
    index: str | None = None  # the environment variable that may name an index for torch
    own_index: bool = False  # ask pip's own index only


ROWS = {
    "2.13-cpu": Row("torch==2.13.0", index="CPU_INDEX"),
    "2.13-cuda": Row("torch==2.13.0", own_index=True),
    "2.11": Row("torch==2.11.0"),
    "newest": Row("torch"),
    "2.8": Row("torch==2.8.0", tests=CORE, labs=False),
}


def install(name: str) -> Path:
    """The Python of a row, with its torch, the kit, and what tests and labs import; nothing if it is there."""
    row, place = ROWS[name], PLACE / name
    python, ready = place / "bin" / "python", place / "ready"
    if ready.exists():
        return python
    print(f"{name}: installing", flush=True)
    venv.create(place, with_pip=True, clear=True)
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
    (place / "constraints.txt").write_text("\n".join(pins) + "\n")
    env = dict(os.environ)
    if row.own_index:
        env["PIP_CONFIG_FILE"] = os.devnull
        env.pop("PIP_FIND_LINKS", None)
    index = ["--index-url", env[row.index]] if row.index in env else []
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "-c", str(place / "constraints.txt")]
    subprocess.run([*pip, *index, row.torch], env=env, check=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = ",".join(sorted(extras.keys() - {"book"}))
    subprocess.run([*pip, row.torch, "-e", f"{ROOT}[{wanted}]"], env=env, check=True)
    ready.touch()
    return python


RUNNING: list[subprocess.Popen] = []


def end(process: subprocess.Popen) -> None:
    """End a program and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(command: list[str], log: Path, timeout_s: float, cwd: Path = ROOT) -> int:
    """Run a command with its output in ``log``, and end all that it started; 124 if it took too long."""
    env = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, env=env, start_new_session=True
        )
        RUNNING.append(process)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            RUNNING.remove(process)
            end(process)


def tests(python: Path, room: str, chosen: list[str], out: Path, jobs: int) -> Iterator[tuple[str, str]]:
    """Each chosen test of a room, and what came of it."""
    name = room.removeprefix("tests/").replace("/", "-").removesuffix(".py")
    report = out / f"{name}.xml"
    report.unlink(missing_ok=True)
    clusters = [f"--ignore={path}" for path in ROOT.glob("tests/recipes/test_cluster_*.py")]
    quiet = [
        "-p",
        "no:cacheprovider",
        "--dist",
        "loadfile",
        "-n",
        str(jobs),
        "-o",
        "junit_family=xunit1",
        f"--junitxml={report}",
    ]
    run([str(python), "-m", "pytest", *chosen, *clusters, *quiet], out / f"{name}.log", 3600)
    if not report.exists():
        yield room, "failed"
        return
    for case in ElementTree.parse(report).iter("testcase"):
        skip = case.find("skipped")
        here = f"{case.get('file')}::{case.get('name')}"
        if skip is None:
            yield here, "passed" if case.find("failure") is None and case.find("error") is None else "failed"
        else:
            yield here, "not shown" if (skip.get("message") or "").startswith("not shown here") else "skipped"


def lab(python: Path, script: Path, out: Path) -> tuple[str, str]:
    """One lab in a process of its own, and what came of it."""
    log = out / "labs" / f"{script.parent.name}-{script.stem}.log"
    code = run([str(python), script.name], log, 600, cwd=script.parent)
    not_shown = re.search(r"^ddplab\.needs\.NotShownHere: ", log.read_text(errors="replace"), re.MULTILINE)
    return str(script.relative_to(ROOT)), "passed" if code == 0 else "not shown" if not_shown else "failed"


def run_row(name: str, jobs: int, again: bool, parts: list[str]) -> None:
    """Run a row, or ``parts`` of it, and keep what came of it; ``again``: only what failed the last time."""
    row, out = ROWS[name], PLACE / f"{name}-results"
    python, kept = install(name), out / "results.json"
    out.mkdir(parents=True, exist_ok=True)
    facts = "import torch; print(torch.__version__, 'CUDA ' + torch.version.cuda if torch.version.cuda else 'CPU')"
    version, build = subprocess.check_output([python, "-c", facts], text=True).strip().split(" ", 1)
    results: dict[str, str] = json.loads(kept.read_text())["results"] if kept.exists() else {}

    def keep(found: Iterable[tuple[str, str]]) -> None:
        for what, outcome in found:
            results[what] = outcome
            if outcome == "failed":
                print(f"{name}: failed: {what}", flush=True)
            kept.write_text(json.dumps({"torch": version, "build": build, "results": results}, indent=1))

    for room in [*row.tests, *["gallery"] * row.labs]:
        if parts and room not in parts:
            continue
        failed = sorted(what for what in results if what.startswith(room) and results[what] == "failed")
        if again and not failed:
            continue
        for what in [what for what in results if what.startswith(room) and (what in failed or not again)]:
            del results[what]
        if room == "gallery":
            scripts = [ROOT / what for what in failed] if again else sorted(ROOT.glob("gallery/*/plot_*.py"))
            with ThreadPoolExecutor(jobs) as several:
                try:
                    keep(several.map(lambda script: lab(python, script, out), scripts))
                except BaseException:  # Ctrl-C, above all
                    several.shutdown(wait=False, cancel_futures=True)
                    for process in list(RUNNING):
                        end(process)
                    raise
        else:
            keep(tests(python, room, failed if again else [room], out, jobs))


def table() -> str:
    """What all rows came to, as far as they have been run."""
    head = ["row", "torch", "build", "tests: passed", "failed", "not shown here", "skipped"]
    lines = [[*head, "labs: passed", "failed", "not shown here"]]
    for name in ROWS:
        kept = PLACE / f"{name}-results" / "results.json"
        if not kept.exists():
            continue
        found = json.loads(kept.read_text())
        line = [name, found["torch"], found["build"]]
        for labs, outcomes in ((False, ["passed", "failed", "not shown", "skipped"]),
                               (True, ["passed", "failed", "not shown"])):  # fmt: skip
            of = [outcome for what, outcome in found["results"].items() if what.startswith("gallery/") == labs]
            line += [str(of.count(outcome)) for outcome in outcomes]
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main() -> int:
    """Run the rows that were asked for and print the table; 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; 2.13 means both of its rows; all by default")
    parser.add_argument("--failed", action="store_true", help="only what failed the last time")
    parser.add_argument("--part", action="append", help="only this: gallery (the labs), tests/claims, …")
    parser.add_argument("--jobs", type=int, default=2, help="tests and labs at a time (2)")
    given = parser.parse_args()
    names = [name for name in ROWS if not given.rows or name.startswith(tuple(given.rows))]
    if not names:
        parser.error(f"no such row: {' '.join(given.rows)}; there are {', '.join(ROWS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with this
    for name in names:
        run_row(name, given.jobs, given.failed, given.part or [])
    print(table())
    kept = [json.loads((PLACE / f"{name}-results" / "results.json").read_text()) for name in names]
    return int(any("failed" in found["results"].values() for found in kept))


if __name__ == "__main__":
    sys.exit(main())
