"""``ddplab tune-buckets MODULE:FUNCTION``: measure a model on real ranks, recommend a ``bucket_cap_mb``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from . import need, need_ranks, number, print_json
from .tune_report import as_text as as_text  # a lab takes both from here: it shows what this command prints
from .tune_report import draw as draw

EXAMPLE = """\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
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
        help="emulate a link of this latency (µs) and rate (Gbit/s) instead of using the real one",
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
        raise argparse.ArgumentTypeError("1 rank all-reduces nothing, so bucket_cap_mb changes nothing; use 2 or more")
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
        raise argparse.ArgumentTypeError(
            f"cannot write {text!r}: it is a folder, or {path.absolute().parent} is not one"
        )
    return path


def _tune(arguments: argparse.Namespace) -> int:
    need_ranks("tune-buckets")
    if arguments.plot:
        need("matplotlib", "tune-buckets --plot")
    from .tune_ranks import answer_of_ranks  # imports what starts ranks

    terminal = None
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with contextlib.suppress(OSError):
            terminal = os.ttyname(sys.stderr.fileno())
    task = (arguments.target, os.getcwd(), tuple(arguments.caps), arguments.seconds, arguments.emulate_link, terminal)
    with _cleared(terminal):
        found = answer_of_ranks(arguments.ranks, arguments.seconds * 2 + _START_S, task)
    if found is None:
        return 0  # rank 0 prints the answer
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
