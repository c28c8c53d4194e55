"""
When gradients synchronize
==========================

Which line of a training step makes the ranks agree: the forward, the backward or ``optimizer.step()``?
This lab stops after each of them, compares gradients and parameters between three ranks, and lists the collectives that were issued on the way.
It serves :ref:`internals-sync-point`.

Ranks agree in one place of a step, the backward; forward and optimizer are local.
Keep in mind: DDP makes gradients equal, and equal gradients keep weights equal only if every rank applies them in the same way.

:Level: core, 12 minutes
:Proves: grads-equal-after-backward step-communicates-nothing gradient-is-mean optimizer-state-stays-equal
"""

# %%
# The state that is compared
# --------------------------
# Each rank trains on its own data and takes four snapshots per step: after the forward, *while* backward runs, after it has returned, and after the step.
# A hook on each parameter sees the local gradient before DDP reduces it: that is the snapshot from inside backward.
# The script compares the snapshots, so comparing issues no collective.
# The model has a single bucket, about 1 kB of gradients.
# With ``synchronize=False`` the same loop runs under ``no_sync``, as a control: DDP then never reduces anything.

import contextlib
import itertools
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap
from ddplab.runtime.torch_private import flight_records

RANKS, STEPS = 3, 4


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def worker(synchronize, make_optimizer=momentum):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    model = DistributedDataParallel(net.to(device()))
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters)
    own_data = torch.Generator().manual_seed(dist.get_rank())
    local = {}
    for i, p in enumerate(parameters):
        p.register_hook(lambda grad, i=i: local.update({i: grad.flatten().cpu()}))
    snapshots, issued = [], []  # snapshots: (gradients, parameters)
    for _ in range(STEPS):
        x = torch.randn(32, 8, generator=own_data).to(device())
        seen = [len(flight_records())]
        with contextlib.nullcontext() if synchronize else model.no_sync():
            loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
            snapshots.append((None, flat_weights(model)))
            seen.append(len(flight_records()))
            loss.backward()
            in_order = torch.cat([local[i] for i in range(len(parameters))])
            snapshots.append((in_order, flat_weights(model)))
            snapshots.append((flat_gradients(model), flat_weights(model)))
            seen.append(len(flight_records()))
        optimizer.step()
        snapshots.append((flat_gradients(model), flat_weights(model)))
        seen.append(len(flight_records()))
        optimizer.zero_grad()
        names = [entry.operation for entry in flight_records()]
        issued.append([names[a:b] for a, b in itertools.pairwise(seen)])
    states = [state for p in parameters for state in optimizer.state[p].values()]
    return snapshots, issued, torch.cat([state.flatten().cpu() for state in states])


synced, control = launch(worker, RANKS, True), launch(worker, RANKS, False)

# %%
# What was issued
# ---------------
# Every collective of the process group, by the line that issued it.


def times(names):
    return ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names))) or "–"


issued = synced[0][1]
assert all(rank_issued == issued for _, rank_issued, _ in synced)
print(f"{'step':4}  {'forward':12}  {'backward':12}  optimizer.step()")
for step, (forward, backward, update) in enumerate(issued):
    print(f"{step:4}  {times(forward):12}  {times(backward):12}  {times(update)}")
    assert backward == ["all_reduce"]
    assert update == []
assert control[0][1] == [[[], [], []]] * STEPS

# %%
# What the ranks hold
# -------------------
# The gap is the largest difference between any two ranks, over all elements.

POINTS = ["after forward", "in backward", "after backward", "after step"]


def gaps(results, which):
    """Gap at each of the points of each step; NaN where there is no gradient yet."""
    points = zip(*(snapshots for snapshots, *_ in results), strict=True)
    held = ([state[which] for state in states] for states in points)
    return [math.nan if values[0] is None else gap(values) for values in held]


gradient_gap, parameter_gap = gaps(synced, 0), gaps(synced, 1)
control_gradient_gap, control_parameter_gap = gaps(control, 0), gaps(control, 1)
print(f"step {STEPS - 1:9}  gradient gap  parameter gap  parameter gap without sync")
for i, point in enumerate(POINTS, start=4 * (STEPS - 1)):
    gradient = "no gradient" if math.isnan(gradient_gap[i]) else f"{gradient_gap[i]:.4f}"
    parameters = f"{parameter_gap[i]:13.4f}  {control_parameter_gap[i]:26.4f}"
    print(f"{point:14}  {gradient:>12}  {parameters}")
