"""Checks of the training script: its functions on the grader's ranks, then ranks of its own.

What each rank trains on is seen by the model: each input holds the number of its sample. Models
write that to files, so that processes which the learner's file starts are seen as well.
"""

import contextlib
import io
import json
import linecache
import multiprocessing
import os
import resource
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import context, forkserver
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import (  # as they are, unseen by the recorder
    barrier,
    broadcast_object_list,
)
from torch.utils.data import Dataset

from ddplab.grading.checks import Wrong, check, expect
from ddplab.grading.ports import free_port
from ddplab.grading.recorder import Recorder

SAMPLERS = "setup-samplers"
GROUP = "setup-process-group"
HOME = "setup-exercise"
LR = 0.125
# Kept until the process ends. gloo can hang when DDP, freed after `destroy_process_group`, takes
# the group along (torch 2.13): that is not what is graded here.
GROUPS: list[Any] = []

VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)

# What torch says when a familiar line is missing, and which.
HINTS = {
    "default process group twice": (
        "This process has a group already: `train_ddp` calls `setup_ddp` once, nothing else does, and `cleanup_ddp` "
        "must end the group.",
        GROUP,
    ),
    "process group has not been initialized": (
        "DDP, samplers and collectives need the group: `setup_ddp` comes first, `cleanup_ddp` last.",
        GROUP,
    ),
    "Process group cannot be None": (
        "There is no group to leave: `setup_ddp` makes it, with `dist.init_process_group`.",
        GROUP,
    ),
    "EADDRINUSE": (
        "Another program listens at that port: let the system choose a free one in `launch_distributed` (bind port "
        "0), and pass it on.",
        GROUP,
    ),
    "expected, but not set": (
        "Nobody has set the variables of torchrun here: give rank, world size and port to `init_process_group` "
        "yourself.",
        GROUP,
    ),
    "Invalid rank": (
        "A world size is written into the code; it is an argument, and the group knows it.",
        SAMPLERS,
    ),
    "pickle": (
        "A started process gets its arguments pickled: give it a function of the top level, no lambda and no inner "
        "function.",
        HOME,
    ),
}


# -- what is trained ----------------------------------------------------------------------------


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs x, y in double precision; x[0] is the sample's number over their count."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:  # noqa: D105
        return self.length

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: D105
        if not 0 <= i < self.length:
            raise IndexError(i)
        x = torch.tensor([i / self.length, i * i % 7 / 7], dtype=torch.float64)
        return x, torch.tensor([(i * i * i % 11) / 11 - 0.3 * (i % 3)], dtype=torch.float64)


class Model(nn.Module):
    """A linear model that writes down what it is trained on."""

    def __init__(self, log: Path, length: int, seed: int, fails: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, dtype=torch.float64)
        numbers = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=numbers, dtype=p.dtype))
        self.log, self.length, self.fails = log, length, fails
        self.note(built=weights_of(self))

    def note(self, **what: Any) -> None:
        """Add a line to the file of this process."""
        with (self.log / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the prediction."""
        if torch.is_grad_enabled():
            ids = [round(number * self.length) for number in x[:, 0].tolist()]
            grouped = dist.is_initialized()
            rank, world = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
            if grouped and not GROUPS:
                GROUPS.append(dist.group.WORLD)
            if self.fails and rank == 1:
                raise RuntimeError("rank 1 fails on purpose")
            self.note(rank=rank, world=world, ids=ids)
        result: torch.Tensor = self.layer(x)
        return result


@dataclass
class BuildModel:
    """A `build_model`: other weights for other seeds."""

    log: Path
    length: int
    seed: int = 0
    fails: bool = False
    launches: int = 1  # that are to be at work together
    models: list[Model] = field(default_factory=list)

    def __call__(self) -> Model:
        """Build a model, once all launches have come so far, or one has failed."""
        (self.log.parent / "built").touch()
        until = time.monotonic() + TOGETHER_S
        begun = self.log.parent.parent
        while len(list(begun.glob("*/built"))) < self.launches and time.monotonic() < until:
            time.sleep(0.01)
        self.models.append(Model(self.log, self.length, self.seed, self.fails))
        return self.models[-1]


def weights_of(module: nn.Module) -> list[float]:
    """Return all weights, as numbers."""
    return [w for p in module.parameters() for w in p.detach().flatten().tolist()]


# -- in a rank of the grader --------------------------------------------------------------------


@contextlib.contextmanager
def explained(learner: ModuleType) -> Iterator[None]:
    """Explain what torch says of a familiar mistake."""
    try:
        yield
    except Wrong:
        raise
    except Exception as error:
        for words, (hint, read) in HINTS.items():
            if words.lower() in str(error).lower():
                raise Wrong(f"{_first_line(error, learner)} {hint}", read) from error
        raise


def _first_line(error: BaseException, learner: ModuleType) -> str:
    """What was raised and where, in a line; from a started process its own traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    places = [
        f"line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == learner.__file__
    ]
    if "Traceback (most recent call last):" in str(error):  # of a started process
        at = [line.split(",")[1].strip() for line in lines if 'learner.py", line' in line]
        last = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])
        return f"A process that you started ended with {last[:300]}, at {(at or ['?'])[-1]}."
    text = f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
    return f"{text}, at {(places or ['?'])[-1]}."


