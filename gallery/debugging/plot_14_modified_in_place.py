"""
A buffer that changes under a backward
======================================

Two forwards, one backward, and a buffer that the forward uses: a GAN's discriminator on real and on generated samples, with a running scale.
Under DDP, and only there, this used to stop with ``one of the variables needed for gradient computation has been modified by an inplace operation``.
torch 2.13 reports nothing, and the gradient is wrong.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-modified-in-place
"""

# %%
# The broken program
# ------------------
# The module divides by a running scale.
# It assigns a *new* tensor in each forward, so no graph loses the old one.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.runtime.needs import needs

needs(torch="2.13")  # before, autograd noticed and raised


class Scaled(nn.Module):
    def __init__(self, clone):
        super().__init__()
        self.net, self.clone = nn.Linear(4, 1), clone
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.scale = 0.5 * self.scale + 0.5 * x.detach().std()
        scale = self.scale.clone() if self.clone else self.scale  # clone: a fix, below
        return self.net(x) / scale


def worker(second_forward, wrap=True, clone=False, sync=None):
    torch.manual_seed(0)
    model = Scaled(clone).to(device())
    model = DDP(model, forward_sync_buffers=sync) if wrap else model
    torch.manual_seed(dist.get_rank())
    real, fake = (1 + 3 * dist.get_rank()) * torch.randn(2, 8, 4).to(device())
    out = model(real)
    if second_forward == "before backward":
        model(fake)  # its loss is left out, so that it cannot matter
    out.mean().backward()
    if second_forward == "after backward":
        model(fake)
    return next(model.parameters()).grad.norm().item()


# %%
# What every rank gets
# --------------------
# The gradient of the first output cannot depend on a later forward.
# Without DDP it does not; with DDP it does, and no rank raises.

print(f"{'norm of the gradient of the first output':46}rank 0   rank 1")
norms = {}
for title, wrap in (("one process", False), ("DDP", True)):
    for second in ("none", "before backward"):
        here = norms[title, second] = launch(worker, 2, second, wrap, quiet=True)
        print(f"{title:12} second forward: {second:16}", *(f"{norm:8.4f}" for norm in here))
assert norms["one process", "none"] == norms["one process", "before backward"]
right, wrong = norms["DDP", "none"], norms["DDP", "before backward"]
assert wrong[0] == wrong[1] != right[0]  # equal on all ranks, and wrong
record(right=right[0], wrong=wrong[0])

# %%
# DDP broadcasts rank 0's buffers at the start of each forward, *into* the tensors that the other ranks hold (:ref:`internals-buffers`).
# On rank 1 the first graph has saved such a tensor, and the second forward writes rank 0's scale into it.
#
# Autograd used to notice by the tensor's version.
# In torch 2.13 ``DistributedDataParallel._sync_buffers`` runs under ``_unsafe_preserve_version_counter``, so that BatchNorm, whose backward does not read its running statistics in training mode, may run twice; so a buffer that *is* read is not noticed either.
#
# The fix
# -------
# Give the graph its own copy, or run each backward before the next forward, or do not broadcast buffers in the forward.

for fix, arguments in {
    "scale.clone() in the forward": ("before backward", True, True),
    "backward, then the second forward": ("after backward",),
    "forward_sync_buffers=False": ("before backward", True, False, False),
}.items():
    fixed = launch(worker, 2, *arguments, quiet=True)
    print(f"{fix:45}", *(f"{norm:8.4f}" for norm in fixed))
    assert fixed == right

# %%
# How to recognize it
# -------------------
# Comparing ranks does not help: they agree.
# Compare the gradient norm with ``forward_sync_buffers=False`` against the default, on one step from the same weights: :measured:`modified-in-place.right:.4f` against :measured:`modified-in-place.wrong:.4f` here.
# On a release that still raises, the error names the type and shape of the *buffer* (a vector of channels, or a scalar), and the same program passes on one process without DDP.