assert all(gradient_gap[1::4])
assert not any(apart for i, apart in enumerate(gradient_gap) if i % 4 > 1)
assert not any(parameter_gap)
for at in range(1, 4 * STEPS, 4):  # what they agree on is the mean
    local = torch.stack([snapshots[at][0] for snapshots, *_ in synced])
    torch.testing.assert_close(synced[0][0][at + 1][0], local.mean(dim=0))
record(in_backward=gradient_gap[-3], after_backward=gradient_gap[-2])
record(after_step=parameter_gap[-1], without_sync=control_parameter_gap[-1])

# %%
# Adam and AdamW send nothing either, and what an optimizer remembers stays equal, though nobody sends it.

adam, adamw = (launch(worker, RANKS, True, o) for o in (torch.optim.Adam, torch.optim.AdamW))
for results in (synced, adam, adamw):
    assert not any(update for _, issued, _ in results for *_, update in issued)
    assert gap([states for *_, states in results]) == 0
assert gap([states for *_, states in control]) > 0

# %%
# The same over all steps; the gray bands are the backwards.

# drawing
from ddplab.apparatus.plotting import ACCENT, FAINT, MUTED, subplots

fig, (top, bottom) = subplots(2, 1, height_in=4.2, sharex=True)
x = [step + at for step in range(STEPS) for at in (0.3, 0.55, 0.8, 1.0)]
for ax, ours, theirs in (
    (top, gradient_gap, control_gradient_gap),
    (bottom, parameter_gap, control_parameter_gap),
):
    for step in range(STEPS):
        ax.axvspan(step + 0.3, step + 0.8, color=FAINT, lw=0)
    ax.plot(x, theirs, "s--", color=MUTED, ms=4, lw=1.2)
    ax.plot(x, ours, "o-", color=ACCENT, ms=5)
    ax.set_xlim(0, STEPS + 0.75)
    ax.set_xticks(range(STEPS + 1))
    ax.set_ylabel("gap between ranks")
    ax.text(STEPS + 0.06, theirs[-1], "without sync", va="center")
    ax.text(STEPS + 0.06, ours[-1], "DDP", color=ACCENT, va="center", weight="bold")
top.set_ylim(top=top.get_ylim()[1] * 1.1)
top.text(0.55, top.get_ylim()[1] * 0.97, "backward", ha="center", va="top", fontsize=8.5)
top.set_title("Gradients differ while backward runs, and agree when it returns")
bottom.set_title("Parameters never differ, because equal gradients update them")
bottom.set_xlabel("training step")

# %%
# What to notice
# --------------
# - The only all-reduce is in backward, and when ``backward()`` has returned the gradients are averaged (on a GPU, for what its stream runs next): inside the last one they are :measured:`when-gradients-sync.in_backward:.2f` apart, after it :measured:`when-gradients-sync.after_backward`.
# - ``optimizer.step()`` issues nothing.
#   It keeps the replicas equal only because each rank applies the same update to the same state.
# - The second forward broadcasts twice, and only that one: rank 0 sends the others the rebuilt order of the buckets.
#
# What this does not mean
# -----------------------
# That replicas stay equal whatever you do after backward: DDP never compares parameters again.
# If anything makes ``step`` differ between ranks (a clipping threshold, a learning rate, optimizer state restored on one rank), they drift without an error.
#
# Change it: predict, then run
# ----------------------------
# Give each rank a learning rate of its own: ``lr=0.05 * (1 + dist.get_rank())``.
# Which of the two gaps is still zero after the backward?
#
# Expect: that of the gradients, in every step; the parameters differ and nothing is raised, until the lab's assertion on the parameters fails.
#
# Say it aloud
# ------------
# "The all-reduce is inside backward, and when backward returns the gradients are the mean of all ranks.
# The step sends nothing, it repeats the same arithmetic on every rank.
# That saves a message per step, and it means that a learning rate or a state that differs on one rank is never noticed."
