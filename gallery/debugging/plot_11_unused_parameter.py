"""
A parameter that one rank leaves out
====================================

``Expected to have finished reduction in the prior iteration`` on one rank, ``Connection closed by peer`` on another.
A forward has a branch, and on one rank no sample of the batch takes it: no image with a box, no token of the rare language.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-unused-parameter
"""

# %%
# The broken program
# ------------------
# Rank 1 gets no sample for the auxiliary head in its first batch.
# ``TORCH_DISTRIBUTED_DEBUG=INFO`` adds the line with the names.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report

INFO_LEVEL = {"TORCH_DISTRIBUTED_DEBUG": "INFO"}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.classes, self.boxes = (
            nn.Linear(4, 4),
            nn.Linear(4, 1),
            nn.Linear(4, 1),
        )

    def forward(self, x, has_boxes, always=False):
        h = self.trunk(x)
        out = self.classes(h)
        if has_boxes or always:  # always: the fix below
            out = out + self.boxes(h) * has_boxes
        return out


def worker(always, options):
    group = gloo_group()  # on every machine: the peer's text is gloo's own
    torch.manual_seed(0)
    model = DDP(Detector().to(device()), process_group=group, **options)
    x = torch.full((2, 4), 1.0 + dist.get_rank()).to(device())
    for step in (1, 2):
        has_boxes = step == 2 or dist.get_rank() == 0
        print(f"step {step}")
        model.zero_grad()
        model(x, has_boxes, always).mean().backward()
    return flat_gradients(model)


# %%
# What every rank reports
# -----------------------

endings = peer, guilty = postmortem(worker, 2, False, {}, env=INFO_LEVEL)
print(report(endings, said=1))
assert peer.lost_peer
assert "backward" in peer.where
assert "backward" not in guilty.where
assert "Expected to have finished reduction in the prior iteration" in guilty.error
assert "did not receive grad for rank 1: boxes.bias, boxes.weight" in guilty.error
# The two are not in the same step:
assert peer.printed.splitlines()[-1] == "step 1"
assert guilty.printed.splitlines()[-1] == "step 2"

# %%
# Rank 1 is one step ahead.
# Its first backward lacked two gradients, so its bucket was never full, nothing was launched, and ``backward()`` returned; the next forward noticed it.
# Rank 0 had all of its gradients and still waits in the backward of step 1, for a bucket that will not come; when rank 1 has died from its error, rank 0's connection is closed.
#
# The fix
# -------
# Either let DDP search (``find_unused_parameters=True``), or use every parameter in every step, here with a factor of zero.
# Both give the mean over ranks, with a zero from the rank that had no such sample.

for fix, arguments in {
    "search": (False, {"find_unused_parameters": True}),
    "factor of zero": (True, {}),
}.items():
    endings = postmortem(worker, 2, *arguments)
    assert [e.how for e in endings] == ["returned", "returned"]
    apart = gap([e.value for e in endings])
    print(f"{fix:15} all ranks return; gap between their gradients: {apart:g}")
    assert apart == 0

# %%
# If a parameter is never used on any rank, freeze it (``requires_grad_(False)``) before DDP is constructed, or remove it.
#
# How to recognize it
# -------------------
# The rank that left something out is the only one that names it; run with ``TORCH_DISTRIBUTED_DEBUG=INFO`` to have names instead of indices.
# A peer's stack ends in ``backward``, one step *before* the step of the error.
# If *all* ranks print the error, no rank used the parameter: then the cause is the model and not the data.
