"""
The flight recorder: an X-ray of DDP
====================================

What does DDP really send, when, and which line asked for it?
Every rank of a torch program keeps a log of the collectives it issued: the flight recorder.
This lab reads the log after a constructor and two training steps, and then uses it to find out why two ranks hang.
It serves :ref:`internals-flight-recorder`.

Every rank keeps a numbered list of the collectives that it issued, and who asked for them.
Keep in mind: the lists of all ranks must be equal, so the first line in which they differ is the fault.

:Level: core, 15 minutes
"""

# %%
# The recorder is a ring buffer in memory.
# ``TORCH_FR_BUFFER_SIZE`` is the number of entries that it keeps: 2000 by default in torch 2.13; 0 turns it off.
# The model has two buckets, and a BatchNorm, whose statistics are buffers.

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.runtime.torch_private import flight_records


def two_steps():
    layers = nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256)
    model = DistributedDataParallel(nn.Sequential(*layers).to(device()), bucket_cap_mb=0.25)
    for _ in range(2):
        model(torch.randn(8, 256, device=device())).sum().backward()
    return flight_records()


recorded = launch(two_steps, 2, env={"TORCH_FR_BUFFER_SIZE": "2000"})

# %%
# An entry has the collective's number within its process group, its size, and the Python frames that led to it.
# The frames show the phase, and the innermost one shows the reason.

PHASES = {"__init__": "constructor", "_pre_forward": "forward"}
REASONS = {
    "_verify_param_shape_across_processes": "are the models alike?",
    "_sync_params_and_buffers": "rank 0's model state",
    "_pre_forward": "rank 0's new bucket layout",
    "_distributed_broadcast_coalesced": "rank 0's buffers",
}


def explain(entry):
    # On a GPU the backward's entries have no frames: another thread issued them.
    functions = [function for function, _file, _line in entry.frames] or [""]
    phase = next((PHASES[name] for name in functions if name in PHASES), "backward")
    return phase, REASONS.get(functions[0], "a bucket of gradients")


print("  #  phase        operation    elements  type   reason")
for entry in recorded[0]:
    phase, reason = explain(entry)
    what = f"{entry.operation:10} {entry.elements:10,}  {entry.dtype:5}"
    print(f"{entry.number:3}  {phase:11}  {what}  {reason}")

# %%
# Every rank issued the same operations, of the same sizes, in the same order: the one rule of collectives.

first, second = ([(e.number, e.operation, e.elements) for e in log] for log in recorded)
assert first == second
phases = [explain(entry)[0] for entry in recorded[0]]
record("collectives", constructor=phases.count("constructor"), total=len(phases))

# %%
# The same log as a picture: filled bars are all-reduces, hatched ones broadcasts and all-gathers.

# drawing
from ddplab.apparatus.plotting import (
    ACCENT,
    INK,
    MUTED,
    RANK_COLORS,
    label,
    name_rows,
    subplots,
)

GRADIENTS, OTHER = {"color": ACCENT}, {"color": "none", "edgecolor": MUTED, "hatch": "///"}
BESIDE = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 8.5}
fig, ax = subplots(height_in=3.9)
for entry in recorded[0]:
    look = GRADIENTS if entry.operation == "all_reduce" else OTHER
    ax.barh(entry.number, entry.elements, **look)
    text = f"{entry.operation}: {explain(entry)[1]}"
    ax.annotate(text, (entry.elements, entry.number), **BESIDE)
starts = [i for i in range(len(phases)) if i == 0 or phases[i] != phases[i - 1]]
for start in starts[1:]:
    ax.axhline(start + 0.5, color=MUTED, linewidth=0.6)
labels = [f"{phases[start]}  {start + 1}" for start in starts]
ax.set_yticks([start + 1 for start in starts], labels)
ax.set(xscale="log", xlim=(0.7, 6e7), ylim=(len(phases) + 0.6, 0.4))
ax.set_xlabel("elements (logarithmic)")
ax.set_title("All that DDP sends: constructor and two steps, in order")

# %%
# A hang
# ------
# Now a common bug: the mean loss is an all-reduce, and only rank 0 logs.
# Rank 0 waits in its fourth collective for a rank that never comes.
# Here the group's timeout is 2 s, and the worker reads its recorder when the time is up.


def only_rank_zero_logs():
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=2))

    def train_step():
        dist.all_reduce(torch.ones(1000), group=group)

    def log_mean_loss():
        dist.all_reduce(torch.ones(1), group=group)

    try:
        for _ in range(3):
            train_step()
        if dist.get_rank() == 0:
            log_mean_loss()
    except RuntimeError as error:
        print(str(error).split("] ")[-1])
    return [entry for entry in flight_records() if entry.group == group.group_name]


logs = launch(only_rank_zero_logs, 2)

# %%
# The last number of each rank shows who is missing, and the frames of the other rank show where it waits.

for rank, log in enumerate(logs):
    last = log[-1]
    function = next(f for f, *_ in last.frames if f in ("train_step", "log_mean_loss"))
    what = f"{last.operation} of {last.elements:,} in {function}"
    print(f"rank {rank} came to #{last.number}: {what}")
numbers = [log[-1].number for log in logs]
behind = numbers.index(min(numbers))
print(f"rank {behind} never issued #{numbers[behind] + 1}")
assert numbers == [4, 3]

# %%
# The two logs below each other.

# drawing
fig, ax = subplots(height_in=1.5)
for rank, log in enumerate(logs):
    for entry in log:
        ax.barh(rank, 0.9, 0.7, entry.number - 0.45, color=RANK_COLORS[rank], alpha=0.4)
        label(ax, entry.number, rank, f"all_reduce of {entry.elements:,}")
ax.barh(behind, 0.9, 0.7, max(numbers) - 0.45, color="none", edgecolor=INK, linestyle="--")
label(ax, max(numbers), behind, "never issued")
name_rows(ax, ["rank 0", "rank 1"])
ax.set(xticks=range(1, 5), xlim=(0.5, 4.5))
ax.set_xlabel("number of the collective in its process group; elements in each box")
ax.set_title("The last number per rank shows who is missing")

# %%
# What to notice
# --------------
# * The constructor issues :measured:`flight-recorder.constructor`: two ask whether the models are alike, the others copy rank 0's state, one broadcast per dtype.
# * The first backward sends all gradients as one bucket; from the second on it is one all-reduce per bucket.
#   The second forward first broadcasts rank 0's new layout: the index of each parameter, then the size of each bucket.
# * The loss, the optimizer and ``zero_grad`` do not appear: they send nothing.
# * The numbers count per process group: compare ranks within one group.
#   NCCL's watchdog can write the log to a file when a collective times out; on gloo you read it yourself, as above.
#
# What this does not mean
# -----------------------
# A recorded collective was issued, but has not necessarily finished.
# On gloo the entry's own state never leaves "scheduled" (torch 2.13), so compare numbers between ranks.
#
# Change it: predict, then run
# ----------------------------
# Let ``two_steps`` make three.
# Which entries does the third step add, and which kind of entry of the second does not come again?
#
# Expect: the broadcasts of the buffers and one all-reduce per bucket; the new bucket layout was sent once, in the second forward.
#
# Say it aloud
# ------------
# "The flight recorder is a ring buffer of collectives: number, operation, size, and the frames that issued it.
# After a hang I compare the last number of each rank; the one behind is missing, and the frames of the others say where they wait.
# A larger buffer reaches further back, and takes memory on every rank."
