"""
One rank has a batch more
=========================

Training ends on most ranks, and one waits in a backward for ranks that have finished.
A typical cause: every rank reads its own files, and the files do not have the same number of samples.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-uneven-batches
"""

# %%
# Three epochs; ranks 0 and 1 have three batches in each, rank 2 has four.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gloo import gloo_group, shorten
from ddplab.apparatus.postmortem import postmortem, report

BATCHES, EPOCHS = [3, 3, 4], 3


def build():
    # On every machine a gloo group, whose timeout raises; NCCL's would end the process.
    group = gloo_group()
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1).to(device()), process_group=group)
    return model, torch.optim.SGD(model.parameters(), lr=0.02), group


def train_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4, device=device())).square().mean().backward()
    optimizer.step()


def wrong():
    model, optimizer, group = build()
    shorten(group, 2)  # all are ready to train: two seconds instead of 30 minutes
    steps = 0
    for epoch in range(EPOCHS):
        for batch in range(BATCHES[dist.get_rank()]):
            print(f"at step {steps}: epoch {epoch}, batch {batch}")
            train_step(model, optimizer)
            steps += 1
    return f"after {steps} steps"


endings = postmortem(wrong, 3)
print(report(endings, said=1))
print(f"rank 2 │ raised in {endings[2].where}")
assert [e.how for e in endings] == ["returned", "returned", "raised"]
assert "Timed out" in endings[2].error
assert "backward" in endings[2].where

# %%
# The hang is not where the fault is
# ----------------------------------
# What did rank 2 do when ranks 0 and 1 began their second epoch?

at_step = [e.printed.splitlines()[3].removeprefix("at ") for e in endings]
for rank, text in enumerate(at_step):
    print(f"rank {rank} │ {text}")
assert at_step == ["step 3: epoch 1, batch 0"] * 2 + ["step 3: epoch 0, batch 3"]
last = endings[2].printed.splitlines()[-1]
assert last == "at step 9: epoch 2, batch 1"
record(hang_at_step=int(last.split()[2].strip(":")), parts_at_step=3)

# %%
# Its fourth batch met their first of the next epoch: the same bucket, the same size, so no rank notices.
# Two epochs pass like this, with ranks in different epochs; only when the others finish does one rank wait.
# If they reach the end of the program, it reports ``Connection closed by peer`` at once instead of ``Timed out``.
#
# The run after the fix
# ---------------------
# Either all ranks take as many batches as the rank with the fewest, or ``join`` lets the short ones shadow the long one.


def right(use_join):
    model, optimizer, group = build()
    count = torch.tensor(BATCHES[dist.get_rank()])
    if not use_join:
        dist.all_reduce(count, dist.ReduceOp.MIN, group=group)
    trained = []
    for _ in range(EPOCHS):
        with model.join(enable=use_join):
            for _ in range(count):
                train_step(model, optimizer)
        trained.append(int(count))
    return trained, round(model.module.weight.sum().item(), 6)


for use_join, expected in (False, [3, 3, 3]), (True, BATCHES):
    results = launch(right, 3, use_join)
    print("with join" if use_join else "the fewest")
    for rank, (trained, weight) in enumerate(results):
        print(f"  rank {rank}: {trained} batches, sum of weights {weight}")
    assert [trained for trained, _ in results] == [[n] * EPOCHS for n in expected]
    assert len({weight for _, weight in results}) == 1

# %%
# The fix
# -------
# With a map-style dataset use ``DistributedSampler``: it pads or, with ``drop_last=True``, drops, and all ranks get the same number (:ref:`setup-samplers`).
# With streams, agree on the smallest count as above, once per epoch, or use ``join``, which costs two small all-reduces per step (:ref:`internals-join`).
#
# How to recognize it
# -------------------
# One rank is in ``backward``, the others in no collective or at the end of the program; a skipped all-reduce (:doc:`plot_04_missing_collective`) would show a line of your code.
# Earlier, and cheaper: log ``len(loader)`` of every rank, and the epoch of every rank with each step.
