"""
Hooks and overlap
=================

Does the network have to wait for the last gradient?
Stage 6 of the class launches a bucket from a hook, as soon as its last gradient is ready; this lab takes time stamps of what happens.
It serves :ref:`from-scratch-overlap`.

A hook on each parameter counts its bucket down, and the last gradient of a bucket launches it while the backward goes on.
Keep in mind: launching is asynchronous, waiting comes once, at the end.

:Level: deep, 20 minutes
:Proves: overlap-launches-inside-backward
"""

# %%
# Three stamps: *ready* from our hook on each parameter, registered before the class registers its own; *launched* and *done* from an ``all_reduce`` that notes them.

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.apparatus.heads import TwoHeads
from ddplab.runtime.clock import now, seconds, stamp
from ddplab.scratch import flat, overlap

LAYERS, WIDTH, BATCH, STEPS = 6, 1024, 384, 5  # six gradients of 4 MiB each


def stamped(all_reduce, stamps):
    def send(tensor, async_op=False):
        stamps["launched"].append(stamp())
        work = all_reduce(tensor, async_op=True)
        stamps["done"].append(work.get_future().then(lambda _: stamp()))
        if not async_op:
            work.wait()
        return work

    return send


def worker(stage):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    net, stamps, steps = nn.Sequential(*layers).to(device()), {}, []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda _: stamps["ready"].append(stamp()))
    model = overlap.DDP(net, bucket_cap_mb=4) if stage == "overlap" else flat.DDP(net)
    dist.all_reduce = stamped(dist.all_reduce, stamps)
    x = torch.randn(BATCH, WIDTH).to(device())
    for _ in range(STEPS):
        stamps |= {"ready": [], "launched": [], "done": []}
        loss = model(x).square().mean()
        dist.barrier()
        now()
        start = stamp()
        loss.backward()
        if stage == "flat":
            model.sync_gradients()
        stamps |= {"end": [stamp()], "done": [future.wait() for future in stamps["done"]]}
        now()  # until then a GPU's stamps are still to come
        ms = {what: [1e3 * seconds(start, at) for at in stamps[what]] for what in stamps}
        steps.append({**ms, "end": ms["end"][0]})
        model.zero_grad()
    return sorted(steps[1:], key=lambda step: step["end"])[len(steps) // 2 - 1]


seen = {stage: launch(worker, 2, stage)[0] for stage in ("flat", "overlap")}

# %%
# The step of median length on rank 0, without the first one.

print("rank 0    all-reduces   first launch   last gradient   all averaged   exposed")
for stage, step in seen.items():
    first, last, end = step["launched"][0], step["ready"][-1], step["end"]
    times = f"{first:12.1f} ms{last:13.1f} ms{end:12.1f} ms{end - last:7.1f} ms"
    print(f"{stage:8}{len(step['launched']):13}{times}")
    record("ms", **{f"{stage}_first_launch": first, f"{stage}_last_gradient": last})
    record("ms", **{f"{stage}_averaged": end, f"{stage}_exposed": end - last})
assert seen["flat"]["launched"][0] > seen["flat"]["ready"][-1]
assert seen["overlap"]["launched"][0] < seen["overlap"]["ready"][1]
ready, launched = seen["overlap"]["ready"], seen["overlap"]["launched"]
assert all(r <= at for r, at in zip(ready, launched, strict=True))
assert launched[-2] < ready[-1]  # all but the last bucket

# %%
# Each row is a gradient, in the order in which they became ready.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, RANK_COLORS, describe, subplots

fig, axes = subplots(2, 1, height_in=3.9, sharex=True)
describe(fig, "When gradients are ready and messages travel on rank 0, in both stages")
titles = {
    "flat": "flat: one message, when backward is over",
    "overlap": "overlap: a bucket leaves when it is full",
}
for ax, (stage, step) in zip(axes, seen.items(), strict=True):
    ax.plot(step["ready"], range(LAYERS), "o", ms=5, color=INK, zorder=3)
    rows = LAYERS / len(step["launched"])  # gradients per message
    for bucket, (start, done) in enumerate(zip(step["launched"], step["done"], strict=True)):
        y = (bucket + 0.5) * rows - 0.5
        ax.barh(y, done - start, rows - 0.4, start, color=RANK_COLORS[0], alpha=0.7)
    ax.axvline(step["ready"][-1], color=MUTED, lw=1, ls=":")
    ax.axvline(step["end"], color=ACCENT, lw=1.4, ls="--")
    ax.set(ylabel="gradient, as ready", ylim=(LAYERS - 0.4, -0.6), yticks=range(LAYERS))
    ax.set_title(titles[stage])
axes[1].set(xlabel="time since backward began (ms)", xlim=(0, None))
key = "dot: gradient ready · bar: its message travels · dotted: last gradient · dashed: all averaged"
fig.supxlabel(key, fontsize=9.5)

# %%
# A gap in this stage
# -------------------
# A bucket is launched when its last gradient arrives, and the end of backward waits for every bucket.
# What if one gradient never comes?
# Here head b of a model with two heads is left out: once from the first step on, once after a complete step.


def leave_out_b(steps):
    model = overlap.DDP(TwoHeads().to(device()))
    x = torch.full((2, 4), 1.0 + dist.get_rank()).to(device())
    for heads in steps:
        model.zero_grad()
        try:
            model(x, heads).mean().backward()
        except AttributeError as error:
            return str(error), flat_gradients(model)
    return "no error", flat_gradients(model)


for name, steps in (("never used", ["a"]), ("used, then left out", ["ab", "a"])):
    (result, first), (_, second) = launch(leave_out_b, 2, steps)
    print(f"head b {name}: {result}; gap between ranks {gap([first, second]):.2f}")
    assert (result == "no error") == (len(steps) == 2)
    assert gap([first, second]) > 0
record(silent_gap=gap([first, second]))

# %%
# What to notice
# --------------
# - *flat* can launch only after the last gradient, after :measured:`hooks-and-overlap.flat_first_launch:.0f`, so all of its communication is exposed.
# - *overlap* launches its first bucket after :measured:`hooks-and-overlap.overlap_first_launch:.0f`, long before the last gradient, which comes after :measured:`hooks-and-overlap.overlap_last_gradient:.0f`; only the end of the last buckets is then exposed.
# - A gradient that never comes raises an obscure error if its bucket never left, and no error at all if it once did: the old message counts as the new one, and the ranks are :measured:`hooks-and-overlap.silent_gap:.2f` apart.
#   Stage 8 closes this gap.
#
# What this does not mean
# -----------------------
# That overlap reduces the total work.
# On CPU ranks the transfer needs the cores that compute, so the last gradient may come later than without overlap.
#
# Change it: predict, then run
# ----------------------------
# Give ``overlap.DDP`` ``bucket_cap_mb=8``, two gradients per bucket.
# How many all-reduces does it launch, and after which gradient the first?
#
# Expect: three, the first with the second gradient; the assertion that it leaves before the second one is ready fails.
#
# Say it aloud
# ------------
# "Autograd calls my hook when a gradient is ready; when a bucket is complete I start its all-reduce and go on, and at the end of the backward I wait for all of them.
# So communication hides behind computation.
# Small buckets hide more and cost more messages, and a gradient that never comes now needs a rule."
