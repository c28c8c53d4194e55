"""``ddplab tune-buckets MODULE:FUNCTION``: measure a model on real ranks, recommend a ``bucket_cap_mb``."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..runtime.environment import adopt_srun_variables
from ..runtime.group import gpus_differ, join_group, leave_group
from ..runtime.launcher import LaunchError, launch
from . import number, print_json

_SUMMARY = "measure your model on real ranks, recommend a bucket_cap_mb"
_EXAMPLE = """\
FUNCTION takes nothing. It returns the model, not wrapped in DistributedDataParallel, and one batch:

  # train.py
  def build():
      model = TinyTransformer(layers=12)
      batch = (torch.randint(50257, (8, 512)), torch.randint(50257, (8, 512)))
      def loss(model, batch):                      # optional: the forward and the loss of one step
          tokens, targets = batch
          return cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
      return model, batch, loss

Without a loss function the model is called with the batch: a tuple as arguments, a dictionary as keywords, anything
else as the one argument. Its output is the loss if it is one number, or has one under the name "loss" (as the models
of Hugging Face); of another tensor the mean of its squares is taken, for a backward takes as long for any loss.
The function is called on every rank; model and batch are moved to the rank's device.

examples:
  ddplab tune-buckets train:build                          ranks as ddplab.launch makes them: one per GPU, or 2
  ddplab tune-buckets train:build --caps 5 25 100 --plot caps.svg
  torchrun --nproc-per-node 8 -m ddplab tune-buckets train:build --json
  srun python -m ddplab tune-buckets train:build           more nodes: export MASTER_ADDR first
  ddplab tune-buckets train:build --emulate-link 2000,0.3  as if the ranks had a link of 2 ms and 0.3 Gbit/s

