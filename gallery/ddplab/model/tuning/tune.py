"""``tune``: the way from a model to an answer, called on every rank.

It measures when each gradient is ready, fits the link to a few all-reduces, predicts the step for every cap
(:mod:`ddplab.model.step`), measures steps for the caps that look best and for DDP's default, in turn, and compares
them round by round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ...runtime.group import device, gpu_uuid
from ...runtime.slowlink import SlowLink
from .advice import advise
from .measure import LEAST_ROUNDS, WARM_STEPS, measure_link, measure_steps, profile_step
from .plans import MOST_CAPS, NO_RATE, Plan, choose, make_plans
from .target import build, check_same_on_all_ranks, try_step
from .together import Clock, on_all_ranks

GOOD_ROUNDS = 20  # the interval then leaves out the three largest and smallest; rather fewer caps than fewer rounds


def tune(
    target: str,
    folder: str,
    caps_mb: Sequence[float],
    seconds: float,
    emulate: tuple[float, float] | None,
    terminal: str | None,
) -> dict[str, Any]:
    """Tune the model that ``target`` builds; to be called on every rank of the default process group.

    Args:
        target: ``module:function``; the function returns (model, batch) or (model, batch, loss function).
        folder: where modules are looked for first.
        caps_mb: caps to measure, in MiB; empty: those that look best.
        seconds: how long to measure.
        emulate: (latency in s, bytes/s) of a link to emulate, or None for the real one.
        terminal: path of a terminal on which rank 0 shows its progress, or None.

    Returns:
        What ``ddplab tune-buckets --json`` prints.

    Raises:
        TuningError: the model cannot be tuned, or not in this time.
    """
    model, batch, loss = on_all_ranks(lambda: build(target, folder))
    on_all_ranks(lambda: check_same_on_all_ranks(model))
    clock = Clock(seconds, terminal)
    clock.show("one step without DDP")
    one_s = on_all_ranks(lambda: try_step(target, model, batch, loss))
    clock.require(one_s * (WARM_STEPS + 5 + 2 * (WARM_STEPS + LEAST_ROUNDS)), "the steps that are needed at least")

    profile = profile_step(clock, model, batch, loss)
    slow = SlowLink(*emulate) if emulate else None
    link, samples = measure_link(clock, slow, sum(nbytes for _, nbytes in profile.gradients))
    plans = make_plans(profile.gradients, profile.kinds, link, profile.forward_s, profile.backward_s, caps_mb)
    chosen = _affordable(clock, plans, caps_mb)
    rounds, sent = measure_steps(clock, chosen, model, batch, loss, slow)

    default_s, *others_s = rounds
    found = advise(default_s, {p.cap_mb: s for p, s in zip(chosen[1:], others_s, strict=True) if p.cap_mb is not None})
    clock.show("done")
    uuids: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(uuids, gpu_uuid())
    facts = {
        "target": target,
        "ranks": dist.get_world_size(),
        "gpus": len({gpu for gpu in uuids if gpu}),
        "backend": "nccl" if "nccl" in dist.get_backend() else "gloo",
        "device": torch.cuda.get_device_name(device()) if device().type == "cuda" else "cpu",
        "torch": torch.__version__,
        "gradients": [[ready_s * 1e3, nbytes] for ready_s, nbytes in profile.gradients],
        "bytes": sum(nbytes for _, nbytes in profile.gradients),
        "forward_ms": profile.forward_s * 1e3,
        "backward_ms": profile.backward_s * 1e3,
        "lower_bound_ms": plans[0].step.lower_bound_s * 1e3,
        "link": {
            "emulated": slow is not None,
            "algorithm": link.algorithm,
            "latency_us": link.latency_s * 1e6,
            "gbit_per_s": link.bytes_per_s * 8 / 1e9 if link.bytes_per_s < NO_RATE else None,
            "residual": link.residual,
            "samples": [[nbytes, took_s * 1e3] for nbytes, took_s in samples],
        },
        "predicted": [_predicted(plan) for plan in plans],
        "measured": [
            {**_predicted(plan), **_measured(took_s, default_s), "bucket_bytes": nbytes}
            for plan, took_s, nbytes in zip(chosen, rounds, sent, strict=True)
        ],
        "recommended": {
            "bucket_cap_mb": found.cap_mb,
            "verdict": found.verdict,
            "best_bucket_cap_mb": found.best_mb,
            "gain_ms": found.gain_s * 1e3,
            "low_ms": found.low_s * 1e3 if math.isfinite(found.low_s) else None,
            "high_ms": found.high_s * 1e3 if math.isfinite(found.high_s) else None,
            "confidence": 0.99,
            "rounds": len(default_s),
        },
        "seconds": clock.spent_s(),
    }
    return {**facts, "notes": _notes(facts)}


def _predicted(plan: Plan) -> dict[str, Any]:
    return {
        "bucket_cap_mb": plan.cap_mb,
        "buckets": len(plan.bucket_bytes),
        "bucket_bytes": plan.bucket_bytes,
        "predicted_ms": plan.step.step_s * 1e3,
    }


def _measured(took_s: Sequence[float], default_s: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(took_s)
    quarter = (len(ordered) - 1) // 4
    return {
        "median_ms": median(ordered) * 1e3,
        "middle_half_ms": [ordered[quarter] * 1e3, ordered[-1 - quarter] * 1e3],
        "against_default_ms": median(a - b for a, b in zip(took_s, default_s, strict=True)) * 1e3,
        "steps_ms": [s * 1e3 for s in took_s],
    }


def _notes(facts: dict[str, Any]) -> list[str]:
    """What the reader should know before believing the numbers."""
    notes = []
    if facts["link"]["emulated"]:
        notes.append("The link is emulated: the advice is for a link like that, not for this machine.")
    if 0 < facts["gpus"] < facts["ranks"]:
        notes.append("Ranks share a GPU: with a GPU for each rank, other caps may be best.")
    if facts["link"]["residual"] > 0.15:
        share = round(100 * facts["link"]["residual"])
        notes.append(f"The all-reduces are {share} % off any latency and rate: the predicted column is rough.")
    if facts["recommended"]["rounds"] < LEAST_ROUNDS:
        notes.append(f"Only {facts['recommended']['rounds']} rounds fit into the time; give --seconds more.")
    if any(seen["bucket_bytes"] != _find(facts, seen)["bucket_bytes"] for seen in facts["measured"]):
        notes.append(
            "DDP made other buckets than predicted: gradients do not become ready in the same order each step."
        )
    return notes


def _find(facts: dict[str, Any], seen: dict[str, Any]) -> Any:
    return next(plan for plan in facts["predicted"] if plan["bucket_cap_mb"] == seen["bucket_cap_mb"])


def _affordable(clock: Clock, plans: Sequence[Plan], caps_mb: Sequence[float]) -> list[Plan]:
    """The plans to measure, as many as the time that is left allows."""

    def needed_s(chosen: Sequence[Plan], rounds: int) -> float:
        return sum(plan.step.step_s for plan in chosen) * (WARM_STEPS + rounds)

    left_s = clock.seconds - clock.spent_s()
    for most in range(MOST_CAPS, 1, -1):
        chosen = choose(plans, caps_mb, most)
        if caps_mb or needed_s(chosen, GOOD_ROUNDS) <= left_s:
            break
    clock.require(needed_s(chosen, LEAST_ROUNDS), f"{LEAST_ROUNDS} rounds of {len(chosen)} caps")
    return chosen
