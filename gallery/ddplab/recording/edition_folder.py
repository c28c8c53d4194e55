"""An edition: what labs and claims gave on one machine, in a folder that is committed.

``labs/<id>.json`` and ``labs/<id>-<n>.svg`` hold what a lab printed, drew, recorded and launched;
``claims/<test file>.json`` the results of the claims; ``manifest.json`` says what it all ran on.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime.evidence import write_json
from .machine import differences, grouped, processor

COMMIT = "DDPLAB_COMMIT"  # in the environment: of a tree that travelled without its history
_LAB = ("key", "date", "machine", "launches", "values", "blocks", "seconds")
_RESULT = ("outcome", "key", "launches", "date", "test", "seconds")


class DamagedError(ValueError):
    """A file of an edition is missing or not what this project writes; the message says what to do."""


@dataclass(frozen=True)
class Edition:
    """The folder of an edition."""

    folder: Path

    @property
    def name(self) -> str:
        """Its name is that of its folder."""
        return self.folder.name

    def lab_file(self, lab: str) -> Path:
        """The evidence of the lab with this id."""
        return self.folder / "labs" / f"{lab}.json"

    def claims_file(self, test_file: Path) -> Path:
        """The results of the claims that a test file shows."""
        return self.folder / "claims" / f"{test_file.stem}.json"

    def lab(self, lab: str) -> dict[str, Any] | None:
        """What the edition has of a lab.

        Raises:
            DamagedError: its file, or one of its figures, is damaged or missing.
        """
        path = self.lab_file(lab)
        if not path.exists():
            return None
        kept = read_json(path, *_LAB)
        for block in kept["blocks"]:
            for figure in block.get("figures", ()):
                if not path.with_name(figure["file"]).exists():
                    raise DamagedError(f"{path.with_name(figure['file'])} is missing; {_ADVICE}")
        return kept

    def labs(self) -> dict[str, dict[str, Any]]:
        """What the edition has of every lab.

        Raises:
            DamagedError: a file is damaged or missing.
        """
        names = (path.stem for path in sorted(self.folder.glob("labs/*.json")))
        return {name: kept for name in names if (kept := self.lab(name))}

    def hardware(self) -> dict[str, Any]:
        """More about its GPUs, such as their memory; empty if nothing is known.

        Raises:
            DamagedError: the manifest is damaged.
        """
        path = self.folder / "manifest.json"
        return dict(read_json(path).get("hardware", {})) if path.exists() else {}

    def has_claims(self) -> bool:
        """Whether results of claims are recorded."""
        return any(self.folder.glob("claims/*.json"))

    def results(self) -> dict[str, dict[str, Any]]:
        """The result of every claim that the edition has, each with the machine that it ran on.

        Raises:
            DamagedError: a file is not one of results.
        """
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.folder / "claims").glob("*.json")):
            found |= read_results(path)
        return found

    def results_of(self, test_file: Path) -> dict[str, dict[str, Any]]:
        """The results of the claims that a test file shows, each with the machine that it ran on.

        Raises:
            DamagedError: the file is not one of results.
        """
        return read_results(self.claims_file(test_file))

    def write_lab(self, lab: str, kept: dict[str, Any], figures: dict[str, str]) -> None:
        """Replace what the edition has of a lab; ``figures`` maps file names to SVG."""
        path = self.lab_file(lab)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # interrupted from here on, the lab counts as not recorded
        for name, svg in figures.items():
            path.with_name(name).write_text(svg, encoding="utf-8")
        write_json(path, kept)
        for old in path.parent.glob(f"{lab}-*.svg"):
            if old.name not in figures and old.stem.removeprefix(f"{lab}-").isdecimal():
                old.unlink()

    def drop_all_but(self, labs: Iterable[str], test_files: Iterable[Path]) -> None:
        """Remove what was recorded of labs and test files that are gone."""
        kept_labs, kept_files = set(labs), {self.claims_file(path) for path in test_files}
        for path in self.folder.glob("labs/*"):
            if path.suffix == ".tmp" or (path.stem not in kept_labs and path.stem.rpartition("-")[0] not in kept_labs):
                path.unlink()
        for path in set(self.folder.glob("claims/*.json")) - kept_files:
            path.unlink()

    def write_manifest(
        self, hardware: dict[str, Any] | None = None, timed: Callable[[str], bool] = lambda lab: True
    ) -> list[str]:
        """Sum up what the edition ran on, over all labs, or over its claims if it has no lab; return what does not fit.

        The machine is that of most labs; others are listed beside it.

        Args:
            hardware: more about the GPUs of this machine; what the manifest has of it stays if this is None.
            timed: says whether a lab measures time; asked only where there are several processors.
        """
        labs, results = self.labs(), self.results()
        recorded = labs or results
        if not recorded:
            return []
        (machine, _), *others = grouped(recorded | results)
        problems = []
        for other, names in others:
            if differ := [fact for fact in differences(machine, other) if fact not in ("cpu", "cores")]:
                but = _differences(machine, other, differ)
                problems += [f"{name} ran on another machine: {but}" for name in names]
        if others:
            by_clock = grouped({name: kept for name, kept in labs.items() if timed(name)})
            shown = (f"{', '.join(names)} on {processor(one)}" for one, names in by_clock[1:])
            if beside := "; ".join(shown):
                first, names = by_clock[0]
                problems.append(f"{len(names)} labs measured time on {processor(first)}, and {beside}")
        launches = [(name, launch) for name, kept in recorded.items() for launch in kept["launches"]]
        for name, launch in launches:
            if launch["gpus"] != len(machine["gpus"]) and not launch.get("chosen"):
                there = f"the machine has {len(machine['gpus'])}"
                problems.append(f"{name} saw {launch['gpus']} GPUs, and {there}; an earlier lab may have hidden them")
        seen = [launch for _, launch in launches]
        write_json(
            self.folder / "manifest.json",
            {
                "edition": self.name,
                "machine": machine,
                **({"also": [{"machine": one, "records": len(names)} for one, names in others]} if others else {}),
                "hardware": self.hardware() if hardware is None else hardware,
                "torch": sorted({launch["torch"] for launch in seen}),
                "nccl": sorted({launch["nccl"] for launch in seen if launch["nccl"]}),
                "gpus": sorted({f"{launch['gpus']} × {launch['gpu']}" for launch in seen if launch["gpu"]}),
                "backends": sorted({launch["backend"] for launch in seen}),
                "world_sizes": sorted({launch["ranks"] for launch in seen}),
                "dates": [pick(kept["date"] for kept in recorded.values()) for pick in (min, max)],
                "commit": _commit(self.folder),
                "labs": len(labs),
                "failed": sorted(name for name, kept in labs.items() if kept.get("failed")),
                "not_shown": {name: kept["needs"] for name, kept in labs.items() if kept.get("needs")},
            },
        )
        return list(dict.fromkeys(problems))


_ADVICE = "restore it with git, or record the edition again with `make edition NAME=…`"


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """A JSON object from a file that this project wrote, which has the ``needed`` entries.

    Raises:
        DamagedError: it is missing or damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing; {_ADVICE}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} is damaged ({error}); {_ADVICE}") from None
    absent = [name for name in needed if not isinstance(content, dict) or name not in content]
    if absent or not isinstance(content, dict):
        raise DamagedError(f"{path} is damaged ({', '.join(absent) or 'a JSON object'} is missing); {_ADVICE}")
    return content


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """The results of a file of claims, each with the machine that it ran on; empty if there is none.

    Raises:
        DamagedError: the file is not one of results.
    """
    if not path.exists():
        return {}
    kept = read_json(path, "machine", "results")
    for claim, result in kept["results"].items():
        if not isinstance(result, dict) or not set(_RESULT) <= result.keys():
            raise DamagedError(f"{path} is damaged (the result of {claim!r} is not complete); {_ADVICE}")
    return {claim: {"machine": kept["machine"], **result} for claim, result in kept["results"].items()}


def write_results(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """Write such a file: the machine of most of them once, and another one with its result."""
    same: list[dict[str, Any]] = [kept["machine"] for kept in results.values()]
    most = max(same, key=same.count, default={})
    short = {
        claim: {name: fact for name, fact in kept.items() if name != "machine" or fact != most}
        for claim, kept in results.items()
    }
    write_json(path, {"machine": most, "results": short})


def _differences(here: dict[str, Any], there: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {there.get(name)} instead of {here[name]}" for name in names)


def _commit(folder: Path) -> str:
    """The commit that is checked out, or, where no git tells, that DDPLAB_COMMIT names."""
    try:
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get(COMMIT, "")[:12] or "unknown"