exit code: 0 measured, 2 the input cannot be used
"""
_PLOTS = (".svg", ".png", ".pdf")
_START_S = 300.0  # for starting the ranks and building the model, beside --seconds


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "tune-buckets",
        help=_SUMMARY,
        description=f"{_SUMMARY[0].upper()}{_SUMMARY[1:]}.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("target", metavar="MODULE:FUNCTION", type=_target, help="what builds your model and a batch")
    parser.add_argument(
        "--ranks", metavar="N", type=_ranks, help="ranks to start here (default: one per GPU, or 2); not with torchrun"
    )
    parser.add_argument(
        "--caps",
        metavar="MIB",
        type=number("a cap in MiB", 1e-6, 1e6),
        nargs="+",
        default=[],
        help="measure these caps, and the default (default: the predicted best, and those around it)",
    )
    parser.add_argument(
        "--seconds",
        type=number("a number of seconds", 1e-3, 1e6),
        default=20.0,
        help="how long to measure, without the start of the ranks (default: 20)",
    )
    parser.add_argument(
        "--emulate-link",
        metavar="LATENCY_US,GBIT",
        type=_link,
        help="play a link of this latency (µs) and rate (Gbit/s) instead of the real one",
    )
    parser.add_argument("--plot", metavar="FILE", type=_plot, help=f"draw step time over cap: {', '.join(_PLOTS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_tune)


def _target(text: str) -> str:
    module, colon, function = text.partition(":")
    if module.endswith(".py") or "/" in module:
        module = module.removesuffix(".py").strip("./").replace("/", ".")
        raise argparse.ArgumentTypeError(f"{text!r} names a file; give its module: {module}:{function or 'FUNCTION'}")
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:FUNCTION, as in train:build")
    return text


def _ranks(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= 3 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 2 to 999")
    if int(text) == 1:
        raise argparse.ArgumentTypeError("1 rank has nobody to all-reduce with, so no bucket matters; give 2 or more")
    return int(text)


def _link(text: str) -> tuple[float, float]:
    latency, comma, rate = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"{text!r} is not LATENCY_US,GBIT, as in 500,1")
    latency_us = number("a latency in µs", 0, 1e6)(latency)
    return latency_us / 1e6, number("a rate in Gbit/s", 1e-4, 1e6)(rate) * 1e9 / 8


def _plot(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _PLOTS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {', '.join(_PLOTS)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {path.absolute().parent} is no folder for it")
    return path


def _tune(arguments: argparse.Namespace) -> int:
    terminal = None
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with contextlib.suppress(OSError):
            terminal = os.ttyname(sys.stderr.fileno())
    task = (arguments.target, os.getcwd(), tuple(arguments.caps), arguments.seconds, arguments.emulate_link, terminal)
    with _cleared(terminal):
        found = _on_ranks_that_are_there(arguments, task) if adopt_srun_variables() else _on_new_ranks(arguments, task)
    if found is None:
        return 0  # another rank speaks
    if arguments.plot:
        draw(found)[0].savefig(arguments.plot)
    if arguments.json:
        print_json(found)
    else:
        print(as_text(found))
        if arguments.plot:
            print(f"\nThe plot is in {arguments.plot}.")
    return 0


@contextlib.contextmanager
def _cleared(terminal: str | None) -> Iterator[None]:
    """A line for the progress bar, which is gone afterwards."""
    if terminal is not None:
        print("\rstarting ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if terminal is not None:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# -- the ranks ----------------------------------------------------------------------------------------


def _on_new_ranks(arguments: argparse.Namespace, task: tuple[Any, ...]) -> dict[str, Any]:
    bound_s = arguments.seconds * 2 + _START_S
    try:
        ranks: list[dict[str, Any]] = launch(_on_a_rank, arguments.ranks, *task, timeout_s=bound_s, quiet=True)
    except LaunchError as error:
        raise BadInput(_one_line(str(error))) from None
    return ranks[0]


def _on_a_rank(*task: Any) -> dict[str, Any]:
    from ..model import tuning  # imports torch, which the parent does not need

    return tuning.tune(*task)


def _one_line(failure: str) -> str:
    """What a LaunchError says, without the traceback."""
    found = re.search(r"^[\w.]*\.NoTuning: (.+)$", failure, re.MULTILINE)
    if found:
        return found[1]
    first, *more = failure.splitlines()
    if " still ran after " in first:
        return f"{first}; one of them hangs, maybe in your function or its model; try with fewer --seconds"
    return f"{first} {more[-1] if 'Traceback' in failure else more[0]}"


def _on_ranks_that_are_there(arguments: argparse.Namespace, task: tuple[Any, ...]) -> dict[str, Any] | None:
    """Run as one rank of those that torchrun or srun started; only rank 0 returns something to say."""
    told = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    wrong = [name for name, value in told.items() if not (value.isdecimal() or (name == "MASTER_ADDR" and value))]
    rank, world = (int(told[name]) if told[name].isdecimal() else 0 for name in ("RANK", "WORLD_SIZE"))
    problem = None
    if wrong:
        problem = (
            f"RANK is set, so a launcher started this, but {wrong[0]} is {told[wrong[0]]!r}: use torchrun, or export "
            f"{wrong[0]} before srun; to start ranks here, unset RANK"
        )
    elif world == 1:
        problem = "1 rank has nobody to all-reduce with, so no bucket matters; start 2 or more"
    elif arguments.ranks not in (None, world):
        problem = f"--ranks {arguments.ranks}, but {world} ranks are started; leave --ranks out"
    if problem is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # Python would not hear it while it waits in a collective
        found, problem = _as_rank(rank, arguments.seconds * 2 + _START_S, task)
        if problem is None:
            return found if rank == 0 else None
    if rank == 0:
        raise BadInput(problem)
    sys.exit(2)


def _as_rank(rank: int, bound_s: float, task: tuple[Any, ...]) -> tuple[dict[str, Any] | None, str | None]:
    """Tune as one rank; return what was found, or the problem that all ranks have. Standard output stays clean."""
    import torch.distributed as dist

    from ..model import tuning

    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2 if rank == 0 else os.open(os.devnull, os.O_WRONLY), 1)
    found = problem = None
    try:
        rendezvous = dist.rendezvous("env://", timeout=datetime.timedelta(seconds=bound_s))  # type: ignore[attr-defined]
        store, rank, world = next(rendezvous)
        join_group(store, rank, world, bound_s, "nccl" if gpus_differ(store, rank, world) else "gloo")
        try:
            found = tuning.tune(*task)
        except tuning.NoTuning as error:
            if not error.everywhere:
                raise
            problem = str(error)
        leave_group()
    except Exception as error:  # the others do not know: leave at once, so that the launcher ends them
        words = str(error) if isinstance(error, tuning.NoTuning) else f"{type(error).__name__}: {error}"
        print(f"ddplab: rank {rank}: {' '.join(words.split())[:600]}", file=sys.stderr, flush=True)
        os._exit(2)
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
    return found, problem


# -- the answer ---------------------------------------------------------------------------------------


def as_text(found: dict[str, Any]) -> str:
    """Return the answer of ``--json`` as a table, and the recommendation below it."""
    link, device = found["link"], found["device"]
    size = f"{len(found['gradients'])} gradients, {_three(found['bytes'] / 2**20)} MiB"
    off = f"median error of the fit {100 * link['residual']:.1f} %"
    rate = f"{_three(link['gbit_per_s'])} Gbit/s" if link["gbit_per_s"] else "bytes cost nothing that shows"
    kind = "emulated link" if link["emulated"] else f"link (as a {link['algorithm']})"
    rows = [["cap MiB", "buckets", "predicted ms", "measured ms", "middle half", "vs default"]]
    for seen in found["measured"]:
        low, high = seen["middle_half_ms"]
        is_default = seen["bucket_cap_mb"] is None
        rows.append(
            [
                "default" if is_default else f"{seen['bucket_cap_mb']:g}",
                str(len(seen["bucket_bytes"])),
                _three(seen["predicted_ms"]),
                _three(seen["median_ms"]),
                f"{_three(low)} to {_three(high)}",
                "" if is_default else f"{seen['against_default_ms']:+.2f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    best = found["recommended"]["bucket_cap_mb"]
    chosen = next(i for i, seen in enumerate(found["measured"], 1) if seen["bucket_cap_mb"] == best)
    table[chosen] += "  <- recommended"
    lines = [
        f"{found['target']}: {size}; {found['ranks']} ranks, {found['backend']} on {device}, torch {found['torch']}",
        f"forward {_three(found['forward_ms'])} ms, backward {_three(found['backward_ms'])} ms",
        f"{kind}: {_three(link['latency_us'])} µs, {rate}; {off}",
        "",
        *table,
        "",
        *(textwrap.fill(line, 96) for line in [_recommendation(found), *found["notes"]]),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _recommendation(found: dict[str, Any]) -> str:
    advice = found["recommended"]
    best, verdict = advice["best_bucket_cap_mb"], advice["verdict"]
    if best is None:
        return "Keep the default: for this model every cap gives the same buckets."
    default_ms = found["measured"][0]["median_ms"]
    gain = f"{abs(advice['gain_ms']):.2f} ms ({abs(advice['gain_ms']) / default_ms:.1%})"
    gain += f" {'less' if advice['gain_ms'] > 0 else 'more'} than the default"
    between = f"over {advice['rounds']} rounds"
    if advice["low_ms"] is not None:
        between = f"99 % interval {advice['low_ms']:.2f} to {advice['high_ms']:.2f} ms saved, {between}"
    if verdict == "clear":
        return f"Clear: use bucket_cap_mb={best:g}. A step takes {gain}; {between}."
    if verdict == "default is best":
        return f"Keep the default: nothing measured is 1 % faster. With {best:g} MiB a step takes {gain}; {between}."
    return f"Within noise: keep the default. With {best:g} MiB a step takes {gain}; {between}."


def _three(value: float) -> str:
    return f"{value:.1f}" if value >= 10 or value == 0 else f"{value:.3g}"


def draw(found: dict[str, Any]) -> tuple[Any, Any]:
    """Draw step time over cap: predicted as a line, measured as marks with their middle half; return figure and axes.

    ``found`` is the answer of ``--json``. The default, which has two caps, is drawn across.
    """
    from ..labs.plotting import ACCENT, INK, MUTED, RANK_COLORS, describe, subplots

    fig, ax = subplots(height_in=3.2)
    describe(fig, f"Step time of {found['target']} over bucket_cap_mb, predicted and measured")
    line = sorted((p["bucket_cap_mb"], p["predicted_ms"]) for p in found["predicted"] if p["bucket_cap_mb"] is not None)
    default, *others = found["measured"]
    low, high = default["middle_half_ms"]
    ax.axhspan(low, high, color=MUTED, alpha=0.25, lw=0)
    ax.axhline(default["median_ms"], color=INK, ls="--", lw=1.2, label="default, measured (band: middle half)")
    ax.axhline(found["lower_bound_ms"], color=MUTED, ls=":", lw=1.2, label="no buckets can beat this")
    if line:
        ax.plot(*zip(*line, strict=True), color=RANK_COLORS[0], lw=1.4, label="predicted")
    if others:
        caps, middles = [o["bucket_cap_mb"] for o in others], [o["median_ms"] for o in others]
        spans = [
            [m - o["middle_half_ms"][0] for m, o in zip(middles, others, strict=True)],
            [o["middle_half_ms"][1] - m for m, o in zip(middles, others, strict=True)],
        ]
        marks = {"fmt": "o", "ms": 5, "color": RANK_COLORS[1], "capsize": 3}
        ax.errorbar(caps, middles, spans, **marks, label="measured: median, middle half")
        best = found["recommended"]["bucket_cap_mb"]
        if best is not None:
            at = middles[caps.index(best)]
            ax.plot(best, at, "o", ms=12, mfc="none", mec=ACCENT, mew=1.8, label="recommended")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:.3g}")
    ax.set(xlabel="bucket_cap_mb (MiB)", ylabel="forward and backward (ms)")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=8.5)
    return fig, ax
