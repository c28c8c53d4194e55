"""
Compiled graphs and their buckets, in order of events
=====================================================

Does a compiled DDP model still send its first bucket while the rest of the backward runs?
This lab records, in order, when the backward of each graph ends and when each bucket is launched; no clock is needed.
It serves :ref:`performance-compile`; :doc:`/labs/internals/plot_15_compile_splits` counts graphs against caps.

To autograd a compiled graph is one node: its gradients appear together, when its backward ends.
So a bucket can leave early only if a graph ends where the bucket does.

:Level: deep, 15 minutes
:Proves: perf-compiled-buckets-leave-early
"""

# %%
# What is recorded
# ----------------
# The backend traces each graph's backward with torch's own ``aot_autograd``, runs it unchanged, and then logs its end.
# A communication hook logs each launch.
# (``aot_backend`` wraps ``aot_autograd`` of `torch's page on custom backends <https://docs.pytorch.org/docs/stable/torch.compiler_custom_backends.html>`__.)
# Six layers of exactly 1 MiB: with caps of 1 MiB there are six buckets.

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, describe, label, name_rows, subplots
from ddplab.runtime.torch_private import aot_backend, set_ddp_optimizer

LAYERS, RANKS = 6, 2


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def unchanged(graph, inputs):
    return graph.forward


def worker(cap_mib, split):
    set_ddp_optimizer(split)
    log, graphs = [], []

    def logged(graph, inputs):
        number = len(graphs)
        graphs.append(number)

        def backward(*tensors):
            gradients = graph.forward(*tensors)
            log.append(("graph", number))
            return gradients

        return backward

    def hook(state, bucket):
        log.append(("bucket", bucket.index(), bucket.buffer().nbytes // 2**20))
        return allreduce_hook(None, bucket)

    ddp = DistributedDataParallel(Stack().to(device()), bucket_cap_mb=cap_mib)
    ddp.register_comm_hook(None, hook)
    compiled = torch.compile(ddp, backend=aot_backend(unchanged, logged))
    for _ in range(4):  # the first three compile and rebuild buckets
        log.clear()
        compiled(torch.randn(8, 512, device=device())).sum().backward()
    return log


# %%
# The order of events
# -------------------
# Graphs are numbered as the backward runs them.

CASES = {"1 MiB, split": (1, True), "2 MiB, split": (2, True), "1 MiB, one graph": (1, False)}
logs, before = {}, {}
for name, case in CASES.items():
    ranks = launch(worker, RANKS, *case, quiet=True)
    assert ranks[0] == ranks[1]  # the order is the program's, not the clock's
    logs[name] = log = ranks[0]
    ends = [at for at, event in enumerate(log) if event[0] == "graph"]
    before[name] = sum(event[0] == "bucket" for event in log[: ends[-1]])
    print(f"{name}: {len(ends)} graphs, {len(log) - len(ends)} buckets")
    words = [f"{kind} {number}" for kind, number, *_ in log]
    for start in range(0, len(log), 6):
        print("    " + "  ".join(words[start : start + 6]))

in_turn = [(kind, n) for n in range(LAYERS) for kind in ("graph", "bucket")]
assert [event[:2] for event in logs["1 MiB, split"]] == in_turn
assert logs["2 MiB, split"][:3] == [("graph", 0), ("graph", 1), ("bucket", 0, 2)]
assert [event[0] for event in logs["1 MiB, one graph"]] == ["graph"] + ["bucket"] * LAYERS
names = "before_1", "before_2", "before_one"
record("buckets", **dict(zip(names, before.values(), strict=True)))

# %%
# Read from left to right: a graph's backward ends, or a bucket is launched.

# drawing
fig, axes = subplots(3, 1, height_in=3.4, sharex=True)
describe(fig, "Order of the ends of graphs and the launches of buckets, in three cases")
for ax, (name, log) in zip(axes, logs.items(), strict=True):
    last = max(at for at, event in enumerate(log) if event[0] == "graph")
    for at, (kind, number, *_) in enumerate(log):
        color = FAINT if kind == "graph" else ACCENT
        hatch = "" if kind == "graph" else "///"
        ax.barh(kind == "bucket", 0.9, left=at, color=color, hatch=hatch, ec=INK, lw=0.6)
        if kind == "graph":
            label(ax, at + 0.45, 0, number)
    ax.axvline(last + 0.95, color=INK, ls=":", lw=1)
    name_rows(ax, ["graph ends", "bucket leaves"], margin=0.6)
    title = f"{name}: {before[name]} buckets leave before the last graph ends"
    ax.set_title(title, fontsize=9.5)
axes[-1].set(xlabel="events in their order (dotted: the last graph has ended)", xticks=[])

# %%
# What to notice
# --------------
#
# - Split at the buckets' borders, :measured:`compile-overlap.before_1:d` of six buckets leave before the backward of the last graph has ended; only the last has nothing left to hide behind.
# - With an explicit cap of 2 MiB the graphs are shifted against the buckets, since the compiler closes its first group at 1 MiB: bucket 0 is complete only when two graphs have run, and so on.
#   Each leaves one layer later than it could; the results are still right.
# - With one graph all gradients appear at its end, and :measured:`compile-overlap.before_one:d` leave before it.
#
# What this does not mean
# -----------------------
#
# That split is faster: a border also ends what the compiler can fuse, and which weighs more is a question for your model and link.
# The graphs run here as they were traced; inductor's first step takes many seconds on a CPU, and does not change this order.
#
# Change it: predict, then run
# ----------------------------
# Give the second case a cap of 6 in place of 2.
# How many graphs are there, and what leaves early?
#
# Expect: two graphs, since the compiler's first group closes at 1 MiB, and one bucket after both; the assertion fails.
#
# Say it aloud
# ------------
# "One graph would hand over all gradients at its end, so the compiler splits a DDP model at the buckets' borders.
# More graphs let buckets leave earlier, and leave the compiler less to fuse."
