"""Checks of the training script: its functions on the grader's ranks, then with processes that it starts itself.

:Level: core, 40 minutes
"""

import contextlib
import io
import multiprocessing
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import barrier, broadcast_object_list  # as they are, not recorded

from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, check, expect, load_sibling
from ddplab.grading.ports import free_port
from ddplab.grading.processes import alive, allow_processes

trained, judges, errors = (load_sibling(__file__, name) for name in ("trained", "judges", "errors"))
GROUP, HOME, Seen = judges.GROUP, judges.HOME, judges.Seen
VARIABLES = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
USUAL_PORTS = (29500, 12355, 29501, 12345, 23456)


def leave_group() -> int:
    """Agree on a free port; leave the grader's group and forget the variables of its launcher."""
    port = [free_port()]
    if dist.get_world_size() > 1:
        broadcast_object_list(port, src=0)
    barrier()
    dist.destroy_process_group()
    for name in VARIABLES:
        os.environ.pop(name, None)
    return port[0]


def plain(returned: Any) -> Any:
    """A list of numbers, whatever holds them; the text of anything else."""
    if isinstance(returned, torch.Tensor):
        returned = returned.tolist()
    if not isinstance(returned, list | tuple):
        return repr(returned)
    return [x.item() if isinstance(x, torch.Tensor) else x for x in returned]


# -- on the grader's ranks -----------------------------------------------------------------------------


def listens(port: int) -> bool:
    """Return whether somebody listens at the port."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False


def judge_group(seen: list[list[dict[str, Any]]]) -> None:
    """Every rank was in a group of its own rank and size, twice, and left it."""
    backend = "nccl" if torch.cuda.device_count() >= len(seen) else "gloo"
    for rank, number, s in [(rank, number, s) for rank, rounds in enumerate(seen) for number, s in enumerate(rounds)]:
        again, call = " the second time" * number, f"`setup_ddp({rank}, {len(seen)}, port)`"
        expect(
            s["made"],
            f"After `setup_ddp` rank {rank} has no process group{again}: call `dist.init_process_group`.",
        )
        expect(
            (s["rank"], s["world"]) == (rank, len(seen)),
            f"{call} made a group in which this process is rank {s['rank']} of {s['world']}{again}.",
        )
        expect(s["backend"] == backend, f"The backend is {s['backend']}; here it should be {backend}.")
        expect(
            s["listens"],
            f"Nothing listens at the port that `setup_ddp` was given{again}: the ranks met elsewhere. A port in the "
            "code is the one that another job has taken.",
        )
        expect(
            not s["left"],
            f"After `cleanup_ddp` rank {rank} still has a process group{again}: call `dist.destroy_process_group()`.",
        )


@check("The ranks meet, leave, and meet again", ranks=2, judge=judge_group, read=GROUP)
def group(learner: ModuleType, recorder: Recorder) -> list[dict[str, Any]]:
    """`setup_ddp` and `cleanup_ddp` with one port, then both again with another."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ports, seen = [free_port(), free_port()], []
    broadcast_object_list(ports, src=0)
    leave_group()
    with errors.explained(learner):
        for port in ports:
            learner.setup_ddp(rank, world, port)
            one: dict[str, Any] = {"made": dist.is_initialized(), "listens": listens(port)}
            if one["made"]:
                one |= {"rank": dist.get_rank(), "world": dist.get_world_size(), "backend": dist.get_backend()}
                if one["world"] == world:
                    barrier()  # so that nobody leaves before all have looked
            learner.cleanup_ddp()
            seen.append(one | {"left": dist.is_initialized()})
            if not one["made"] or not one["listens"] or dist.is_initialized():
                break
    if dist.is_initialized():
        dist.destroy_process_group()
    return seen


