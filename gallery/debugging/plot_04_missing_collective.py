"""
One rank skips a collective
===========================

The job hangs; minutes later some ranks fail, and they are the healthy ones.
A typical cause: only rank 0 logs, so the mean of the loss, which is an all-reduce, goes under ``if rank == 0:``.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-missing-collective
"""

# %%
# The evaluation is over, and rank 0 wants the mean loss.

import re
from datetime import timedelta

import torch
import torch.distributed as dist

from ddplab import launch, record
from ddplab.apparatus.postmortem import postmortem, report

SHORT_S = 3  # by default 30 minutes


def wrong(timeout_s, train_on=False):
    # On every machine a gloo group, whose timeout raises; NCCL's would end the process.
    # It bounds the making of the group, too, so all ranks come to it together.
    dist.barrier()
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    dist.barrier()  # all ranks have their connections
    loss = torch.tensor([dist.get_rank() + 1.0])
    if dist.get_rank() == 0:
        dist.all_reduce(loss, group=gloo)
        print(f"mean loss {loss.item() / dist.get_world_size()}")
    if train_on:
        dist.all_reduce(torch.ones(100), group=gloo)  # the next gradients


# %%
# The others are still there
# --------------------------
# They continue with something that is not a collective: saving, sleeping, reading data.

endings = postmortem(wrong, 3, SHORT_S)
print(report(endings))
assert [e.how for e in endings] == ["raised", "returned", "returned"]
assert "Timed out waiting 3000ms" in endings[0].error
assert endings[0].where.startswith("all_reduce")

# %%
# Only rank 0 reports an error, and it is not at fault: it waits in the call that the others left out.
#
# The others have ended
# ---------------------
# The same program, but ranks 1 and 2 reach the end of the script.

left = postmortem(wrong, 3, 60, leave=True)
print(report(left))
assert [e.how for e in left] == ["raised", "returned", "returned"]
assert re.search("Connection (closed|reset) by peer", left[0].error)

# %%
# Now no timeout is needed: the system closes the connections of a process that ends.
# The text mentions a crash, but no rank crashed.
#
# The others continue training
# ----------------------------
# Their next all-reduce meets that of rank 0, and from here on every call is off by one.

off = postmortem(wrong, 3, 60, True)
print(report(off, said=1))
assert off[0].how == "died"
assert "op.preamble.length <= op.nbytes" in off[0].printed
assert {e.how for e in off[1:]} == {"raised"}

speakers = {"stay": endings, "end": left, "train_on": off}
record(**{name: sum(e.how != "returned" for e in run) for name, run in speakers.items()})

# %%
# With tensors of one size there is no error at all: rank 0 mistakes a gradient for a loss, as in :doc:`plot_03_swapped_collectives`.
#
# Ask for the names
# -----------------
# Under ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` a barrier runs before each collective, and rank 0 counts which ranks arrive.

asked = postmortem(wrong, 3, SHORT_S, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
print(report(asked))
assert [e.how for e in asked] == ["raised", "returned", "returned"]
assert "Ranks 1, 2 failed to pass monitoredBarrier in 3000 ms" in asked[0].error

# %%
# The run after the fix
# ---------------------


def right():
    gloo = dist.new_group(backend="gloo")
    loss = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(loss, group=gloo)
    if dist.get_rank() == 0:
        print(f"mean loss {loss.item() / dist.get_world_size()}")
    dist.all_reduce(torch.ones(100), group=gloo)


launch(right, 3)

# %%
# The fix
# -------
# Make the call on all ranks, and put the ``if`` around what you do with the result.
# Some calls contain a hidden collective: DDP's forward, if the model has buffers (:doc:`../museum/plot_10_rank_0_only_forward`), a metric that reduces itself, the ``state_dict`` of a sharded model.
# If only rank 0 needs the number, ``dist.reduce(loss, dst=0)`` sends less, but all ranks have to call it as well.
#
# How to recognize it
# -------------------
# Compare the stacks of *all* ranks: the one that fails is in a collective that the others never called.
# The flight recorder counts it: one rank's last number is higher (:ref:`internals-flight-recorder`).
# With a dead peer, the exit code would not be 0; with a slow one, waiting longer would help.
