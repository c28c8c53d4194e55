"""
A checkpointed layer that runs twice
====================================

``Expected to mark a variable ready only once``, on every rank, in the first backward.
It appears when activation checkpointing is switched on for a model that uses a layer more than once: tied blocks, a recurrent step, an encoder for both inputs.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-ready-twice
"""

# %%
# The broken program
# ------------------
# The block runs twice per forward, each time under ``checkpoint`` in its older, reentrant form.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from ddplab import device
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.apparatus.postmortem import postmortem


class Tied(nn.Module):
    def __init__(self, embedded):
        super().__init__()
        self.embed = nn.Linear(4, 4) if embedded else nn.Identity()
        self.block = nn.Linear(4, 4)

    def forward(self, x, reentrant):
        x = self.embed(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=reentrant)
        return x


def worker(embedded, reentrant, options):
    torch.manual_seed(0)
    model = DDP(Tied(embedded).to(device()), **options)
    x = torch.full((2, 4), 1.0 + dist.get_rank()).to(device()).requires_grad_()
    for _ in range(3):
        model.zero_grad()
        model(x, reentrant).square().sum().backward()
    return flat_gradients(model)


# %%
# What every rank reports
# -----------------------
# The long message is the same on both ranks; these are its beginning and its end.

endings = postmortem(worker, 2, True, True, {}, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"})
for e in endings:
    first, last = e.error.split(" This error")[0], e.error.splitlines()[-1].split(". ")[0]
    print(
        f"rank {e.rank} │ {e.how} in {e.where.split(',')[0]}: {first}\nrank {e.rank} │   {last}"
    )
    assert e.how == "raised"
    assert "Expected to mark a variable ready only once" in e.error
    assert "with name block.bias has been marked as ready twice" in e.error
for e in postmortem(worker, 2, True, True, {"find_unused_parameters": True}):
    assert "Expected to mark a variable ready only once" in e.error

# %%
# A reentrant checkpoint runs its own backward inside the backward, so the block's gradients become ready twice, and DDP counts each parameter once.
#
# Without an error
# ----------------
# The second mark raises only while the reduction of that backward is in progress.
# Without the first layer the block is the whole bucket: its first pass fills it, the reduction ends, and the second pass adds to gradients that are already averaged.

endings = postmortem(worker, 2, False, True, {})
print(f"no layer before it: {[e.how for e in endings]}")
print(f"gap between the ranks' gradients: {gap([e.value for e in endings]):.3g}")
assert [e.how for e in endings] == ["returned", "returned"]
assert gap([e.value for e in endings]) > 0.1

# %%
# The fix
# -------
# ``use_reentrant=False``, which recomputes without a second backward.
# Where the call is not in your code, ``static_graph=True`` counts the marks in the first step and expects as many in all others.

fixes = {"non-reentrant": (False, {}), "static": (True, {"static_graph": True})}
for embedded in (True, False):
    for fix, arguments in fixes.items():
        endings = postmortem(worker, 2, embedded, *arguments)
        assert [e.how for e in endings] == ["returned", "returned"]
        apart = gap([e.value for e in endings])
        print(f"{fix:14} {'with' if embedded else 'no'} layer before it: gap {apart:g}")
        assert apart == 0

# %%
# How to recognize it
# -------------------
# All ranks raise the same error at the same place, so the cause is the program and not the data or a machine.
# With ``TORCH_DISTRIBUTED_DEBUG=INFO`` its last line names the parameter: look for a ``checkpoint`` around its layer.
# ``find_unused_parameters=True`` does not help: the first block runs with it, too.
# The silent case shows in gradients that differ between ranks, as in :ref:`museum-backward-twice`.
