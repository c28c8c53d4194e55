"""
Leave one out
=============

Weights and optimizer are in every checkpoint. What else has to be there, and what happens if it is missing?
This lab resumes one run eleven times, once with everything and then without one entry at a time, and compares each with the run that was never interrupted.
It serves :ref:`checkpointing-exact`.

A resume is exact only if everything that the next steps read was restored.
A missing entry shows where it is first read: in the loss, after an update, or only in the evaluation.

:Level: core, 20 minutes
:Proves: ckpt-leave-one-out ckpt-first-loss-proves-little ckpt-rng-of-each-rank
"""

# %%
# The run
# -------
# 24 steps on two ranks, with everything that keeps a state: BatchNorm, dropout, AdamW, a schedule, a scaler for fp16, and a sampler that shuffles.
# It is saved after step 14, two steps into the second epoch.

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights, gap
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, describe, subplots

SAVED, STEPS, IN_EPOCH, BATCH = 14, 24, 12, 8


class Run:
    def __init__(self, x):
        torch.manual_seed(0)
        first, last = nn.Linear(16, 64), nn.Linear(64, 4)
        middle = nn.BatchNorm1d(64, momentum=0.02), nn.Tanh(), nn.Dropout(0.2)
        self.model = DistributedDataParallel(nn.Sequential(first, *middle, last).to(device()))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        options = {"init_scale": 2.0**22, "growth_interval": 5}
        self.scaler = torch.amp.GradScaler(device().type, **options)
        self.sampler = DistributedSampler(x, seed=7)
        self.x, self.epoch, self.position = x, 0, 0
        torch.manual_seed(1 + dist.get_rank())  # dropout differs between ranks

    def loss(self, x):
        with torch.autocast(device().type, dtype=torch.float16):
            return (self.model(x).float() - x[:, :4].sin()).square().mean()

    def step(self):
        self.sampler.set_epoch(self.epoch)
        mine = list(self.sampler)[self.position * BATCH :][:BATCH]
        loss, scale = self.loss(self.x[mine]), self.scaler.get_scale()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:  # else the optimizer's step was skipped
            self.scheduler.step()
        more, self.position = divmod(self.position + 1, IN_EPOCH)
        self.epoch += more
        return loss.item(), flat_weights(self.model)


# %%
# What is saved, entry by entry
# -----------------------------
# Random numbers are saved for each rank; everything else is equal on all ranks, because DDP and the sampler made it so.

STATEFUL = "optimizer", "scheduler", "scaler"


def save(run):
    rngs = [None] * dist.get_world_size()
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    dist.all_gather_object(rngs, (torch.get_rng_state(), *cuda))
    net = run.model.module
    entries = {"weights": dict(net.named_parameters()), "buffers": dict(net.named_buffers())}
    entries |= {name: getattr(run, name).state_dict() for name in STATEFUL}
    entries |= {"rng": rngs, "epoch": run.epoch, "position": run.position}
    return copy.deepcopy(entries)


def restore(run, entries):
    values = {**entries.get("weights", {}), **entries.get("buffers", {})}
    run.model.module.load_state_dict(values, strict=False)  # some are missing on purpose
    for name in entries.keys() & STATEFUL:
        getattr(run, name).load_state_dict(copy.deepcopy(entries[name]))
    run.epoch, run.position = entries.get("epoch", 0), entries.get("position", 0)
    if "rng" in entries:
        cpu, *cuda = entries["rng"][dist.get_rank() % len(entries["rng"])]
        torch.set_rng_state(cpu)
        for state in cuda:
            torch.cuda.set_rng_state(state)


# %%
# Leave one out
# -------------
# "rng of rank 0" restores the random numbers of rank 0 on every rank, which is all that a file written by rank 0 alone can offer.
# "step" is what many loops compute ``epoch`` and ``position`` from, so leaving it out takes both.

ALONE = ("weights", "buffers", *STATEFUL, "rng")
OUT = {name: {name} for name in ALONE}
OUT |= {"rng of rank 0": set(), "epoch": {"epoch"}, "position": {"position"}}
OUT |= {"step": {"epoch", "position"}}


