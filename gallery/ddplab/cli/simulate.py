"""``ddplab simulate``: predict a DDP step from ready times, sizes, a link and bucket caps, without running one."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..model.assignment import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB
from ..model.link import ALGORITHMS, Link
from ..model.step import Gradient, Step, bucketed, equal_layers, simulate_step
from . import number, print_json
from .drawn_step import timeline
from .gradients import read_gradients
from .text import short, table

EXAMPLE = """\
examples:
  ddplab simulate                                          24 equal layers, 8 ranks, DDP's own buckets
  ddplab simulate --bucket-cap-mb 1 5 25 100               one row per cap, and the timeline of the best
  ddplab simulate --layers 48 --mib-per-layer 28 --forward-ms 90 --backward-ms 180 --ranks 64 --gbit-per-s 100
  ddplab simulate --gradients ready.json --ranks 4 --json  your model: ready.json holds [[ready_ms, bytes], ...]

ready_ms counts from the start of the backward. Caps are in MiB, as DDP's bucket_cap_mb; the first bucket has the
same cap, or 1 MiB if --bucket-cap-mb is not given, as in DDP.

exit code: 0 predicted, 2 the input cannot be used
"""
_LAYERS, _MIB_PER_LAYER, _BACKWARD_MS = 24, 4.0, 60.0  # what stands for a model when none is given


@dataclass(frozen=True)
class _Plan:
    """One bucket cap and the step that it gives."""

    cap_bytes: int
    first_cap_bytes: int
    step: Step

    @property
    def label(self) -> str:
        cap = f"{self.cap_bytes / MIB:.6g}"
        return cap if self.first_cap_bytes == self.cap_bytes else f"{cap}, first {self.first_cap_bytes / MIB:.6g}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    from_zero, positive, whole = number("a number", 0, 1e12), number("a number", 1e-9, 1e12), _whole
    model = parser.add_argument_group("the model: a file, or equal layers")
    model.add_argument(
        "--gradients", metavar="FILE", type=Path, help="JSON: a list of [ready_ms, bytes], one per gradient"
    )
    model.add_argument("--layers", metavar="N", type=whole, help=f"number of equal layers (default: {_LAYERS})")
    size = model.add_mutually_exclusive_group()
    size.add_argument(
        "--mib-per-layer", metavar="MIB", type=positive, help=f"gradients of a layer (default: {_MIB_PER_LAYER:g})"
    )
    size.add_argument("--total-mib", metavar="MIB", type=positive, help="gradients of all layers")
    model.add_argument("--forward-ms", metavar="MS", type=from_zero, default=30.0, help="one forward (default: 30)")
    model.add_argument(
        "--backward-ms",
        metavar="MS",
        type=from_zero,
        help=f"one backward (default: {_BACKWARD_MS:g}; with --gradients: until the last is ready)",
    )
    model.add_argument("--optimizer-ms", metavar="MS", type=from_zero, default=0.0, help="the optimizer (default: 0)")
    link = parser.add_argument_group("the network")
    link.add_argument("--ranks", metavar="N", type=whole, default=8, help="world size (default: 8)")
    link.add_argument(
        "--latency-us", metavar="US", type=from_zero, default=20.0, help="latency of one hop (default: 20)"
    )
    link.add_argument(
        "--gbit-per-s", metavar="GBIT", type=positive, default=25.0, help="rate of one rank's link (default: 25)"
    )
    link.add_argument(
        "--algorithm",
        choices=ALGORITHMS,
        default="ring",
        help="of the all-reduce (default: ring); nccl: ring or tree, whichever NCCL would take for each bucket",
    )
    step = parser.add_argument_group("the step")
    step.add_argument("--bucket-cap-mb", metavar="MIB", type=_cap, nargs="+", help="one cap, or several to compare")
    step.add_argument("--accumulation", metavar="K", type=whole, default=1, help="micro-batches per step (default: 1)")
    step.add_argument("--no-overlap", action="store_true", help="send everything after the backward")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_simulate)


def _whole(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= 7 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 9999999")
    return int(text)


def _cap(text: str) -> int:
    return max(1, round(number("a cap in MiB", 1e-9, 1e12)(text) * MIB))


def _simulate(arguments: argparse.Namespace) -> int:
    gradients = _gradients(arguments)
    link = Link(
        arguments.latency_us / 1e6, arguments.gbit_per_s * 1e9 / 8, arguments.ranks, algorithm=arguments.algorithm
    )
    last_ms = gradients[-1][0] * 1e3
    backward_ms = max(arguments.backward_ms, last_ms) if arguments.backward_ms is not None else last_ms
    if arguments.backward_ms is not None and arguments.backward_ms < last_ms * (1 - 1e-12):
        raise BadInput(
            f"--backward-ms {arguments.backward_ms:g} is before the last gradient is ready; give {last_ms:g} or more"
        )
    caps = [(cap, cap) for cap in dict.fromkeys(arguments.bucket_cap_mb or ())]
    plans = [
        _Plan(
            cap,
            first,
            simulate_step(
                arguments.forward_ms / 1e3,
                gradients,
                bucketed(gradients, cap, first),
                link,
                backward_s=max(backward_ms / 1e3, gradients[-1][0]),
                optimizer_s=arguments.optimizer_ms / 1e3,
                overlap=not arguments.no_overlap,
                accumulation=arguments.accumulation,
            ),
        )
        for cap, first in caps or [(DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES)]
    ]
    best = min(plans, key=lambda plan: plan.step.step_s)
    if arguments.json:
        print_json(_as_json(arguments, gradients, link, plans, plans.index(best)))
    else:
        print(_as_text(arguments, gradients, plans, best))
    return 0


# -- the gradients ------------------------------------------------------------------------------------


def _gradients(arguments: argparse.Namespace) -> list[Gradient]:
    if arguments.gradients is None:
        layers = arguments.layers or _LAYERS
        if layers > 100_000:
            raise BadInput(f"--layers {layers} is more than 100000; merge layers, or give --gradients FILE")
        mib = arguments.total_mib / layers if arguments.total_mib else arguments.mib_per_layer or _MIB_PER_LAYER
        backward_ms = _BACKWARD_MS if arguments.backward_ms is None else arguments.backward_ms
        return equal_layers(layers, round(mib * MIB), backward_ms / 1e3)
    for name in ("layers", "mib_per_layer", "total_mib"):
        if getattr(arguments, name) is not None:
            raise BadInput(f"--{name.replace('_', '-')} describes equal layers; leave it out with --gradients")
    return read_gradients(arguments.gradients)


# -- the answer ---------------------------------------------------------------------------------------


def _as_json(
    arguments: argparse.Namespace, gradients: list[Gradient], link: Link, plans: list[_Plan], best: int
) -> dict[str, Any]:
    step = plans[0].step
    return {
        "link": {name: value for name, value in asdict(link).items() if name not in ("residual", "segment_bytes")},
        "gradients": len(gradients),
        "bytes": sum(nbytes for _, nbytes in gradients),
        "accumulation": arguments.accumulation,
        "overlap": not arguments.no_overlap,
        "forward_ms": step.forward_s * 1e3,
        "backward_ms": step.backward_s * 1e3,
        "optimizer_ms": step.optimizer_s * 1e3,
        "no_communication_ms": step.compute_s * 1e3,
        "lower_bound_ms": step.lower_bound_s * 1e3,
        "best": best,
        "plans": [
            {
                "bucket_cap_mb": plan.cap_bytes / MIB,
                "first_bucket_cap_mb": plan.first_cap_bytes / MIB,
                "buckets": len(plan.step.timeline),
                "step_ms": plan.step.step_s * 1e3,
                "communication_ms": plan.step.communication_s * 1e3,
                "exposed_ms": plan.step.exposed_s * 1e3,
                "overlapped_ms": plan.step.overlapped_s * 1e3,
                "timeline": [
                    {
                        "bucket": transfer.bucket,
                        "bytes": transfer.nbytes,
                        "ready_ms": transfer.ready_s * 1e3,
                        "start_ms": transfer.start_s * 1e3,
                        "end_ms": transfer.end_s * 1e3,
                    }
                    for transfer in plan.step.timeline
                ],
            }
            for plan in plans
        ],
    }


def _as_text(arguments: argparse.Namespace, gradients: list[Gradient], plans: list[_Plan], best: _Plan) -> str:
    total_mib = sum(nbytes for _, nbytes in gradients) / MIB
    ranks = f"{arguments.ranks} rank{'s' * (arguments.ranks > 1)}"
    hop = f"{arguments.latency_us:g} µs a hop, {arguments.gbit_per_s:g} Gbit/s"
    lines = [f"{len(gradients)} gradients, {short(total_mib)} MiB; {ranks}, {arguments.algorithm}, {hop}", ""]
    rows = [["cap MiB", "buckets", "step ms", "communication ms", "hidden ms", "exposed ms"]]
    for plan in plans:
        step = plan.step
        times = (step.step_s, step.communication_s, step.overlapped_s, step.exposed_s)
        rows.append([plan.label, str(len(step.timeline)), *(short(seconds * 1e3) for seconds in times)])
    shown = table(rows)
    if len(plans) > 1:
        shown[1 + plans.index(best)] += "  <- best"
    lines += [
        *shown,
        "",
        f"no communication {short(best.step.compute_s * 1e3)} ms, "
        f"no buckets take less than {short(best.step.lower_bound_s * 1e3)} ms, "
        f"without overlap {short(best.step.serial_s * 1e3)} ms",
        "",
        f"cap {best.label} MiB:" if len(plans) > 1 else "one step:",
        *timeline(best.step, arguments.accumulation),
    ]
    return "\n".join(lines)
