"""The grader of distributed-training-script: right files pass, each wrong one gets the reason."""

import os

from graded import (  # noqa: F401
    mentions,
    message_to_a_hang,
    passes_all,
    test_one_that_needs_ranks_of_its_own_gets_the_reason,
    text_of,
)

from tools import PATIENCE_S, ended

NAME = "distributed-training-script"
SPAWN = "    mp.spawn(train_ddp, (world_size, port, *job), nprocs=world_size)"
SAMPLER = "DistributedSampler(dataset)"
REDUCE = "        dist.all_reduce(seen)"
MEAN = "(seen[0] / seen[1]).item()"
DDP = "DistributedDataParallel(build_model().to(device))"
STATE = "torch.save(ddp.module.state_dict()"
PORT = "        port = server.getsockname()[1]"

# name: (edits of the solution, words of the message)
WRONG = {
    # the group
    "no cleanup": ([("dist.destroy_process_group()", "pass")], "rank 0 still has a process group|destroy_process"),
    "a port in the code": (
        [('f"tcp://127.0.0.1:{port}"', '"tcp://127.0.0.1:29617"')],
        "Nothing listens at the port that `setup_ddp` was given",
    ),
    "reads the variables of torchrun": (
        [('"gloo", meet, rank=rank, world_size=world_size', '"gloo"')],
        "expected, but not set|give rank, world size and port",
    ),
    "no group": (
        [('dist.init_process_group("gloo", meet', 'dict("" or (), meet=meet')],
        "There is no group to leave: `setup_ddp`",
    ),
    "set up twice": (
        [("    device = setup_ddp(rank, world_size, port)\n", "    device = setup_ddp(rank, world_size, port)\n" * 2)],
        "default process group twice|`train_ddp` calls `setup_ddp` once",
    ),
    "DDP before the group": (
        [
            ("    device = setup_ddp(rank, world_size, port)\n", '    device = torch.device("cpu")\n'),
            ("    optimizer = torch.optim", "    setup_ddp(rank, world_size, port)\n    optimizer = torch.optim"),
        ],
        "process group has not been initialized|`setup_ddp` comes first",
    ),
    # the data
    "every rank reads all": (
        [("sampler=sampler", "shuffle=True")],
        "Each rank trained on all 20 samples in every epoch|DistributedSampler",
    ),
    "every rank reads the share of rank 0": (
        [(SAMPLER, "DistributedSampler(dataset, world_size, 0)")],
        "13 of 20 samples were trained on by no rank: all ranks got the same share",
    ),
    "a seed per rank": ([(SAMPLER, "DistributedSampler(dataset, seed=rank)")], "the shares overlap|must be alike on"),
    "two ranks in the code": ([(SAMPLER, "DistributedSampler(dataset, 2, rank)")], "Invalid rank 2|at line|world size"),
    "no set_epoch": (
        [("sampler.set_epoch(epoch)", "pass")],
        "Epochs 0 and 1 have the same order: call `sampler.set_ep",
    ),
    "no shuffle": ([(SAMPLER, "DistributedSampler(dataset, shuffle=False)")], "that of the data: `shuffle=False`"),
    "the last batch is dropped": ([("sampler=sampler", "sampler=sampler, drop_last=True")], "6, 6 and 6 of 20|needs 7"),
    "the batch is divided": (
        [("(dataset, batch_size, ", "(dataset, batch_size // world_size, ")],
        "A step has 1 sample on a rank; `batch_size` is 3, and counts per rank",
    ),
    # the gradients
    "not wrapped": (
        [(DDP, "build_model().to(device)"), ("ddp.module.state", "ddp.state")],
        "each rank trained its own model",
    ),
    "the inner module": ([("mse_loss(ddp(", "mse_loss(ddp.module(")], "then trained alone|goes around DDP. Call `ddp("),
    "gradients averaged twice": (
        [("loss.backward()", "(loss / world_size).backward()")],
        "every step was 2 times too short|DDP has averaged already",
    ),
    "learning rate scaled": ([("lr=lr", "lr=lr * world_size")], "every step was 2 times as long|`lr` is given"),
    "no zero_grad": ([("optimizer.zero_grad()", "pass")], "gradients of earlier steps were still there"),
    "another optimizer": ([("optim.SGD", "optim.Adam")], "equal weights, but not with those of one process"),
    # the loss
    "local loss": ([(REDUCE, "        pass")], "It is the loss of this rank's shard, not of the data"),
    "the last step's loss": (
        [(REDUCE, "        pass"), (MEAN, "loss.item()")],
        "It is the last step of this rank, not its",
    ),
    "loss not averaged": (
        [(REDUCE, "        mean = seen[:1] / seen[1]\n        dist.all_reduce(mean)"), (MEAN, "mean.item()")],
        "It is the sum over the ranks: it was never divided by 2",
    ),
    "mean of step means": (
        [("loss.detach() * len(x), torch.full_like(loss, len(x))", "loss.detach(), torch.ones_like(loss)")],
        "It is the mean over the steps, and the last step of an epoch is smaller",
    ),
    "reduced to rank 0": ([("dist.all_reduce(seen)", "dist.reduce(seen, 0)")], "Rank 0 returns the right loss, the"),
    "returns nothing": ([("    return losses\n", "")], "Rank 0 returned None; asked for is a list of 2"),
    # what is left behind
    "saves on every rank": (
        [("    if rank == 0:\n        torch.save", "    if True:\n        torch.save")],
        "saves too",
    ),
    "saves elsewhere": ([('folder / "model.pt"', 'folder / "weights.pt"')], 'There is no `folder / "model.pt"`'),
    "prints on every rank": ([("        if rank == 0:", "        if True:")], "Rank 1 prints too: on 64 ranks"),
    "no barrier": (
        [("    dist.barrier()", "    pass")],
        "Rank 1 returned from `train_ddp` before `model.pt`|barrier()",
    ),
    "a barrier for rank 0": (
        [("    dist.barrier()", "        dist.barrier()")],
        "The ranks are out of step: rank 0 is in call 4, barrier|rank 1 made 3 and was done",
    ),
    "saves the wrapper": (
        [(STATE, "torch.save(ddp.state_dict()")],
        "keys module.layer.|save `ddp.module.state_dict()`",
    ),
    "does not clean up after training": (
        [("    cleanup_ddp()\n", "")],
        "Rank 0 still has a process group when `train_",
    ),
    # the launch
    "a usual port": ([(PORT, "        port = 29500")], "EADDRINUSE|let the system choose a free one"),
    "two processes always": ([("nprocs=world_size", "nprocs=2"), ("(world_size, port, *", "(2, port, *")], "on 2 proc"),
    "does not join": (
        [("nprocs=world_size)", "nprocs=world_size, join=False)")],
        "still ran when `launch_distributed`",
    ),
    "an inner function": (
        [(SPAWN, SPAWN.replace("mp.spawn(train_ddp", "mp.spawn(lambda *a: train_ddp(*a)"))],
        "pickle|a function of the top level",
    ),
    "a loss of its own": (
        [('torch.load(folder / "losses.pt")', "[0.0, 0.0]")],
        "did the numbers come from another run",
    ),
    "changes the environment": (
        [(SPAWN, f'    __import__("os").environ["MASTER_PORT"] = str(port)\n{SPAWN}')],
        "leaves MASTER_PORT changed in `os.environ`",
    ),
    "a failure is swallowed": (
        [(SPAWN, f"    torch.save([0.0], folder / 'losses.pt')\n    try:\n    {SPAWN}\n    except Exception: pass")],
        "Rank 1 raised, and `launch_distributed` returned",
    ),
}