def meet() -> int:
    """Agree on a free port; leave the grader's group and forget the variables of its launcher."""
    port = [free_port()]
    if dist.get_world_size() > 1:
        broadcast_object_list(port, src=0)
    barrier()
    dist.destroy_process_group()
    for name in VARIABLES:
        os.environ.pop(name, None)
    return port[0]


def taken(port: int) -> bool:
    """Return whether somebody listens at the port."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False


@dataclass
class Seen:
    """What a rank has seen of one training."""

    log: Path
    returned: Any
    weights: list[float]  # at the end
    complete: bool  # the file was there when `train_ddp` returned
    grouped: bool  # the process still had a group then
    saves: int
    printed: str


def train(learner: ModuleType, recorder: Recorder, length: int, epochs: int, batch_size: int) -> Seen:
    """Call `train_ddp` on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    port = meet()
    log, folder = recorder.folder / "log", recorder.folder / "out"
    log.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    build, saves, save = BuildModel(log, length, seed=rank + 1), [], torch.save

    def slow_save(*args: Any, **kwargs: Any) -> None:
        saves.append(args)
        time.sleep(0.4)
        save(*args, **kwargs)

    torch.save = slow_save
    job = (Samples(length), build, folder, epochs, batch_size, LR)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said, explained(learner):
            returned = learner.train_ddp(rank, world, port, *job)
    finally:
        torch.save = save
    complete = (folder / "model.pt").exists()
    grouped = dist.is_initialized()
    if grouped:
        dist.destroy_process_group()
    expect(build.models, "`train_ddp` never called `build_model()`.")
    if isinstance(returned, torch.Tensor):
        returned = returned.tolist()
    if isinstance(returned, list | tuple):
        returned = [x.item() if isinstance(x, torch.Tensor) else x for x in returned]
    print(said.getvalue(), end="")
    return Seen(
        log,
        returned if isinstance(returned, list) else repr(returned),
        weights_of(build.models[-1]),
        complete,
        grouped,
        len(saves),
        said.getvalue(),
    )


# -- judging what they trained on ---------------------------------------------------------------


