"""What differs between two editions, as plain data: machines, results, measured values, and outputs in kind.

``dataclasses.asdict`` of a comparison is what ``ddplab edition diff --json`` prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .edition_folder import Edition
from .items import results_of
from .machine import grouped

State = Literal["passed", "failed", "not shown", "missing"]


@dataclass(frozen=True)
class Fact:
    """One fact about the two machines, such as ``driver``; None: not known, or there is none."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Result:
    """What became of a lab or a claim; ``why_*`` is the end of its traceback, or why it cannot be shown there."""

    kind: Literal["lab", "claim"]
    id: str
    a: State
    b: State
    why_a: str = ""
    why_b: str = ""


@dataclass(frozen=True)
class Value:
    """A measured value of a lab; None: that edition does not have it. ``ratio`` is b / a, where both are numbers."""

    lab: str
    name: str
    a: float | str | None
    b: float | str | None
    unit_a: str
    unit_b: str
    ratio: float | None


@dataclass(frozen=True)
class Output:
    """A block of a lab, counted from 1, that left something of another kind: ``a`` and ``b`` say what."""

    lab: str
    block: int
    a: str
    b: str


@dataclass(frozen=True)
class Comparison:
    """All that differs between the editions ``a`` and ``b``; ``same_*`` count what does not."""

    a: str
    b: str
    facts: list[Fact]  # all of them, also those that agree
    results: list[Result]
    values: list[Value]
    outputs: list[Output]
    other_code: list[str]  # labs that both have, of different code: their values and outputs are compared anyway
    same_results: int
    same_values: int


def compare(a: Edition, b: Edition) -> Comparison:
    """Compare two editions; labs and claims come in alphabetical order.

    Raises:
        DamagedError: a file of one of them is damaged or missing.
    """
    labs, claims = (a.labs(), b.labs()), (results_of(a), results_of(b))
    results = list(_results("lab", *labs)) + list(_results("claim", *claims))
    both = [(name, labs[0][name], labs[1][name]) for name in sorted(labs[0].keys() & labs[1].keys())]
    values = [value for name, one, other in both for value in _values(name, one, other)]
    return Comparison(
        a=a.name,
        b=b.name,
        facts=_facts(_about(a, labs[0] | claims[0]), _about(b, labs[1] | claims[1])),
        results=[result for result in results if result.a != result.b],
        values=[value for value in values if (value.a, value.unit_a) != (value.b, value.unit_b)],
        outputs=[output for name, one, other in both for output in _outputs(name, one, other)],
        other_code=[name for name, one, other in both if one["key"] != other["key"]],
        same_results=sum(result.a == result.b for result in results),
        same_values=sum((value.a, value.unit_a) == (value.b, value.unit_b) for value in values),
    )


def _about(edition: Edition, kept: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The facts of the machine that recorded most of it, what the launches used of it, and when it was recorded."""
    launches = [launch for one in kept.values() for launch in one["launches"]]
    dates = [one["date"] for one in kept.values()]
    return {
        **(grouped(kept)[0][0] if kept else {}),
        **edition.hardware(),
        "backends": sorted({launch["backend"] for launch in launches}),
        "world sizes": sorted({launch["ranks"] for launch in launches}),
        "recorded": max(dates)[:10] if dates else None,
    }


def _facts(a: dict[str, Any], b: dict[str, Any]) -> list[Fact]:
    return [Fact(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]


def _results(kind: Literal["lab", "claim"], a: dict[str, Any], b: dict[str, Any]) -> Iterable[Result]:
    for name in sorted(a.keys() | b.keys()):
        yield Result(kind, name, _state(a.get(name)), _state(b.get(name)), _why(a.get(name)), _why(b.get(name)))


def _state(kept: dict[str, Any] | None) -> State:
    if kept is None:
        return "missing"
    outcome = kept.get("outcome")  # of a claim
    if kept.get("failed") or outcome == "failed":
        return "failed"
    return "not shown" if kept.get("needs") or outcome == "skipped" else "passed"


def _why(kept: dict[str, Any] | None) -> str:
    reason = (kept and (kept.get("failed") or kept.get("needs") or kept.get("why"))) or ""
    return str(reason).splitlines()[-1] if reason else ""


def _values(lab: str, one: dict[str, Any], other: dict[str, Any]) -> Iterable[Value]:
    for name in sorted(one["values"].keys() | other["values"].keys()):
        a, b = (kept["values"].get(name, {"value": None, "unit": ""}) for kept in (one, other))
        numbers = all(isinstance(side["value"], int | float) for side in (a, b)) and a["unit"] == b["unit"]
        ratio = b["value"] / a["value"] if numbers and a["value"] else None
        yield Value(lab, name, a["value"], b["value"], a["unit"], b["unit"], ratio)


def _outputs(lab: str, one: dict[str, Any], other: dict[str, Any]) -> Iterable[Output]:
    """Blocks in order; one that is missing at the end of a lab that failed leaves nothing."""
    for place in range(max(len(one["blocks"]), len(other["blocks"]))):
        a, b = (_kind(kept["blocks"][place : place + 1]) for kept in (one, other))
        if a != b:
            yield Output(lab, place + 1, a, b)


def _kind(block: list[dict[str, Any]]) -> str:
    if not block:
        return "not run"
    figures = len(block[0].get("figures", ()))
    parts = ["text"] * bool(block[0].get("printed")) + [f"{figures} figure{'s' * (figures > 1)}"] * bool(figures)
    return " and ".join(parts) or "nothing"
