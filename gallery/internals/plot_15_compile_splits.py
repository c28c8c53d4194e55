"""
torch.compile splits its graph at bucket borders
================================================

How many graphs does ``torch.compile`` make of a DDP model, and why not one?
A compiled model is best as one graph, and DDP wants gradients early, a bucket at a time.
This lab counts the graphs at several bucket caps, and then measures why the compiler splits the model.
It serves :ref:`internals-compile`.

One compiled graph is one node for autograd, so its gradients come all at once; the compiler therefore cuts the model where DDP's buckets end.
Keep in mind: a cut lets a bucket leave, and keeps the compiler from fusing across it.

:Level: deep, 25 minutes
"""

# %%
# Eight layers of exactly 1 MiB each.
# The backend compiles nothing: it notes how many layers are in each graph that it is asked to compile.
# (The model is a class, because torch 2.13 captures no graph from a bare ``nn.Sequential`` inside DDP.)

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch, record
from ddplab.buckets import MIB, assign
from ddplab.runtime.clock import now, seconds, stamp
from ddplab.runtime.torch_private import ddp_facts, set_ddp_optimizer

LAYERS = 8


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def count(cap_mib):
    graphs = []

    def note(graph, inputs):
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append(sum("linear" in str(call.target) for call in calls))
        return graph.forward

    ddp = DistributedDataParallel(Stack().to(device()), bucket_cap_mb=cap_mib)
    compiled = torch.compile(ddp, backend=note)
    for _ in range(3):
        compiled(torch.randn(4, 512, device=device())).sum().backward()
    buckets = ddp_facts(ddp)["rebuilt_bucket_sizes"].split(", ")
    return graphs, [int(size) // MIB for size in buckets[::-1]]


# %%
# ``bucket_cap_mb=None`` is the default: 1 MiB for the first bucket, 25 MiB for the others.
# Layers are listed in the order of the forward, so the first bucket of the backward is the rightmost.

splits = {cap: launch(count, 2, cap, quiet=True)[0] for cap in (None, 1, 2, 4)}
print("bucket_cap_mb   DDP's buckets   graphs   layers per bucket         layers per graph")
for cap, (graphs, buckets) in splits.items():
    each = f"{'+'.join(map(str, buckets)):24}  {'+'.join(map(str, graphs))}"
    print(f"{cap or 'default':>13}   {len(buckets):13}   {len(graphs):6}   {each}")
    groups = assign([MIB] * LAYERS, cap_bytes=(cap or 25) * MIB, first_cap_bytes=MIB)
    assert [len(group) for group in groups] == graphs[::-1]

# %%
# With the defaults, and at 1 MiB, there is one graph per bucket.
# At 2 and 4 MiB there is one graph more, because the compiler counts by itself: it always closes its first group at 1 MiB, while an explicit ``bucket_cap_mb`` is the cap of DDP's first bucket too.
# DDP's greedy rule with that first cap predicts the graphs (``assign`` above).
# Each panel is a cap: above DDP's buckets, below the graphs.

# drawing
from ddplab.apparatus.plotting import ACCENT, MUTED, label, name_rows, subplots

fig, axes = subplots(len(splits), 1, height_in=3.6, sharex=True)
for ax, (cap, (graphs, buckets)) in zip(axes, splits.items(), strict=True):
    for y, (parts, color) in enumerate([(buckets, MUTED), (graphs, ACCENT)]):
        for i, n in enumerate(parts):
            left = sum(parts[:i])
            ax.barh(y, n - 0.08, 0.72, left + 0.04, color=color, alpha=0.45)
            label(ax, left + n / 2, y, f"{n} MiB")
    name_rows(ax, ["buckets", "graphs"])
    ax.set(xlim=(0, LAYERS), xticks=[])
    counts = f"{len(buckets)} buckets, {len(graphs)} graphs"
    ax.set_title(f"bucket_cap_mb={cap}: {counts}", fontsize=9)
axes[-1].set_xticks([layer + 0.5 for layer in range(LAYERS)], range(1, LAYERS + 1))
axes[-1].set_xlabel("layer, in the order of the forward")

# %%
# The compiler rejects a cap below 1 MiB, with an assertion in the first forward.

try:
    launch(count, 2, 0.5, quiet=True)
except LaunchError as error:
    print(str(error).splitlines()[-1])

# %%
# Why split at all?
# -----------------
# For autograd the backward of a graph is one node: its gradients appear together, when all of it is done.
# With one graph for the whole model, no all-reduce could start before the last gradient is ready.
# Here is the same model with a real backward graph (``aot_eager``), split and not split, beside eager.
# A communication hook notes when each bucket is launched; the fastest of five backwards is kept.


def launches(kind):
    set_ddp_optimizer(kind != "one graph")
    ddp, launched = DistributedDataParallel(Stack().to(device()), bucket_cap_mb=1), []

    def hook(state, bucket):
        launched.append(stamp())
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, hook)
    model = ddp if kind == "eager" else torch.compile(ddp, backend="aot_eager")
    runs = []
    for _ in range(8):
        loss = model(torch.ones(512, 512, device=device())).sum()
        launched.clear()
        now()
        started = stamp()
        loss.backward()
        ended = stamp()
        now()
        end_ms, *launched_ms = (1e3 * seconds(started, at) for at in (ended, *launched))
        runs.append((end_ms, launched_ms))
    return min(runs[3:])  # the first three rebuild buckets and compile


