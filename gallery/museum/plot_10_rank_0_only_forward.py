"""
Evaluation on rank 0 through DDP
================================

One rank is enough to compute a validation loss, so the evaluation is under ``if rank == 0:``, and a barrier follows it.
But the wrapper's forward is not a local call: if the model has buffers, such as BatchNorm's statistics, it broadcasts them.
It serves :ref:`museum`.

The wrapper's forward may be a collective, because it broadcasts buffers.
Keep in mind: what one rank does alone goes through ``.module``.

:Level: core, 12 minutes
:Proves: museum-rank-0-only-forward
"""

# %%
# The group has a short timeout, so that a hang ends with an error, and each rank reports what it was doing.

import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.runtime.torch_private import flight_records


def wrong(model, x):
    return model(x)


def right(model, x):
    return model.module(x)


def worker(forward, barrier, timeout_s):
    # A gloo group on every machine: its timeout raises, NCCL's would end the process.
    timeout = datetime.timedelta(seconds=timeout_s)
    group = dist.new_group(backend="gloo", timeout=timeout)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).to(device())
    model = DDP(net, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4).to(device())).square().mean().backward()
            optimizer.step()

    train(3)
    before, error = len(flight_records()), ""
    try:
        if dist.get_rank() == 0:
            doing = "evaluating"
            net.eval()
            with torch.no_grad():
                forward(model, torch.randn(64, 4).to(device()))
            net.train()
        if barrier:
            doing = "in the barrier"
            dist.barrier(group)
        doing = "training on"
        train(1)
        doing = "done"
    except RuntimeError as raised:
        error = str(raised).split("] ")[-1].split(" [")[0]  # without file name and port
    issued = [f"{entry.operation} of {entry.elements}" for entry in flight_records()[before:]]
    return doing, ", ".join(issued).replace(" of 0", ""), error


# %%
# What each rank issued from the evaluation on, and where it ended.

CASES = {
    "wrong, then a barrier": (wrong, True, 2.0),
    "wrong, no barrier": (wrong, False, 30.0),
    "fixed, then a barrier": (right, True, 30.0),
}
ends = []
for case, options in CASES.items():
    print(case)
    for rank, (doing, issued, error) in enumerate(launch(worker, 2, *options)):
        print(f"  rank {rank}: {doing:15} issued {issued}")
        print(f"          {error}\n" * bool(error), end="")
        ends.append(doing)
assert ends == ["evaluating", "in the barrier", "done", "done", "done", "done"]
three = [doing for doing, *_ in launch(worker, 3, wrong, True, 4.0)]
assert three == ["evaluating", "in the barrier", "in the barrier"]
assert [doing for doing, *_ in launch(worker, 3, right, True, 30.0)] == ["done"] * 3
record("ranks", wrong=ends[:2].count("done"), fixed=ends[4:].count("done"))

# %%
# The second case passes by luck: after a forward under ``no_grad`` the next one broadcasts nothing, so rank 1's training forward receives the broadcast that rank 0 sent in its evaluation.
#
# The fix
# -------
# Evaluate the inner module, ``ddp.module(x)``, when one rank evaluates alone, or let every rank evaluate its share.
#
# How you would have noticed
# --------------------------
# The loss curve ends where the first evaluation starts.
# A stack dump (``py-spy dump``) shows rank 0 in ``_sync_buffers`` and the others in the barrier.
# Before that there is no sign: without the barrier, or without BatchNorm, the same line works.
#
# Change it: predict, then run
# ----------------------------
# Replace ``torch.no_grad()`` by ``torch.enable_grad()`` in the evaluation.
# What becomes of *wrong, no barrier*, which passed by luck?
#
# Expect: both ranks fail in the step after it: rank 0 broadcasts once more than rank 1, whose all-reduce meets that broadcast; the wait takes the group's timeout.
#
# Say it aloud
# ------------
# "Evaluating through the wrapper on rank 0 only sends a broadcast that nobody answers, or that answers the wrong call.
# I evaluate ddp.module, or let every rank evaluate its share.
# Rank 0 alone is easier to write and leaves the others idle; all ranks are faster, and have to reduce what they counted."