ALONE = list(WRONG)  # they start processes


def written(_, edits: list[tuple[str, str]]) -> str:
    return text_of(NAME, *edits)


def test_another_right_solution_passes(tmp_path):
    """Variables in the new processes, Process and join, a sum of its own, and no `del`."""
    path = tmp_path / "mine.py"
    join = """
    context = mp.get_context("spawn")
    ranks = [context.Process(target=train_ddp, args=(r, world_size, port, *job)) for r in range(world_size)]
    for rank in ranks:
        rank.start()
    while any(rank.exitcode is None for rank in ranks):
        if any(rank.exitcode for rank in ranks):
            for rank in ranks:
                rank.kill()
        ranks[0].join(0.05)
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError("a rank failed")
"""
    path.write_text(
        text_of(
            NAME,
            (SPAWN, join + "    pass"),
            ("    del ddp", "    pass"),
            ('    meet = f"tcp://127.0.0.1:{port}"', SETS),
            ('"gloo", meet, rank=rank, world_size=world_size', '"gloo"'),
        )
    )
    assert passes_all(NAME, path)


SETS = """
    import os
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world_size))
    meet = None"""


def test_what_it_starts_ends_with_the_check(tmp_path, monkeypatch):
    """Ranks that hang, in processes of the learner's own, are gone when the grader has given up."""
    note = f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{__import__(\"os\").getpid()}}\\n')"
    hang = f"    if 'learner.py' in __file__:\n        {note}\n        while True: pass\n    device = setup_ddp(rank"
    pids = []

    def all_hang():
        pids[:] = [int(pid) for pid in (tmp_path / "pids").read_text().split()] if (tmp_path / "pids").exists() else []
        return len(pids) == 3

    text = text_of(NAME, ("    device = setup_ddp(rank", hang))
    outcome = message_to_a_hang(NAME, tmp_path, text, all_hang, monkeypatch)
    mentions(outcome, f"It still ran after {PATIENCE_S:g} s, and was stopped")
    assert os.getpid() not in pids
    assert all(map(ended, pids))