timelines = {}
print("            first launch   last launch   end of backward")
for kind in ("eager", "split", "one graph"):
    end_ms, launched_ms = timelines[kind] = launch(launches, 2, kind, quiet=True)[0]
    first, *_, last = launched_ms
    print(f"{kind:9}   {first:9.1f} ms   {last:8.1f} ms   {end_ms:12.1f} ms")
    assert len(launched_ms) == LAYERS
    name = kind.replace(" ", "_")
    record("ms", **{f"{name}_first": first, f"{name}_end": end_ms})

# %%
# Gray is the backward, each line in it the launch of one bucket.

# drawing
fig, ax = subplots(height_in=2.2)
for y, (end_ms, launched_ms) in enumerate(timelines.values()):
    ax.barh(y, end_ms, 0.5, color=MUTED, alpha=0.3)
    ax.plot(launched_ms, [y] * LAYERS, "|", color=ACCENT, markersize=16, markeredgewidth=1.8)
name_rows(ax, ["eager", "compiled, split", "compiled, one graph"])
ax.set_xlabel("ms since the start of the backward")
ax.set_title("One graph launches every bucket late and at once")

# %%
# What to notice
# --------------
# * Split, the first bucket leaves after :measured:`compile-splits.split_first:.0f`; as one graph, after :measured:`compile-splits.one_graph_first:.0f`.
# * The compiler (``DDPOptimizer`` in ``torch/_dynamo/backends/distributed.py``) reads the cap from the DDP module.
#   So wrap in DDP first and compile the wrapped model, or compile inside; it finds the module in both cases.
# * An explicit ``bucket_cap_mb`` above 1 MiB shifts the graphs by one against DDP's buckets (torch 2.13), so a bucket has to wait for the backward of two graphs.
#
# What this does not mean
# -----------------------
# More graphs are not better: the compiler cannot fuse across a border.
# The times are those of ``aot_eager``, which generates no code, on ranks that share this machine; they show the order of events, not what inductor gains.
#
# Change it: predict, then run
# ----------------------------
# Try a cap of 3 MiB in place of 4: ``for cap in (None, 1, 2, 3)``.
# Write down the layers per bucket and per graph first.
# Are there as many graphs as buckets?
#
# Expect: three buckets and four graphs, because the compiler closes its first group at 1 MiB, whatever cap you give.
#
# Say it aloud
# ------------
# "torch.compile splits a DDP model at bucket borders, because the backward of one graph delivers all its gradients at the end.
# Split, the first bucket leaves while the rest still computes.
# More graphs mean more overlap and less fusion, so on a fast link one graph may be the better choice."
