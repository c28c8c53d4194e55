"""
A checkpoint with ``module.`` in its names
==========================================

``Missing key(s) in state_dict`` when a checkpoint of a DDP run is loaded for evaluation, or on one process.
Someone adds ``strict=False``, the error goes away, and nothing is loaded.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-module-prefix
"""

# %%
# The broken program
# ------------------
# It was saved as ``ddp.state_dict()``, and is loaded on rank 0 before wrapping, because the constructor sends rank 0's weights to all.

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.apparatus.gaps import flat_weights
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report


def load(net, state, strict=True, strip=False):
    if strip:
        consume_prefix_in_state_dict_if_present(state, "module.")
    net.load_state_dict(state, strict=strict)


def worker(unwrap, options):
    group = gloo_group()  # on every machine: the peer's text is gloo's own

    def network(seed):
        torch.manual_seed(seed)
        return nn.Linear(4, 1).to(device())

    saved, file = DDP(network(seed=0), process_group=group), io.BytesIO()
    torch.save((saved.module if unwrap else saved).state_dict(), file)

    net = network(seed=1)
    if dist.get_rank() == 0:
        file.seek(0)
        load(net, torch.load(file), **options)
    model = DDP(net, process_group=group)
    same = flat_weights(model) == flat_weights(saved)
    return f"{same.sum()} of {same.numel()} weights are those of the checkpoint"


# %%
# What every rank reports
# -----------------------

endings = reader, peer = postmortem(worker, 2, False, {})
print(report(endings))
assert 'Missing key(s) in state_dict: "weight", "bias"' in reader.error
assert 'Unexpected key(s) in state_dict: "module.weight", "module.bias"' in reader.error
assert peer.lost_peer

# %%
# The wrapper is a module with one child called ``module``, so its names have that prefix.
# Only the rank that loads reports it; the other waits in DDP's constructor for rank 0's weights, and sees a closed connection.
#
# With ``strict=False``
# ---------------------

endings = postmortem(worker, 2, False, {"strict": False})
print(report(endings))
assert all(e.value.startswith("0 of 5") for e in endings)

# %%
# It allows all names to be missing, and training starts from new weights on all ranks; only the loss shows it, compared with the end of the last run.
#
# The fix
# -------
# Save ``ddp.module.state_dict()``.
# For files that exist, torch has a function that strips the prefix.

fixes = {"saved from ddp.module": (True, {}), "prefix stripped": (False, {"strip": True})}
for title, arguments in fixes.items():
    endings = postmortem(worker, 2, *arguments)
    print(f"{title}\n{report(endings)}")
    assert all(e.value.startswith("5 of 5") for e in endings)

# %%
# How to recognize it
# -------------------
# Every missing name appears once more among the unexpected ones, with ``module.`` in front; or the other way around, if a bare checkpoint is loaded into the wrapper.
# If you need ``strict=False``, read what it returns: ``missing_keys`` must list the layers that you meant to add, and no others.
