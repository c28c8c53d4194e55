"""What the samples, weights, losses and files of a training tell: each mistake leaves numbers of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ddplab.grading.checks import Wrong, counted, expect, first_line, listed, load_sibling

trained = load_sibling(__file__, "trained")
close, read_logs, replay = trained.close, trained.read_logs, trained.replay

SAMPLERS = "setup-samplers"
GROUP = "setup-process-group"
HOME = "setup-exercise"
LOCAL = "museum-local-loss-as-global"
COLLECTIVES = "internals-collectives"
KEYS = ["layer.bias", "layer.weight"]


@dataclass
class Seen:
    """What a rank has seen of one training."""

    folder: Path  # log/ holds what the models wrote, out/ what the learner's code saved
    returned: Any
    weights: list[float]  # at the end
    complete: bool  # the file was there when `train_ddp` returned
    grouped: bool  # the process still had a group then
    saves: int
    printed: str


def numbers(values: Sequence[float]) -> str:
    """Return numbers in words."""
    return listed([f"{value:.5g}" for value in values])


def logs_of(seen: list[Seen]) -> list[Any]:
    """Return what the models of all ranks wrote."""
    logs = read_logs(seen[0].folder / "log")
    idle, ranks = len(seen) - sum(bool(log.steps) for log in logs), [log.rank for log in logs]
    expect(not idle, f"{idle} of {len(seen)} ranks trained on nothing.", HOME)
    expect(
        ranks == list(range(len(seen))),
        f"The ranks that trained were {ranks}, not 0 to {len(seen) - 1}: was the group made with the `rank` and "
        "`world_size` that the function got, before the first step?",
        GROUP,
    )
    return logs


def judge_samples(length: int, epochs: int, batch_size: int) -> Callable[[list[Seen]], None]:
    """Make a judge: shards are disjoint and complete, and each epoch has its own order."""

    def judge(seen: list[Seen]) -> None:
        steps = [log.steps for log in logs_of(seen)]
        ranks, share = len(seen), -(-length // len(seen))
        read = [[i for step in mine for i in step] for mine in steps]
        largest = max(len(step) for mine in steps for step in mine)
        expect(
            all(len(mine) < epochs * length for mine in read),
            f"Each rank trained on all {length} samples in every epoch, so {ranks} ranks do the work of one: give the "
            "loader a `DistributedSampler`.",
        )
        expect(
            largest == batch_size,
            f"A step has {counted(largest, 'sample')} on a rank; `batch_size` is {batch_size}, and counts per rank.",
        )
        counts = [len(mine) / epochs for mine in read]
        expect(
            counts == [share] * ranks,
            f"Per epoch the ranks trained on {numbers(counts)} of {length} samples; each needs {share}. With fewer, "
            "some are never trained on (`drop_last`?); with unequal numbers, one rank waits for a step that the "
            "others do not make.",
        )
        dealt = [[mine[epoch * share : (epoch + 1) * share] for mine in read] for epoch in range(epochs)]
        for epoch, shares in enumerate(dealt):
            missing = length - len({i for mine in shares for i in mine})
            same = all(mine == shares[0] for mine in shares)
            idea = (
                "all ranks got the same share. Give the sampler this process's own rank, or none: it asks the group."
                if same
                else "the shares overlap. Seed and epoch of the sampler must be alike on all ranks."
            )
            expect(not missing, f"In epoch {epoch} {missing} of {length} samples were trained on by no rank: {idea}")
        in_order = all(mine[:-1] == sorted(mine[:-1]) for mine in dealt[0])
        data = ", that of the data: `shuffle=False`."
        idea = data if in_order else ": call `sampler.set_epoch(epoch)` before each epoch's loop."
        expect(dealt[0] != dealt[1], f"Epochs 0 and 1 have the same order{idea}", "museum-missing-set-epoch")

    return judge


def judge_weights(length: int) -> Callable[[list[Seen]], None]:
    """Make a judge: the ranks end with the weights of one process that saw every batch whole."""

    def judge(seen: list[Seen]) -> None:
        logs, final, ranks = logs_of(seen), [s.weights for s in seen], len(seen)
        expect(len({len(log.steps) for log in logs}) == 1, "The ranks made different numbers of steps.", SAMPLERS)
        right = replay(logs, length).weights

        def held(weights: list[list[float]]) -> bool:
            return all(close(f, w) for f, w in zip(final, weights, strict=True))

        if held(right):
            return
        text = f"The first weight is {numbers([f[0] for f in final])} on the ranks; right is {right[0][0]:.5g}."
        mistakes: list[tuple[dict[str, Any], str, str]] = [
            (
                {"factor": None, "own": True},
                "each rank trained its own model: it was never wrapped in `DistributedDataParallel`, or that came "
                "after training",
                "internals-constructor",
            ),
            (
                {"factor": None},
                "the ranks began with equal weights and then trained alone: `ddp.module(x)`, or a call of the model "
                "that you wrapped, goes around DDP. Call `ddp(x)`",
                "museum-calls-the-inner-module",
            ),
            (
                {"factor": ranks},
                f"every step was {ranks} times as long: the gradients were added up, or `lr` was multiplied by "
                f"{ranks}. DDP averages, and `lr` is given",
                "idea-equality",
            ),
            (
                {"factor": 1 / ranks},
                f"every step was {ranks} times too short: the gradients, or the loss, were divided by {ranks}, and "
                "DDP has averaged already",
                "museum-averaging-twice",
            ),
            (
                {"accumulate": True},
                "gradients of earlier steps were still there: call `optimizer.zero_grad()` before each backward",
                "internals-no-sync",
            ),
        ]
        for options, mistake, read in mistakes:
            if held(replay(logs, length, **options).weights):
                raise Wrong(f"The final weights show that {mistake}. {text}", read)
        if held([log.built for log in logs]) or close(final[-1], logs[0].built):
            raise Wrong("The weights never moved: does the optimizer hold the model's parameters?")
        apart = max(abs(a - b) for f in final for a, b in zip(f, final[0], strict=True))
        raise Wrong(
            f"The ranks end with different weights, up to {apart:.2g} apart. {text}"
            if apart > 1e-9
            else "The ranks end with equal weights, but not with those of one process that saw every batch whole. "
            f"Plain SGD at `lr`, one step per batch, and `mse_loss` of `ddp(x)`? {text}",
        )

    return judge


def judge_losses(length: int, epochs: int) -> Callable[[list[Seen]], None]:
    """Make a judge: every rank returns the mean loss over all samples."""

    def judge(seen: list[Seen]) -> None:
        got, ranks = [s.returned for s in seen], len(seen)
        for rank, values in enumerate(got):
            expect(
                isinstance(values, list) and len(values) == epochs and all(isinstance(x, float | int) for x in values),
                f"Rank {rank} returned {str(values)[:80]}; asked for is a list of {epochs} numbers, one per epoch, on "
                "every rank.",
                HOME,
            )
        losses = replay(logs_of(seen), length).losses
        size = len(losses[0]) // epochs
        steps = [[mine[e * size : (e + 1) * size] for e in range(epochs)] for mine in losses]
        share = sum(n for _, n in steps[0][0])
        own = [[sum(v * n for v, n in epoch) / share for epoch in mine] for mine in steps]
        means = [[sum(v for v, _ in epoch) / size for epoch in mine] for mine in steps]
        last = [[epoch[-1][0] for epoch in mine] for mine in steps]

        def everywhere(of: list[list[float]], factor: float) -> list[list[float]]:
            return [[factor * sum(values) for values in zip(*of, strict=True)]] * ranks

        def returned(values: list[list[float]]) -> bool:
            return all(close(g, v, 1e-4) for g, v in zip(got, values, strict=True))

        right = everywhere(own, 1 / ranks)
        if returned(right):
            return
        local = "It is the loss of this rank's shard, not of the data: sum it over the ranks with `all_reduce`"
        total = f"It is the sum over the ranks: it was never divided by {ranks}"
        mistakes = [
            (own, local, LOCAL),
            (means, local, LOCAL),
            (last, "It is the last step of this rank, not its epoch: add up over steps and ranks", LOCAL),
            (everywhere(own, 1), total, COLLECTIVES),
            (everywhere(means, 1), total, COLLECTIVES),
            (
                everywhere(means, 1 / ranks),
                "It is the mean over the steps, and the last step of an epoch is smaller: add up loss × samples, and "
                "divide by the samples",
                "museum-mean-of-token-means",
            ),
            (everywhere(own, share), "It is the sum over all samples: divide by their number", "idea-equality"),
        ]
        text = f"Epoch 0 is {numbers([g[0] for g in got])} on the ranks; right is {right[0][0]:.5g}."
        for values, mistake, read in mistakes:
            if returned(values):
                raise Wrong(f"{mistake}. {text}", read)
        reduced = "`reduce` gives the result to one rank, `all_reduce` to all"
        expect(
            not close(got[0], right[0], 1e-4),
            f"Rank 0 returns the right loss, the others do not: {reduced}. {text}",
            COLLECTIVES,
        )
        raise Wrong(
            "None of the usual mistakes gives these losses. Each counts with the weights before its step, over all "
            f"samples of all ranks. {text}",
        )

    return judge


def judge_outputs(seen: list[Seen]) -> None:
    """One rank prints and saves, all wait, all leave the group."""
    file = seen[0].folder / "out" / "model.pt"
    for rank, s in enumerate(seen[1:], 1):
        expect(
            not s.saves,
            f"Rank {rank} saves too ({counted(s.saves, 'call')} of `torch.save`): ranks that write one file at the "
            "same time leave a broken one. Ask `if rank == 0:`.",
        )
        expect(
            not s.printed.strip(),
            f"Rank {rank} prints too: on 64 ranks each line comes 64 times. Ask `if rank == 0:`.",
        )
    lines = [line for line in seen[0].printed.splitlines() if line.strip()]
    expect(
        len(lines) >= 2, f"Rank 0 printed {counted(len(lines), 'line')} in 2 epochs: the user cannot see the progress."
    )
    expect(file.exists(), 'There is no `folder / "model.pt"`.')
    for rank, s in enumerate(seen):
        expect(
            s.complete,
            f"Rank {rank} returned from `train_ddp` before `model.pt` was there: the next reader finds nothing, or "
            "half of it. Put `dist.barrier()` behind the save, outside of the `if`.",
        )
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        keys = sorted(map(str, state))
    except Exception as error:
        raise Wrong(f"`model.pt` cannot be loaded: {first_line(error)}") from error
    wrapper = "DDP puts `module.` before each: save `ddp.module.state_dict()`."
    expect(
        keys == KEYS,
        f"`model.pt` has the keys {', '.join(keys[:3])}; a model of `build_model()` needs {', '.join(KEYS)}. "
        f"{wrapper if any(key.startswith('module.') for key in keys) else ''}",
        "internals-constructor",
    )
    saved = [w for key in ("layer.weight", "layer.bias") for w in state[key].flatten().tolist()]
    expect(
        close(saved, seen[0].weights),
        "`model.pt` does not hold the weights at the end of training: save after the last step.",
    )
    for rank, s in enumerate(seen):
        expect(
            not s.grouped,
            f"Rank {rank} still has a process group when `train_ddp` returns: end with `cleanup_ddp()`, which calls "
            "`dist.destroy_process_group()`.",
            GROUP,
        )
