"""
Replicas that start equal
=========================

Averaged gradients keep equal replicas equal; what makes them equal in the first place?
Stage 1 of the class refuses replicas that differ, stage 2 makes them equal.
It serves :ref:`from-scratch-equal-start`.

Averaged gradients keep replicas as equal as they were, so something has to make them equal first.
Keep in mind: a check needs an answer from every rank, or those that pass it wait for the one that does not.

:Level: core, 8 minutes
:Proves: scratch-broadcasts
"""

# %%
# Each rank builds the same architecture, from its own seed or from a common one, and wraps it.

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights, gap
from ddplab.scratch import broadcast, verify


def build(own_seed):
    torch.manual_seed(dist.get_rank() if own_seed else 0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device())


# %%
# Stage 1: verify
# ---------------
# Three ranks, three seeds.
# Each rank sees all ranks' parameters, so all of them raise, and each can name the wrong one and where it differs.


def accepted(own_seed):
    try:
        verify.DDP(build(own_seed))
    except ValueError as error:
        print(error)
        return False
    return True


assert launch(accepted, 3, True) == [False] * 3

# %%
# With a common seed, the same class raises nothing.

equal_seeds = launch(accepted, 3, False)
print(f"equal seeds: {sum(equal_seeds)} of {len(equal_seeds)} ranks accepted the model")
assert all(equal_seeds)

# %%
# Stage 2: broadcast
# ------------------
# Seeds no longer matter: rank 0's weights win.


def before_and_after():
    model = build(own_seed=True)
    model.register_buffer("mine", torch.tensor(dist.get_rank(), device=device()))
    return flat_weights(model), flat_weights(broadcast.DDP(model)), model.mine.item()


before, after, buffers = zip(*launch(before_and_after, 3), strict=True)
print("three seeds       gap between ranks")
print(f"before wrapping   {gap(before):.4f}")
print(f"after wrapping    {gap(after):g}")
print(f"rank 2 now has rank 0's weights: {torch.equal(after[2], before[0])}")
assert gap(before) > 0
assert gap(after) == 0
assert torch.equal(after[2], before[0])
assert buffers == (0, 0, 0)
record(before=gap(before), after=gap(after))

# %%
# What to notice
# --------------
# - Every rank raises, with the same text: a check that stops one rank leaves its peers waiting for it in their next collective.
# - After stage 2 the gap is :measured:`start-equal.after`, down from :measured:`start-equal.before:.2f`.
#   What all ranks hold is rank 0's initialization, not a mean of three.
#
# What this does not mean
# -----------------------
# That there is nothing left to verify once you broadcast.
# A broadcast needs tensors of equal shape on all ranks and does not check; the class at the end of the chapter verifies names, shapes and types, and copies the values.
#
# Change it: predict, then run
# ----------------------------
# Seed two of the three ranks alike: ``torch.manual_seed(dist.get_rank() // 2 if own_seed else 0)``.
# Which ranks raise, and whom do they name?
#
# Expect: all three raise and name rank 2, the first that differs from rank 0; the broadcast of stage 2 then makes it equal as before.
#
# Say it aloud
# ------------
# "Replicas must start equal, so either every rank verifies what all hold, or rank 0 broadcasts.
# Verifying finds a mistake and stops the job; broadcasting repairs it without a message.
# DDP verifies shapes, which cannot be repaired, and broadcasts values, which costs one transfer of the model."
