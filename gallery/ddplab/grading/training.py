"""What graders of a training loop share: DDP's own all-reduces made visible, slow saves, and weights compared."""

import contextlib
import functools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms import join
from torch.nn.parallel import DistributedDataParallel

from .calls import Recorder, read_log
from .checks import Wrong, expect

Weights = dict[str, Tensor]

# What torch raises after a fix that does not work, and why it does not.
_HINTS = {
    "Expected to have finished reduction": (
        "In the step before, this rank's loss left a parameter out. DDP waits for the gradient of every parameter, on "
        "every rank, so this rank launched no all-reduce, and the other ranks still wait for it.",
        "fault-unused-parameter",
    ),
    "Your training graph has changed": (
        "`static_graph=True` promises that each step uses the same parameters as the first; here the data decide.",
        "fault-static-graph-changes",
    ),
    "Missing key(s) in state_dict": (
        "`strict` did its job: the saved names differ from those of the model. The wrapper's names begin with "
        "`module.`; save those of the wrapped module.",
        "fault-module-prefix",
    ),
}


@dataclass
class Reductions:
    """What DDP on this rank put into its all-reduces, in order."""

    sent: list[Tensor] = field(default_factory=list)


@contextlib.contextmanager
def visible_ddp() -> Iterator[Reductions]:
    """Make each DDP that is built inside reduce its buckets with ``dist.all_reduce``, which the recorder sees.

    A rank that waits forever in ``backward`` is then found by its calls, not by a timeout. The calls with which
    ``join()`` counts the ranks stay hidden: DDP needs torch's own handles for them.
    """
    seen, init = Reductions(), DistributedDataParallel.__init__

    def reduce(
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        seen.sent.append(buffer.detach().cpu().clone())
        dist.all_reduce(buffer.div_(group.size()), group=group)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    @functools.wraps(init)
    def with_hook(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.register_comm_hook(self.process_group, reduce)

    unseen = SimpleNamespace(**{**vars(dist), "all_reduce": dist.distributed_c10d.all_reduce})
    DistributedDataParallel.__init__ = with_hook  # type: ignore[method-assign]
    vars(join)["dist"] = unseen
    try:
        yield seen
    finally:
        vars(join)["dist"] = dist
        DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


@contextlib.contextmanager
def slow_saves(recorder: Recorder, gone: str) -> Iterator[list[str]]:
    """Make ``torch.save`` start only when the others wait for this rank, save too, or are gone; at most 2 s later.

    Args:
        recorder: of this rank; a rank that has made a call more than this one waits.
        gone: the caller creates ``<rank>.<gone>`` in the recorder's folder when its rank is gone.

    Yields:
        The files that this rank has saved.
    """
    saved: list[str] = []
    save, others = torch.save, set(range(dist.get_world_size())) - {dist.get_rank()}

    def ready(other: int, made: int) -> bool:
        calls, _ = read_log(recorder.folder / f"{other}.calls")
        return len(calls) > made or any(
            (recorder.folder / f"{other}.{end}").exists() for end in (gone, f"{gone}-saves")
        )

    def slow_save(what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        saved.append(str(getattr(file, "name", file)))
        (recorder.folder / f"{dist.get_rank()}.{gone}-saves").touch()
        made, deadline = len(recorder.calls), time.monotonic() + 2
        while time.monotonic() < deadline and not all(ready(other, made) for other in others):
            time.sleep(0.01)
        save(what, file, *args, **kwargs)

    torch.save = slow_save  # type: ignore[assignment]
    try:
        yield saved
    finally:
        torch.save = save


@contextlib.contextmanager
def explained(learner: ModuleType) -> Iterator[None]:
    """Explain what a familiar error of torch means here, and which line of the learner raised it."""
    try:
        yield
    except Exception as error:
        for words, (hint, read) in _HINTS.items():
            if words in str(error):
                line, trace = 0, error.__traceback__
                while trace is not None:
                    line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == learner.__file__ else line
                    trace = trace.tb_next
                sentence = next(part for part in re.split(r"\.\s|\n", str(error)) if words in part).strip()
                raised = f"Rank {dist.get_rank()} raised {type(error).__name__} at line {line}: “{sentence}”."
                raise Wrong(f"{raised} {hint}", read) from error
        raise


def filled(module: nn.Module, seed: int) -> nn.Module:
    """Give ``module`` weights in double precision that depend on the seed alone."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        module.double()
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=numbers, dtype=p.dtype))
    return module


def weights(module: nn.Module) -> Weights:
    """Return a copy of the weights, by name, on the CPU."""
    return {name: p.detach().cpu().clone() for name, p in module.named_parameters()}


def same(a: Weights, b: Weights) -> bool:
    """Return whether two sets of weights are equal up to rounding."""
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], rtol=1e-9, atol=1e-12) for n in a)


def expect_one_model(held: Sequence[Weights], start: Weights | None, hint: str, read: str = "idea-equality") -> None:
    """Raise unless all ranks hold the same finite weights, which differ from those that training started with."""
    for rank, mine in enumerate(held):
        for name, value in mine.items():
            expect(bool(value.isfinite().all()), f"At the end `{name}` on rank {rank} holds NaN or inf. {hint}", read)
            expect(
                torch.allclose(value, held[0][name], rtol=1e-9, atol=1e-12),
                f"The ranks end with different weights: `{name}` on rank {rank} differs from rank 0's, so at least one "
                f"step used a gradient that the ranks do not share. {hint}",
                read,
            )
    expect(start is None or not same(held[0], start), f"The weights did not change: nothing was trained. {hint}")