def read_logs(log: Path) -> list[dict[str, Any]]:
    """Return what the models of each process wrote: built, rank, world and steps."""
    found = []
    for path in sorted(log.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps = [line for line in lines if "ids" in line]
        found.append(
            {
                "pid": int(path.stem),
                "built": next(line["built"] for line in reversed(lines) if "built" in line),
                "rank": steps[0]["rank"] if steps else -1,
                "world": steps[0]["world"] if steps else 0,
                "steps": [line["ids"] for line in steps],
            }
        )
    return sorted(found, key=lambda one: one["rank"])


def steps_of(seen: list[Seen], ranks: int) -> list[list[list[int]]]:
    """Return the steps of each rank, each a list of samples."""
    logs = read_logs(seen[0].log)
    idle = ranks - sum(bool(one["steps"]) for one in logs)
    expect(not idle, f"{idle} of {ranks} ranks trained on nothing.", HOME)
    ranks_seen = [one["rank"] for one in logs]
    expect(
        ranks_seen == list(range(ranks)),
        f"The ranks that trained were {ranks_seen}, not 0 to {ranks - 1}: was the group made with the `rank` and "
        "`world_size` that the function got, before the first step?",
        GROUP,
    )
    return [one["steps"] for one in logs]


def judge_samples(length: int, epochs: int, batch_size: int) -> Callable[[list[Seen]], None]:
    """Make a judge: shards are disjoint and complete, and epochs have orders of their own."""

    def judge(seen: list[Seen]) -> None:
        ranks = len(seen)
        steps = steps_of(seen, ranks)
        share = -(-length // ranks)
        read = [[i for step in mine for i in step] for mine in steps]
        largest = max(len(step) for mine in steps for step in mine)
        if any(len(mine) == epochs * length for mine in read):
            raise Wrong(
                f"Each rank trained on all {length} samples in every epoch, so {ranks} ranks do the work of one: give "
                "the loader a `DistributedSampler`.",
                SAMPLERS,
            )
        expect(
            largest == batch_size,
            f"A step has {largest} samples on a rank; `batch_size` is {batch_size}, and counts per rank.",
            SAMPLERS,
        )
        counts = [len(mine) / epochs for mine in read]
        expect(
            counts == [share] * ranks,
            f"Per epoch the ranks trained on {listed(counts)} of {length} samples; each needs {share}. With fewer, "
            "some are never trained on (`drop_last`?); with unequal numbers, one rank waits for a step that the "
            "others do not make.",
            SAMPLERS,
        )
        for epoch in range(epochs):
            now = [mine[epoch * share : (epoch + 1) * share] for mine in read]
            missing = set(range(length)) - {i for mine in now for i in mine}
            same = all(mine == now[0] for mine in now)
            expect(
                not missing,
                f"In epoch {epoch} {len(missing)} of {length} samples were trained on by no rank: "
                + (
                    "all ranks got the same share. Give the sampler this process's own rank, or none: it then asks "
                    "the group."
                    if same
                    else "the shares overlap. Do the ranks deal from different orders? Seed and "
                    "epoch of the sampler must be alike on all ranks."
                ),
                SAMPLERS,
            )
        first, second = ([mine[epoch * share : (epoch + 1) * share] for mine in read] for epoch in (0, 1))
        if first == second:
            ordered = all(mine == sorted(mine) for mine in [one[: share - 1] for one in first])
            raise Wrong(
                "Epochs 0 and 1 have the same order"
                + (
                    ", that of the data: `shuffle=False`."
                    if ordered
                    else ": call `sampler.set_epoch(epoch)` before each epoch's loop."
                ),
                "museum-missing-set-epoch",
            )

    return judge


def listed(numbers: list[float]) -> str:
    """Return the numbers, in words."""
    return ", ".join(f"{n:.5g}" for n in numbers[:-1]) + f" and {numbers[-1]:.5g}"


# -- judging the weights and the loss -----------------------------------------------------------


@dataclass
class Replay:
    """The same steps in one process: final weights of each rank, losses by rank, epoch, step."""

    weights: list[list[float]]
    losses: list[list[tuple[float, int]]]  # by rank: loss and size of each step


def replay(
    starts: list[list[float]],
    steps: list[list[list[int]]],
    length: int,
    *,
    factor: float | None = 1.0,
    accumulate: bool = False,
) -> Replay:
    """Train as the ranks did, each on its steps.

    Args:
        starts: the first weights of each rank.
        steps: the samples of each rank's steps.
        length: of the data set.
        factor: the mean gradient of the ranks is multiplied by it; None: each rank takes its own.
        accumulate: gradients are never set to zero.
    """
    data = Samples(length)
    weights = [torch.tensor(start, dtype=torch.float64) for start in starts]
    kept = [torch.zeros_like(w) for w in weights]
    losses: list[list[tuple[float, int]]] = [[] for _ in starts]
    for number in range(len(steps[0])):
        gradients = []
        for rank, w in enumerate(weights):
            pairs = [data[i] for i in steps[rank][number]]
            x, y = (torch.stack(part) for part in zip(*pairs, strict=True))
            inputs = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
            error = inputs @ w - y.flatten()
            losses[rank].append((error.square().mean().item(), len(x)))
            gradients.append(2 * inputs.T @ error / len(x))
        mean = torch.stack(gradients).mean(dim=0)
        for rank, own in enumerate(gradients):
            gradient = own if factor is None else factor * mean
            if accumulate:  # what is kept is the mean so far, and averaging leaves it
                kept[rank] += gradient
                gradient = kept[rank]
            weights[rank] = weights[rank] - LR * gradient
    return Replay([w.tolist() for w in weights], losses)


def close(a: list[float], b: list[float], rtol: float = 1e-6) -> bool:
    """Return whether the numbers are equal but for rounding."""
    return len(a) == len(b) and all(abs(x - y) <= rtol * max(abs(x), abs(y)) + 1e-9 for x, y in zip(a, b, strict=True))


def judge_weights(length: int) -> Callable[[list[Seen]], None]:
    """Make a judge: the ranks end with the weights of one process that saw every batch whole."""

    def judge(seen: list[Seen]) -> None:
        ranks = len(seen)
        steps = steps_of(seen, ranks)
        starts = [one["built"] for one in read_logs(seen[0].log)]
        equal = [starts[0]] * ranks
        same = [len(mine) for mine in steps] == [len(steps[0])] * ranks
        expect(same, "The ranks made different numbers of steps.", SAMPLERS)
        final = [s.weights for s in seen]
        right = replay(equal, steps, length).weights
        if all(close(f, r) for f, r in zip(final, right, strict=True)):
            return
        symptoms: list[tuple[Replay, str, str]] = [
            (
                replay(starts, steps, length, factor=None),
                "each rank trained its own model: it was never wrapped in `DistributedDataParallel`, or that came "
                "after training",
                "internals-constructor",
            ),
            (
                replay(equal, steps, length, factor=None),
                "the ranks began with equal weights and then trained alone: `ddp.module(x)`, or a call of the model "
                "that you wrapped, goes around DDP. Call `ddp(x)`",
                "museum-calls-the-inner-module",
            ),
            (
                replay(equal, steps, length, factor=ranks),
                f"every step was {ranks} times as long: the gradients were added up, or `lr` was multiplied by "
                f"{ranks}. DDP averages, and `lr` is given",
                "idea-equality",
            ),
            (
                replay(equal, steps, length, factor=1 / ranks),
                f"every step was {ranks} times too short: the gradients, or the loss, were divided by {ranks}, and "
                "DDP has averaged already",
                "museum-averaging-twice",
            ),
            (
                replay(equal, steps, length, accumulate=True),
                "gradients of earlier steps were still there: call `optimizer.zero_grad()` before each backward",
                "internals-no-sync",
            ),
        ]
        apart = max(abs(a - b) for f in final for a, b in zip(f, final[0], strict=True))
        for symptom, says, read in symptoms:
            if all(close(f, r) for f, r in zip(final, symptom.weights, strict=True)):
                raise Wrong(f"The final weights say that {says}. {_numbers(final, right)}", read)
        if all(close(f, starts[r]) for r, f in enumerate(final)) or close(final[-1], starts[0]):
            raise Wrong("The weights never moved: does the optimizer hold the model's parameters?")
        raise Wrong(
            (
                f"The ranks end with different weights, up to {apart:.2g} apart. "
                if apart > 1e-9
                else "The ranks end with equal weights, but not with those of one process that "
                "saw every global batch whole. Plain SGD at `lr`, one step per batch, and `mse_loss` of `ddp(x)`? "
            )
            + _numbers(final, right),
            "idea-equality",
        )

    return judge


def _numbers(final: list[list[float]], right: list[list[float]]) -> str:
    return f"The first weight is {listed([f[0] for f in final])} on the ranks; right is {right[0][0]:.5g}."


def judge_losses(length: int, epochs: int) -> Callable[[list[Seen]], None]:
    """Make a judge: every rank returns the mean loss over all samples."""

    def judge(seen: list[Seen]) -> None:
        ranks = len(seen)
        for rank, s in enumerate(seen):
            good = (
                isinstance(s.returned, list)
                and len(s.returned) == epochs
                and all(isinstance(x, float | int) for x in s.returned)
            )
            expect(
                good,
                f"Rank {rank} returned {str(s.returned)[:80]}; asked for is a list of {epochs} numbers, one per "
                "epoch, on every rank.",
                HOME,
            )
        steps = steps_of(seen, ranks)
        starts = [one["built"] for one in read_logs(seen[0].log)]
        losses = replay([starts[0]] * ranks, steps, length).losses
        size = len(losses[0]) // epochs
        by_epoch = [[mine[e * size : (e + 1) * size] for e in range(epochs)] for mine in losses]
        totals = [[sum(v * n for v, n in e) for e in mine] for mine in by_epoch]
        counts = [[sum(n for _, n in e) for e in mine] for mine in by_epoch]
        means = [[sum(v for v, _ in e) / size for e in mine] for mine in by_epoch]

        def over_ranks(of: list[list[float]]) -> list[float]:
            return [sum(mine[e] for mine in of) for e in range(epochs)]

        share = counts[0][0]
        right = [t / (ranks * share) for t in over_ranks(totals)]
        own = [[t / share for t in mine] for mine in totals]
        last = [[e[-1][0] for e in mine] for mine in by_epoch]
        got = [s.returned for s in seen]
        if all(close(g, right, 1e-4) for g in got):
            return
        local = "It is the loss of this rank's shard, not of the data: sum it over the ranks"
        symptoms = [
            (own, f"{local} with `all_reduce`", "museum-local-loss-as-global"),
            (means, f"{local} with `all_reduce`", "museum-local-loss-as-global"),
            (
                last,
                "It is the last step of this rank, not its epoch: add up over steps and ranks",
                "museum-local-loss-as-global",
            ),
            (
                [over_ranks(own)] * ranks,
                f"It is the sum over the ranks: nobody divided by {ranks}",
                "internals-collectives",
            ),
            (
                [over_ranks(means)] * ranks,
                f"It is the sum over the ranks: nobody divided by {ranks}",
                "internals-collectives",
            ),
            (
                [[m / ranks for m in over_ranks(means)]] * ranks,
                "It is the mean over the steps, and the last step of an epoch is smaller: add up loss × samples, and "
                "divide by the samples",
                "museum-mean-of-token-means",
            ),
            (
                [over_ranks(totals)] * ranks,
                "It is the sum over all samples: divide by their number",
                "idea-equality",
            ),
        ]
        numbers = f"Epoch 0 is {listed([g[0] for g in got])} on the ranks; right is {right[0]:.5g}."
        for values, says, read in symptoms:
            if all(close(g, v, 1e-4) for g, v in zip(got, values, strict=True)):
                raise Wrong(f"{says}. {numbers}", read)
        if close(got[0], right, 1e-4):
            raise Wrong(
                "Rank 0 returns the right loss, the others do not: `reduce` gives the result to one rank, "
                f"`all_reduce` to all. {numbers}",
                "internals-collectives",
            )
        raise Wrong(
            "The losses are none that the usual mistakes give. Each counts with the weights before its step, over all "
            f"samples of all ranks. {numbers}",
            "museum-local-loss-as-global",
        )

    return judge


def judge_outputs(epochs: int) -> Callable[[list[Seen]], None]:
    """Make a judge: one rank prints and saves, all wait, all leave the group."""

    def judge(seen: list[Seen]) -> None:
        folder = seen[0].log.parent / "out"
        for rank, s in enumerate(seen[1:], 1):
            expect(
                not s.saves,
                f"Rank {rank} saves too ({s.saves} calls of `torch.save`): ranks that write one file at the same time "
                "leave a broken one. Ask `if rank == 0:`.",
                HOME,
            )
            expect(
                not s.printed.strip(),
                f"Rank {rank} prints too: on 64 ranks each line comes 64 times. Ask `if rank == 0:`.",
                HOME,
            )
        lines = len([line for line in seen[0].printed.splitlines() if line.strip()])
        expect(
            lines >= epochs,
            f"Rank 0 printed {lines} lines in {epochs} epochs: nobody sees how far it is.",
            HOME,
        )
        expect((folder / "model.pt").exists(), 'There is no `folder / "model.pt"`.', HOME)
        early = [rank for rank, s in enumerate(seen) if not s.complete]
        expect(
            not early,
            f"Rank {early and early[0]} came back from `train_ddp` before `model.pt` was there: whoever reads it next "
            "finds nothing, or half of it. Put `dist.barrier()` behind the save, outside of the `if`.",
            HOME,
        )
        try:
            state = torch.load(folder / "model.pt", map_location="cpu", weights_only=True)
            keys = sorted(state)
        except Exception as error:
            raise Wrong(f"`model.pt` cannot be loaded: {str(error).splitlines()[0]}", HOME) from error
        expect(
            keys == ["layer.bias", "layer.weight"],
            f"`model.pt` has the keys {', '.join(map(str, keys[:3]))}; a model of `build_model()` wants layer.bias, "
            "layer.weight. "
            + (
                "DDP puts `module.` before each: save `ddp.module.state_dict()`."
                if any(str(key).startswith("module.") for key in keys)
                else ""
            ),
            "internals-constructor",
        )
        saved = [w for key in ("layer.weight", "layer.bias") for w in state[key].flatten().tolist()]
        expect(
            close(saved, seen[0].weights),
            "`model.pt` does not hold the weights at the end of training: save after the last step.",
            HOME,
        )
        judge_left(seen)

    return judge


def judge_left(seen: list[Seen]) -> None:
    """Every rank has left the group."""
    for rank, s in enumerate(seen):
        expect(
            not s.grouped,
            f"Rank {rank} still has a process group when `train_ddp` returns: end with `cleanup_ddp()`, which calls "
            "`dist.destroy_process_group()`.",
            GROUP,
        )


# -- checks on the grader's ranks ---------------------------------------------------------------


def judge_group(seen: list[list[dict[str, Any]]]) -> None:
    """Every rank was in a group of its own rank and size, twice, and left it."""
    backend = "nccl" if torch.cuda.device_count() >= len(seen) else "gloo"
    for rank, rounds in enumerate(seen):
        for number, s in enumerate(rounds):
            again = " the second time" * number
            expect(
                s["made"],
                f"After `setup_ddp` rank {rank} has no process group{again}: call `dist.init_process_group`.",
            )
            expect(
                (s["rank"], s["world"]) == (rank, len(seen)),
                f"`setup_ddp({rank}, {len(seen)}, port)` made a group in which this process is rank {s['rank']} of "
                f"{s['world']}{again}.",
            )
            expect(
                s["backend"] == backend,
                f"The backend is {s['backend']}; here it should be {backend}.",
            )
            expect(
                s["taken"],
                f"Nobody listens at the port that `setup_ddp` was given{again}: the ranks met elsewhere. A port in "
                "the code is the one that another job has taken.",
            )
            expect(
                not s["left"],
                f"After `cleanup_ddp` rank {rank} still has a process group{again}: call "
                "`dist.destroy_process_group()`.",
            )


@check("The ranks meet, leave, and meet again", ranks=2, judge=judge_group, read=GROUP)
def group(learner: ModuleType, recorder: Recorder) -> list[dict[str, Any]]:
    """`setup_ddp` and `cleanup_ddp` with one port, then both again with another."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ports = [free_port(), free_port()]
    broadcast_object_list(ports, src=0)
    meet()
    seen = []
    with explained(learner):
        for port in ports:
            learner.setup_ddp(rank, world, port)
            one: dict[str, Any] = {"made": dist.is_initialized(), "taken": taken(port)}
            if one["made"]:
                one |= {"rank": dist.get_rank(), "world": dist.get_world_size()}
                one["backend"] = dist.get_backend()
                if one["world"] == world:
                    barrier()  # so that nobody leaves before all have looked
            learner.cleanup_ddp()
            seen.append(one | {"left": dist.is_initialized()})
            if not one["made"] or dist.is_initialized():
                break
    if dist.is_initialized():
        dist.destroy_process_group()
    return seen


@check(
    "Every sample is trained on, by one rank, in a new order each epoch",
    ranks=3,
    judge=judge_samples(20, 3, 3),
    read=SAMPLERS,
)
def samples(learner: ModuleType, recorder: Recorder) -> Seen:
    """`train_ddp` on three ranks: 20 samples, 3 epochs, 3 samples per rank and step."""
    return train(learner, recorder, 20, 3, 3)


@check(
    "The ranks end with the weights of one process",
    ranks=2,
    judge=judge_weights(20),
    read="idea-equality",
)
def weights(learner: ModuleType, recorder: Recorder) -> Seen:
    """`train_ddp` on two ranks whose models start with other weights: 2 epochs, batches of 4."""
    return train(learner, recorder, 20, 2, 4)


@check(
    "Every rank returns the loss of all samples",
    ranks=2,
    judge=judge_losses(20, 2),
    read="museum-local-loss-as-global",
)
def losses(learner: ModuleType, recorder: Recorder) -> Seen:
    """`train_ddp` on two ranks: 2 epochs of 10 samples each, in steps of 4, 4 and 2."""
    return train(learner, recorder, 20, 2, 4)


@check(
    "Rank 0 prints and saves, all wait for it, and all leave the group",
    ranks=2,
    judge=judge_outputs(2),
    read=HOME,
)
def outputs(learner: ModuleType, recorder: Recorder) -> Seen:
    """`train_ddp` on two ranks, with a disk on which saving takes a while."""
    return train(learner, recorder, 20, 2, 4)


# -- checks that let it start ranks of its own --------------------------------------------------

TOGETHER_S = 20.0  # that one of two launches waits for the other
USUAL_PORTS = (29500, 12355, 29501, 12345, 23456)


class QuickProcess(context.ForkServerProcess):
    """Stands for a process that is spawned: as new and empty, without importing torch anew.

    It comes from the grader's fork server, gets its parent's variables, as a spawned one does, and
    ends with it. What it prints is kept in the folder of the check.
    """

    def start(self) -> None:
        """Remember what the new process needs."""
        self._parent, self._variables = os.getpid(), dict(os.environ)
        super().start()

    def run(self) -> None:
        """Be the process."""
        os.setsid()
        os.environ.clear()
        os.environ.update(self._variables)
        out = os.open(os.environ["DDPLAB_GRADE_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        torch.set_num_threads(1)
        if not torch.cuda.is_available():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**24, 2**24))
        threading.Thread(target=self._end_with_parent, daemon=True).start()
        super().run()

    def _end_with_parent(self) -> None:
        while True:
            time.sleep(0.1)
            try:
                os.kill(self._parent, 0)
            except ProcessLookupError:
                os.killpg(0, 9)


@dataclass
class Launched:
    """What a launch was seen to do."""

    log: Path
    asked: int
    losses: Any
    raised: str
    running: int
    changed: list[str]


def launched(
    learner: ModuleType, recorder: Recorder, world: int, *, fails: bool = False, launches: int = 1
) -> Launched:
    """Call `launch_distributed` in this rank, as a program would.

    One launch that is to succeed finds `USUAL_PORTS` taken.
    """
    base = recorder.folder / f"launch{os.getpid()}"
    modules, log, folder = base / "modules", base / "log", base / "out"
    for path in (modules, log, folder):
        path.mkdir(parents=True)
    # New processes import the learner's file and this one by name.
    text = "".join(linecache.getlines(str(learner.__file__)))
    (modules / "learner.py").write_text(text, encoding="utf-8")
    shutil.copy(__file__, modules / f"{__name__}.py")
    sys.path.insert(0, str(modules))
    # A process of a fork server knows the server, and yet would start another.
    if forkserver._forkserver._forkserver_address:
        forkserver._forkserver.ensure_running = lambda: None
    multiprocessing.current_process().daemon = False  # it may have children
    context.SpawnContext.Process = QuickProcess  # type: ignore[assignment,misc]
    context.ForkServerContext.Process = QuickProcess  # type: ignore[assignment,misc]
    os.environ["DDPLAB_GRADE_OUT"] = str(base / "printed")
    before, result, raised = dict(os.environ), None, ""
    job = (Samples(12), BuildModel(log, 12, fails=fails, launches=launches), folder, 2, 2, LR)
    with contextlib.ExitStack() as stack:
        for port in USUAL_PORTS if launches == 1 and not fails else ():
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("", port)))
        try:
            with explained(learner):
                result = learner.launch_distributed(world, *job)
        except Wrong:
            raise
        except Exception as error:
            if not fails and not multiprocessing.active_children():
                if (base / "printed").exists():
                    print((base / "printed").read_text(errors="replace"), end="")
                if "Traceback (most" in str(error):
                    raise Wrong(_first_line(error, learner)) from error
                raise
            raised = f"{type(error).__name__}: {str(error)[-200:]}"
    running = set(multiprocessing.active_children())
    pids = {p.pid for p in running} | {one["pid"] for one in read_logs(log) if alive(one["pid"])}
    for process in running:
        process.kill()
        process.join()
    after = dict(os.environ)
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    if isinstance(result, torch.Tensor):
        result = result.tolist()
    plain = isinstance(result, list | tuple) and all(isinstance(x, float) for x in result)
    return Launched(log, world, list(result) if plain else repr(result), raised, len(pids), changed)


def alive(pid: int) -> bool:
    """Return whether there is such a process, other than this one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pid != os.getpid()


def judge_launch(seen: list[Launched]) -> None:
    """The processes were started, trained, and ended; the caller's process is as it was."""
    for s in seen:
        expect(
            not s.running,
            f"{s.running} processes still ran when `launch_distributed` was "
            f"over{' (it raised ' + s.raised + ')' if s.raised else ''}: wait for those that you start (`join`), or "
            "nobody knows when the result is there.",
            HOME,
        )
        logs = [one for one in read_logs(s.log) if one["steps"]]
        found = [(one["rank"], one["world"]) for one in logs]
        expect(
            found == [(rank, s.asked) for rank in range(s.asked)],
            f"`launch_distributed({s.asked}, …)` trained on {len(found)} processes: "
            + (", ".join(f"rank {rank} of {world}" for rank, world in found) or "none")
            + ". Start `world_size` of them, each with its rank.",
            HOME,
        )
        expect(
            isinstance(s.losses, list) and len(s.losses) == 2,
            f"`launch_distributed` returned {str(s.losses)[:80]}; asked for are the losses of 2 epochs. `mp.spawn` "
            "does not bring back what a rank returns: rank 0 can leave it in `folder`.",
            HOME,
        )
        expect(
            not s.changed,
            f"`launch_distributed` leaves {', '.join(s.changed)} changed in `os.environ`: the next launch of this "
            "program, or a library, reads what was meant for this one. Pass values as arguments, or set variables in "
            "the new processes only.",
            HOME,
        )
    for s in seen:
        steps = [one["steps"] for one in read_logs(s.log)]
        starts = [one["built"] for one in read_logs(s.log)]
        size = len(steps[0]) // 2
        values = replay(starts, steps, 12).losses
        right = [
            sum(v * n for mine in values for v, n in mine[e * size : (e + 1) * size])
            / sum(n for mine in values for _, n in mine[e * size : (e + 1) * size])
            for e in (0, 1)
        ]
        expect(
            close(s.losses, right, 1e-4),
            f"`launch_distributed` returned {listed(s.losses)}, the ranks had {listed(right)}: did the numbers come "
            "from another run, or another rank's share?",
            HOME,
        )


@check("It starts its ranks, and ends when they have", ranks=1, judge=judge_launch, read=HOME)
def launch_three(learner: ModuleType, recorder: Recorder) -> Launched:
    """`launch_distributed(3, …)`, while others listen at the ports of well-known examples."""
    meet()
    return launched(learner, recorder, 3)


@check("Two launches at the same time", ranks=2, judge=judge_launch, read=GROUP)
def launch_twice(learner: ModuleType, recorder: Recorder) -> Launched:
    """Two programs of one machine call `launch_distributed(2, …)` at the same moment."""
    meet()
    return launched(learner, recorder, 2, launches=2)


def judge_failure(seen: list[Launched]) -> None:
    """The launch raised, and left nothing."""
    expect(
        seen[0].raised,
        f"Rank 1 raised, and `launch_distributed` returned {str(seen[0].losses)[:60]} as if nothing had happened: "
        "look at how the processes ended. `mp.spawn` and its `join` raise.",
        HOME,
    )
    expect(
        not seen[0].running,
        f"Rank 1 raised, so did `launch_distributed`, and {seen[0].running} other processes went on waiting for it: "
        "end them.",
        HOME,
    )


@check("A rank that fails ends the launch", ranks=1, judge=judge_failure, read=HOME)
def failure(learner: ModuleType, recorder: Recorder) -> Launched:
    """`launch_distributed(2, …)` with a model that raises on rank 1."""
    meet()
    return launched(learner, recorder, 2, fails=True)