def train(learner: ModuleType, recorder: Recorder, length: int, epochs: int, batch_size: int) -> Any:
    """Call `train_ddp` on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    port = leave_group()
    log, folder = recorder.folder / "log", recorder.folder / "out"
    for path in (log, folder):
        path.mkdir(exist_ok=True)
    build, saves, save = trained.BuildModel(log, length, seed=rank + 1), [], torch.save

    def slow_save(*args: Any, **kwargs: Any) -> None:
        saves.append(args)
        time.sleep(0.4)
        save(*args, **kwargs)

    torch.save = slow_save
    job = (trained.Samples(length), build, folder, epochs, batch_size, trained.LR)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output, errors.explained(learner):
            returned = learner.train_ddp(rank, world, port, *job)
    finally:
        torch.save = save
    complete, grouped = (folder / "model.pt").exists(), dist.is_initialized()
    if grouped:
        dist.destroy_process_group()
    expect(build.models, "`train_ddp` never called `build_model()`.")
    print(output.getvalue(), end="")
    weights = trained.weights_of(build.models[-1])
    return Seen(recorder.folder, plain(returned), weights, complete, grouped, len(saves), output.getvalue())


@check(
    "Every sample is trained on, by one rank, in a new order each epoch",
    ranks=3,
    judge=judges.judge_samples(20, 3, 3),
    read=judges.SAMPLERS,
)
def samples(learner: ModuleType, recorder: Recorder) -> Any:
    """`train_ddp` on three ranks: 20 samples, 3 epochs, 3 samples per rank and step."""
    return train(learner, recorder, 20, 3, 3)


@check("The ranks end with the weights of one process", ranks=2, judge=judges.judge_weights(20), read="idea-equality")
def weights(learner: ModuleType, recorder: Recorder) -> Any:
    """`train_ddp` on two ranks whose models start with other weights: 2 epochs, batches of 4."""
    return train(learner, recorder, 20, 2, 4)


@check("Every rank returns the loss of all samples", ranks=2, judge=judges.judge_losses(20, 2), read=judges.LOCAL)
def losses(learner: ModuleType, recorder: Recorder) -> Any:
    """`train_ddp` on two ranks: 2 epochs of 10 samples each, in steps of 4, 4 and 2."""
    return train(learner, recorder, 20, 2, 4)


@check(
    "Rank 0 prints and saves, all wait for it, and all leave the group", ranks=2, judge=judges.judge_outputs, read=HOME
)
def outputs(learner: ModuleType, recorder: Recorder) -> Any:
    """`train_ddp` on two ranks, with a disk on which saving takes a while."""
    return train(learner, recorder, 20, 2, 4)


# -- with processes of its own -------------------------------------------------------------------------


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

    One launch that should succeed finds `USUAL_PORTS` taken.
    """
    leave_group()
    base = recorder.folder / f"launch{os.getpid()}"
    printed, log, folder = allow_processes(base / "modules", learner, trained), base / "log", base / "out"
    for path in (log, folder):
        path.mkdir()
    before, result, raised = dict(os.environ), None, ""
    build = trained.BuildModel(log, 12, fails=fails, launches=launches)
    with contextlib.ExitStack() as stack:
        for port in USUAL_PORTS if launches == 1 and not fails else ():
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("", port)))
        try:
            with errors.explained(learner):
                result = learner.launch_distributed(world, trained.Samples(12), build, folder, 2, 2, trained.LR)
        except Wrong:
            raise
        except Exception as error:
            if not fails and not multiprocessing.active_children():
                print(printed.read_text(errors="replace") if printed.exists() else "", end="")
                if "Traceback (most" in str(error):
                    raise Wrong(errors.what_failed(error, learner)) from error
                raise
            raised = f"{type(error).__name__}: {str(error)[-200:]}"
        finally:
            (base / "built").touch()  # a launch that is over keeps no other waiting
    running = set(multiprocessing.active_children())
    pids = {p.pid for p in running} | {pid for _, _, pid, *_ in trained.read_logs(log) if alive(pid)}
    for process in running:
        process.kill()
        process.join()
    changed = sorted({name for name, _ in before.items() ^ os.environ.items()})
    return Launched(log, world, plain(result), raised, len(pids - {os.getpid()}), changed)


def judge_launch(seen: list[Launched]) -> None:
    """The processes were started, trained, and ended; the caller's process is as it was."""
    for s in seen:
        raised = f" (it raised {s.raised})" if s.raised else ""
        expect(
            not s.running,
            f"{s.running} processes still ran when `launch_distributed` was over{raised}: wait for those that you "
            "start (`join`), or the caller cannot know when the result is there.",
        )
        logs = [log for log in trained.read_logs(s.log) if log.steps]
        found = [(log.rank, log.world) for log in logs]
        expect(
            found == [(rank, s.asked) for rank in range(s.asked)],
            f"`launch_distributed({s.asked}, …)` trained on {len(found)} processes: "
            f"{', '.join(f'rank {rank} of {world}' for rank, world in found) or 'none'}. Start `world_size` of them, "
            "each with its rank.",
        )
        expect(
            isinstance(s.losses, list) and len(s.losses) == 2 and all(isinstance(x, float) for x in s.losses),
            f"`launch_distributed` returned {str(s.losses)[:80]}; asked for are the losses of 2 epochs. `mp.spawn` "
            "does not bring back what a rank returns: rank 0 can leave it in `folder`.",
        )
        expect(
            not s.changed,
            f"`launch_distributed` leaves {', '.join(s.changed)} changed in `os.environ`: the next launch of this "
            "program, or a library, reads what was meant for this one. Pass values as arguments, or set variables in "
            "the new processes only.",
        )
        steps = trained.replay(logs, 12, own=True).losses
        size = len(steps[0]) // 2
        epochs = [[step for mine in steps for step in mine[e * size : (e + 1) * size]] for e in (0, 1)]
        right = [sum(v * n for v, n in epoch) / sum(n for _, n in epoch) for epoch in epochs]
        expect(
            trained.close(s.losses, right, 1e-4),
            f"`launch_distributed` returned {judges.numbers(s.losses)}, the ranks had {judges.numbers(right)}: did "
            "the numbers come from another run, or another rank's share?",
        )


@check("It starts its ranks, and ends when they have", ranks=1, judge=judge_launch, read=HOME)
def launch_three(learner: ModuleType, recorder: Recorder) -> Launched:
    """`launch_distributed(3, …)`, while others listen at the ports of well-known examples."""
    return launched(learner, recorder, 3)


@check("Two launches at the same time", ranks=2, judge=judge_launch, read=GROUP)
def launch_twice(learner: ModuleType, recorder: Recorder) -> Launched:
    """Two programs of one machine call `launch_distributed(2, …)` at the same moment."""
    return launched(learner, recorder, 2, launches=2)


def judge_failure(seen: list[Launched]) -> None:
    """The launch raised, and left nothing."""
    expect(
        seen[0].raised,
        f"Rank 1 raised, and `launch_distributed` returned {str(seen[0].losses)[:60]} as if nothing had happened: "
        "look at how the processes ended. `mp.spawn` and its `join` raise.",
    )
    expect(
        not seen[0].running,
        f"Rank 1 raised, so did `launch_distributed`, and {seen[0].running} other processes went on waiting for it: "
        "end them.",
    )


@check("A rank that fails ends the launch", ranks=1, judge=judge_failure, read=HOME)
def failure(learner: ModuleType, recorder: Recorder) -> Launched:
    """`launch_distributed(2, …)` with a model that raises on rank 1."""
    return launched(learner, recorder, 2, fails=True)
