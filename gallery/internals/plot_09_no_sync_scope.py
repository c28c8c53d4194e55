"""
What no_sync must enclose
=========================

Which calls must ``model.no_sync()`` enclose to skip the all-reduce of a micro-batch?
Much published code puts only ``backward()`` inside it.
This lab tries every scope, and counts what is communicated.
It serves :ref:`internals-no-sync`.

``no_sync`` sets a flag, and the forward reads it: it decides whether the backward that follows will communicate.
Keep in mind: the context has to be open when the forward runs.

:Level: core, 15 minutes
:Proves: no-sync-acts-on-forward no-sync-accumulates accumulation-divides-allreduces
"""

# %%
# Four scopes for one forward and one backward
# --------------------------------------------
# ``quiet(model, inside)`` is ``model.no_sync()`` or a context that does nothing.
# The model has two buckets, so a synchronizing backward issues two all-reduces.
# Two ordinary steps come first, so that the buckets have been rebuilt before anything is counted.

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.runtime.torch_private import flight_records


def quiet(model, inside):
    return model.no_sync() if inside else contextlib.nullcontext()


def allreduces():
    return sum(entry.operation == "all_reduce" for entry in flight_records())


def batches(rank, count):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(8, 64, generator=generator).to(device()) for _ in range(count)]


def build():
    torch.manual_seed(0)
    layers = nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1)
    net = nn.Sequential(*layers).to(device())
    return net, DistributedDataParallel(copy.deepcopy(net), bucket_cap_mb=0.02)  # MiB


def one_step(around_forward, around_backward):
    _, model = build()
    *warm_up, x = batches(dist.get_rank(), 3)
    for warm in warm_up:
        model(warm).square().mean().backward()
    model.zero_grad()

    before = allreduces()
    with quiet(model, around_forward):
        loss = model(x).square().mean()
    with quiet(model, around_backward):
        loss.backward()
    return flat_gradients(model), allreduces() - before


SCOPES = {"nothing": (0, 0), "backward only": (0, 1), "forward only": (1, 0), "both": (1, 1)}
gaps, counts = [], []
print(f"{'no_sync around':15} all-reduces  gap between ranks")
for scope, arounds in SCOPES.items():
    (first, issued), (second, others) = launch(one_step, 2, *arounds, quiet=True)
    assert others == issued
    gaps.append(gap([first, second]))
    counts.append(issued)
    print(f"{scope:15} {issued:11}  {gaps[-1]:16.4f}")
assert counts == [2, 2, 0, 0]
assert [apart == 0 for apart in gaps] == [True, True, False, False]
record(backward_only_gap=gaps[1], forward_only_gap=gaps[2])
record("all-reduces", backward_only=counts[1], forward_only=counts[2])

# %%
# The forward decides: it prepares the reducer or does not, and backward follows what the forward left.

# drawing
from ddplab.apparatus.plotting import ACCENT, MUTED, name_rows, subplots

fig, (left, right) = subplots(1, 2, height_in=2.3, sharey=True)
for ax, values, form in ((left, counts, "{}"), (right, gaps, "{:.2f}")):
    ax.barh(range(4), values, color=[MUTED, MUTED, ACCENT, ACCENT], height=0.6)
    for row, value in enumerate(values):
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(form.format(value), (value, row), **beside)
    ax.set_xlim(0, max(values) * 1.25)
name_rows(left, list(SCOPES))
left.set(ylabel="no_sync around …", xticks=[0, 1, 2], xlabel="all-reduces issued")
right.set_xlabel("gradient gap between the two ranks")
left.set_title("The forward decides …")
right.set_title("… whether the ranks agree")

# %%
# Accumulation, right and wrong
# -----------------------------
# Four micro-batches, one optimizer step; each loss is divided by four.
# The reference is the gradient of the mean loss over the micro-batches of both ranks, on one copy of the model.

MICRO = 4


def accumulate(variant, micro=MICRO):
    net, model = build()
    everything = torch.cat([x for rank in range(2) for x in batches(rank, micro)])
    net(everything).square().mean().backward()
    for _ in range(3):  # the first two rebuild the buckets
        model.zero_grad()
        before = allreduces()
        for i, x in enumerate(batches(dist.get_rank(), micro)):
            skip = i < micro - 1 or variant == "no_sync on every one"
            with quiet(model, skip and variant not in ("no no_sync", "backward only")):
                loss = model(x).square().mean() / micro
                with quiet(model, skip and variant == "backward only"):
                    loss.backward()
    error = gap([flat_gradients(model), flat_gradients(net)])
    return flat_gradients(model), allreduces() - before, error


issued_by, EXPECTED = {}, {"no no_sync": 2 * MICRO, "backward only": 2 * MICRO}
EXPECTED |= {"forward and backward": 2, "no_sync on every one": 0}
print(f"{'accumulation':22} all-reduces per step  gap between ranks  error")
for variant, expected in EXPECTED.items():
    (first, issued, error), (second, others, _) = launch(accumulate, 2, variant, quiet=True)
    issued_by[variant] = issued
    apart = gap([first, second])
    print(f"{variant:22} {issued:20}  {apart:17.4f}  {error:.0e}")
    assert issued == others == expected
    assert (apart == 0 and error < 1e-6) == (variant != "no_sync on every one")
for micro in (1, 2, 8):  # one all-reduce for each of the two buckets, however many there are
    assert [n for _, n, _ in launch(accumulate, 2, "forward and backward", micro)] == [2, 2]
record("all-reduces", wrong_scope=issued_by["backward only"])
record("all-reduces", right_scope=issued_by["forward and backward"])

# %%
# What to notice
# --------------
# - Around backward only, ``no_sync`` does nothing: the step issues :measured:`no-sync-scope.backward_only`, as without it.
#   Around the forward only, it suppresses the synchronization, and the ranks are :measured:`no-sync-scope.forward_only_gap:.3f` apart.
# - The wrong scope gives the *right* gradient: each micro-batch is averaged by itself, instead of their sum once.
#   You pay :measured:`no-sync-scope.wrong_scope` per optimizer step instead of :measured:`no-sync-scope.right_scope`, and no loss curve shows it.
# - If the last micro-batch is also inside ``no_sync``, nothing is reduced and the ranks drift without an error.
#
# What this does not mean
# -----------------------
# That ``no_sync`` around the forward alone is enough: enclose both, as the documentation asks, which works whichever of the two reads the flag in the version you run.
#
# Change it: predict, then run
# ----------------------------
# Set ``MICRO = 8``.
# Which of the four counts of all-reduces per step change?
#
# Expect: the two that communicate in every micro-batch double; the right scope stays at one all-reduce per bucket, and *no_sync on every one* at none.
#
# Say it aloud
# ------------
# "To accumulate, I put the forward and the backward of all micro-batches but the last into no_sync, because the forward decides.
# Around the backward alone it changes no number and saves nothing.
# Accumulating sends less per sample, and costs fewer updates per epoch."
