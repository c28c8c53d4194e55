"""
Changing a wrapped model
========================

You freeze a layer, add an adapter, or convert the model to another type: what does the wrapper notice?
This lab makes seven changes to a model that is wrapped already, and looks at the gradients of the ranks.
It serves :ref:`internals-changing`.

DDP puts its hooks on the parameters that it finds in the constructor, and does not look again.
Keep in mind: after you change which parameters there are, or what they are, wrap again.

:Level: deep, 20 minutes
:Proves: changes-after-wrapping wrap-again-after-a-change
"""

# %%
# Seven changes
# -------------
# The model has three layers, of which the middle one is frozen from the start.
# Each change is one line, made on every rank alike.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.added = nn.Identity()
        self.middle.requires_grad_(False)

    def forward(self, x):
        return self.added(self.last(self.middle(self.first(x)).tanh()))


CHANGES = {
    "set values in place": lambda net: net.first.weight.detach().fill_(0.5),
    "freeze a layer": lambda net: net.first.requires_grad_(False),
    "unfreeze a layer": lambda net: net.middle.requires_grad_(True),
    "add a layer": lambda net: setattr(net, "added", nn.Linear(4, 1).to(device())),
    "replace a layer": lambda net: setattr(net, "last", nn.Linear(4, 1).to(device())),
    "tie two weights": lambda net: setattr(net.last, "weight", net.first.weight),
    "convert to bfloat16": lambda net: net.to(torch.bfloat16),
}

# %%
# Each rank takes one step, changes the model, and takes two more.
# It returns its weights after the change, the gradients of the second step, and where it stopped.


def held(tensors):
    return {name: t.detach().float().cpu() for name, t in tensors if t is not None}


def changed(change, wrap_again):
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Net().to(device()))
    x = torch.randn(2, 4, device=device())
    model(x).square().mean().backward()
    change(model.module)
    if wrap_again:
        model = DistributedDataParallel(model.module)
    weights, gradients = held(model.module.named_parameters()), {}
    for step in (2, 3):
        model.zero_grad()
        try:
            loss = model(x.to(model.module.first.weight.dtype)).square().mean()
        except RuntimeError as error:
            late = "Expected to have finished reduction" in str(error)
            return weights, gradients, f"forward {step} raises" if late else str(error)
        loss.backward()
        if step == 2:
            gradients = held((name, p.grad) for name, p in model.module.named_parameters())
    return weights, gradients, "nothing"


def worker(wrap_again):
    return [changed(change, wrap_again) for change in CHANGES.values()]


def layers_apart(of_ranks):
    """The layers in which the ranks differ, each once."""
    first, *others = of_ranks
    names = [n for n, t in first.items() if any(not torch.equal(t, o[n]) for o in others)]
    return sorted({name.split(".")[0] for name in names})


# %%
# The wrapper does not look
# -------------------------
# For each change: the layers whose weights and whose gradients differ between ranks, and what was raised.

EXPECTED = {
    "set values in place": ([], [], "nothing"),
    "freeze a layer": ([], ["last"], "forward 3 raises"),
    "unfreeze a layer": ([], ["middle"], "nothing"),
    "add a layer": (["added"], ["added"], "nothing"),
    "replace a layer": (["last"], ["first", "last"], "forward 3 raises"),
    "tie two weights": ([], ["first", "last"], "forward 3 raises"),
    "convert to bfloat16": ([], ["first", "last"], "nothing"),
}


def table(ranks, wrap_again):
    rows = {}
    for name, found in zip(
        CHANGES, zip(*launch(worker, ranks, wrap_again), strict=True), strict=True
    ):
        weights, gradients, raised = zip(*found, strict=True)
        assert len(set(raised)) == 1
        rows[name] = layers_apart(weights), layers_apart(gradients), raised[0]
    return rows


print(f"{'change after wrapping':22} {'weights differ':15} {'gradients differ':17} raised")
for name, (weights, gradients, raised) in table(2, False).items():
    print(
        f"{name:22} {', '.join(weights) or 'none':15} {', '.join(gradients) or 'none':17} {raised}"
    )
    assert (weights, gradients, raised) == EXPECTED[name]
assert table(3, False) == EXPECTED

# %%
# New values in the same parameters change nothing for DDP, if each rank sets the same.
# What raises does so one forward late, as with any unused parameter.
# What raises nothing is worse: the hooks sit on the gradient accumulators that each parameter had when it was wrapped, and a change of type gives every parameter a new one.
# DDP then waits for no gradient and reduces none.
#
# Wrap again
# ----------
# The same changes, and then a new wrapper around the inner module.

for ranks in (2, 3):
    again = table(ranks, True)
    assert all(row == ([], [], "nothing") for row in again.values())
print(
    f"wrapped again: {len(again)} changes, no gradient and no weight differs, nothing is raised"
)

# %%
# What to notice
# --------------
# - A wrapper belongs to the parameters that it was given: their number, their ``requires_grad``, their type and device.
# - The silent rows are those in which each *old* hook either still fires or is no longer waited for.
# - Wrapping again copies rank 0's weights, so that a layer that each rank drew by itself is equal, too.
#
# What this does not mean
# -----------------------
# That the optimizer follows: it still holds the old parameters, so make a new one, or ``add_param_group``, for what was added or replaced.
#
# Change it: predict, then run
# ----------------------------
# In ``CHANGES`` convert to the type that the model has already: ``net.to(torch.float32)``.
# Which gradients differ then?
#
# Expect: none, because such a conversion changes nothing and the hooks stay where they were; the assertion that expects two layers to differ fails.
#
# Say it aloud
# ------------
# "The wrapper belongs to the parameters that it was given.
# Freezing or tying raises an error one forward late; adding a layer or converting the type raises nothing, and the ranks diverge.
# Wrapping again costs a broadcast and new buckets, and a wrong gradient costs the run."