def worker():
    torch.manual_seed(3)
    x = (4 * torch.randn(2 * BATCH * IN_EPOCH, 16)).to(device())

    def finish(run):
        kept = [run.step() for _ in range(STEPS - SAVED)]
        with torch.no_grad():
            run.model.eval()
            return *zip(*kept, strict=True), run.loss(x).item()

    whole = Run(x)
    for _ in range(SAVED):
        whole.step()
    saved = save(whole)
    losses, weights, evaluated = finish(whole)
    rows = {}
    for name, out in {"nothing": set(), **OUT}.items():
        entries = {entry: state for entry, state in saved.items() if entry not in out}
        if name == "rng of rank 0":
            entries["rng"] = saved["rng"][:1]
        run = Run(x)
        restore(run, entries)
        other_losses, other_weights, other = finish(run)
        apart = [gap(two) for two in zip(weights, other_weights, strict=True)]
        rows[name] = abs(losses[0] - other_losses[0]), apart, abs(evaluated - other)
    return rows, saved["scaler"]["scale"]


ranks, scales = zip(*launch(worker, 2, quiet=True), strict=True)
print("off by, after resuming    first loss     weights after        evaluation")
print("left out                  of any rank   1 step  10 steps      at the end")
for name, (_, apart, evaluation) in ranks[0].items():
    first, key = max(rows[name][0] for rows in ranks), name.replace(" ", "_")
    assert all(rows[name][1] == apart for rows in ranks)  # wrong, but equal on all ranks
    print(f"{name:24}{first:13.2g}{apart[0]:11.2g}{apart[-1]:10.2g}{evaluation:16.2g}")
    assert (first == apart[-1] == evaluation == 0) == (name == "nothing")
    assert (apart[-1] == 0) == (name in ("nothing", "buffers"))
    assert (first == 0) == (name in ("nothing", "buffers", *STATEFUL))
    if name != "nothing":
        record(**{key: apart[-1], f"{key}_loss": first})
assert ranks[0]["rng of rank 0"][0] == 0 < ranks[1]["rng of rank 0"][0]
assert scales[0] == scales[1] < 2.0**22  # in fp16 steps were skipped
record(steps=STEPS - SAVED, scale=scales[0], buffers_evaluation=ranks[0]["buffers"][2])

# %%
# A missing entry shows at once in the first loss, from the first update on, or only in the evaluation.
# The picture has a panel for each entry; the gray lines are the others.

# drawing
fig, axes = subplots(2, 5, height_in=3.4, sharex=True, sharey=True)
describe(fig, "Difference from the uninterrupted weights, for each entry that was left out")
for ax, name in zip(axes.flat, OUT, strict=True):
    for other in OUT:
        mine = {"color": ACCENT, "lw": 2.2, "zorder": 3} if other == name else {"color": FAINT}
        ax.plot(range(1, STEPS - SAVED + 1), ranks[0][other][1], clip_on=False, **mine)
    ax.set_yscale("symlog", linthresh=1e-4, linscale=0.4)
    ax.set(ylim=(0, 0.3), yticks=[0, 1e-4, 1e-3, 1e-2, 1e-1], xticks=[1, 5, 10])
    ax.set_title(name, fontsize=9.5)
axes[0, 1].text(1, 2e-4, "weights: 0", color=INK)
for ax in axes[:, 0]:
    ax.set_ylabel("largest difference")
axes[1, 2].set_xlabel("steps after resuming")

# %%
# What to notice
# --------------
#
# - With everything restored all differences are 0: not small, zero.
# - A first loss that looks right proves little: without the state of the optimizer, the scheduler or the scaler it is right to the last bit.
# - Without its buffers the resumed run trains on as if nothing were missing, since BatchNorm normalizes by the batch; in the evaluation it is off by :measured:`leave-one-out.buffers_evaluation:.2g`.
# - All ranks are wrong in the same way. Comparing ranks, which finds so many mistakes of DDP, finds none of these.
#
# What this does not mean
# -----------------------
#
# That each of these ruins a training run; many of them only make it a different one.
# The sizes belong to this model and these steps, and with other seeds their order changes.
# Nor that a run with everything restored is exact on more than two ranks: it is not, and :doc:`/labs/checkpointing/plot_11_same_buckets` finds out why.
#
# Change it: predict, then run
# ----------------------------
# Set ``SAVED`` to 12, the end of an epoch.
# Which entry can now be left out?
#
# Expect: ``position``, which is 0 there; the assertion that every entry matters fails.
#
# Say it aloud
# ------------
# "I test a resume bit for bit against a run that was not interrupted.
# A first loss that is right proves little: without the optimizer's state it is right too.
# Saving at the end of an epoch needs less state, and saving within it loses fewer steps."
