"""What is recorded first, and how long it may take: a builder gives its time in slices, and the last may never come."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..runtime import shared_gpu
from .edition_folder import Edition
from .items import Item

# Groups of labs, the most valuable first, each with its reason. What is in none comes after, in reading order.
ORDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "only a GPU can tell",
        (
            *("host-runs-ahead", "gpu-memory", "cost-of-ddp", "mfu", "batch-fills-card", "cuda-trace"),
            *("sm-contention", "pinned-memory", "cuda-graphs", "gpu-precision", "bus-bandwidth"),
            *("out-of-memory", "starved-gpu"),
        ),
    ),
    (
        "two NCCL ranks, which may share a card",
        ("two-nccl-ranks", "nccl-at-fault", "nccl-failures"),
    ),
    (
        "what every reader asks of a machine: its best bucket size",
        ("tune-buckets",),
    ),
    (
        "where the step's time goes: profiles and timelines, which differ most between a CPU and a GPU",
        ("profile-a-step", "backward-timeline", "hooks-and-overlap", "training-run", "one-slow-rank"),
    ),
    (
        "memory, compile and AMP: other allocators, other kernels, other dtypes",
        ("memory-of-views", "memory-ledger", "compile-overlap", "compile-splits", "scaler-inf", "compression"),
    ),
    (
        "implementations side by side: their ratios change with the price of a launch",
        ("wrappers-compared", "scratch-speed", "train-beside-others", "async-save", "accumulation-share"),
    ),
    (
        "what a new cluster is asked first, and its own messages",
        ("hello-ranks", "launch-and-torchrun"),
    ),
)
# An emulated link and layers that sleep, on CPU tensors: last, since every machine shows the same.
EMULATED = ("bucket-sweep", "overlap-on-and-off", "first-bucket", "predict-then-measure", "slow-link")
CHAPTERS = ("idea", "internals", "gpu", "from_scratch", "museum", "setup", "debugging", "performance", "checkpointing")

# Assumptions of the estimate, not measurements: the book has not been recorded on a GPU yet.
CUDA_START_S = 2.0  # for each launch: its ranks make their CUDA contexts side by side
COLLECTIVE_S = 0.017  # of ranks that share a GPU, for each: they take turns
UNKNOWN_S, UNKNOWN_TEST_S = 30.0, 3.0  # of a lab, and of a test, that no edition has
GUESS_S = {  # of labs that no edition has: with a larger guess the last seconds of a slice would be left unused
    **dict.fromkeys(("host-runs-ahead", "cuda-trace", "cuda-graphs"), 8.0),
    **dict.fromkeys(("gpu-memory", "cost-of-ddp", "batch-fills-card", "sm-contention", "pinned-memory"), 12.0),
    **dict.fromkeys(("gpu-precision", "two-nccl-ranks"), 15.0),
    **dict.fromkeys(("mfu", "nccl-at-fault", "bus-bandwidth", "out-of-memory", "starved-gpu"), 20.0),
}


def in_order(labs: dict[str, Path], on_cpu: Collection[str] = ()) -> dict[str, Path]:
    """The labs in the order in which they are recorded.

    Args:
        labs: id -> script, in any order.
        on_cpu: those that choose the CPU wherever they run; they come last.
    """
    first = [lab for _, group in ORDER for lab in group]

    def place(lab: str) -> tuple[bool, int, int, str]:
        chapter = labs[lab].parent.name
        return (
            lab in EMULATED or lab in on_cpu,
            first.index(lab) if lab in first else len(first),
            CHAPTERS.index(chapter) if chapter in CHAPTERS else len(CHAPTERS),
            labs[lab].name,
        )

    return {lab: labs[lab] for lab in sorted(labs, key=place)}


@dataclass(frozen=True)
class Times:
    """How long labs and tests of claims took: in this edition, else in another one."""

    labs: dict[str, float]
    tests: dict[str, float]
    sources: list[str]  # the editions that these come from
    # Labs whose ranks all chose the CPU; tests of claims, too, and those that launch none.
    on_cpu: set[str] = field(default_factory=set)

    @classmethod
    def known(cls, edition: Edition, here: dict[str, Any]) -> Times:
        """What an edition and those beside it tell of the machine ``here``.

        What was recorded without a GPU is expected to take one CUDA start per launch longer where there is one.
        """
        beside = (Edition(path.parent) for path in sorted(edition.folder.parent.glob("*/manifest.json")))
        known = cls({}, {}, [])
        for one in (edition, *(other for other in beside if other != edition)):
            of_labs, of_claims = one.labs(), one.results().values()
            # One that could not run took no time to find that out; what it takes is not known.
            labs = {name: _seconds(kept, here) for name, kept in of_labs.items() if not kept.get("needs")}
            tests = {kept["test"]: _seconds(kept, here) for kept in of_claims}
            known.on_cpu.update(name for name, kept in of_labs.items() if kept["launches"] and _is_on_cpu(kept))
            known.on_cpu.update(kept["test"] for kept in of_claims if kept["outcome"] == "passed" and _is_on_cpu(kept))
            if labs.keys() - known.labs.keys() or tests.keys() - known.tests.keys():
                sources = [*known.sources, one.name]
                known = cls({**labs, **known.labs}, {**tests, **known.tests}, sources, known.on_cpu)
        return known

    def lab(self, name: str) -> float:
        """Of one lab."""
        return self.labs.get(name, GUESS_S.get(name, UNKNOWN_S))

    def test(self, name: str) -> float:
        """Of one test of claims, as pytest names it."""
        return self.tests.get(name, UNKNOWN_TEST_S)

    def of(self, item: Item) -> float:
        """Of either."""
        return self.test(item.id) if item.name else self.lab(item.names[0])


def _is_on_cpu(kept: dict[str, Any]) -> bool:
    return all(launch.get("chosen") and not launch["gpus"] for launch in kept["launches"])


def _seconds(kept: dict[str, Any], here: dict[str, Any]) -> float:
    seconds = float(kept["seconds"])
    if not here.get("gpus") or kept["machine"].get("gpus"):
        return seconds
    for launch in kept["launches"]:
        if launch.get("chosen"):
            continue
        seconds += CUDA_START_S * launch.get("times", 1)
        if shared_gpu.is_asked() and launch["ranks"] > len(here["gpus"]):
            seconds += COLLECTIVE_S * launch.get("collectives", 0)
    return seconds


def dealt(items: list[Item], times: Times, count: int) -> list[list[Item]]:
    """What each of at most ``count`` processes runs: files of tests so that all end at about the same time.

    One process runs all, in their order.
    """
    if count == 1:
        return [items] if items else []
    files: dict[Path, list[Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    takes = {path: sum(map(times.of, of_file)) for path, of_file in files.items()}
    shares: list[tuple[float, list[Item]]] = [(0.0, []) for _ in range(count)]
    for path in sorted(files, key=lambda path: (-takes[path], path)):
        least = min(range(count), key=lambda one: shares[one][0])
        shares[least] = (shares[least][0] + takes[path], shares[least][1] + files[path])
    return [share for _, share in shares if share]


def seconds_of(items: list[Item], times: Times, count: int) -> float:
    """An estimate for so many processes."""
    return max((sum(map(times.of, share)) for share in dealt(items, times, count)), default=0.0)


def at_once(hardware: dict[str, Any]) -> int:
    """How many processes test claims side by side: tests wait more than they compute, but a GPU's memory is shared."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    per_process_mib = 4096  # four ranks, a CUDA context and some tensors each
    memory: Iterable[float] = filter(None, hardware.get("gpu memory in MiB", ()))
    return max(1, min(8, 2 * cores, *(int(mib // per_process_mib) for mib in memory)))
