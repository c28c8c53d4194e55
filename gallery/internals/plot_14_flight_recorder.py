"""
The flight recorder: an X-ray of DDP
====================================

What does DDP really send, when, and which line asked for it?
Every rank of a torch program keeps a log of the collectives it issued: the flight recorder.
This lab reads the log after a constructor and two training steps, and then uses it to find out why two ranks hang.
It serves :ref:`internals-flight-recorder`.
"""

# %%
# The recorder is a ring buffer in memory.
# ``TORCH_FR_BUFFER_SIZE`` is the number of entries that it keeps; 2000 is the default in torch 2.13, and 0 turns it off.
# The model has two buckets, and a BatchNorm, whose statistics are buffers.

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.plotting import ACCENT, INK, MUTED, RANK_COLORS, subplots
from ddplab.torch_private import flight_records


def two_steps():
    layers = nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256)
    model = DDP(nn.Sequential(*layers).to(device()), bucket_cap_mb=0.25)
    for _ in range(2):
        model(torch.randn(8, 256, device=device())).sum().backward()
    return flight_records()


recorded = launch(two_steps, 2, env={"TORCH_FR_BUFFER_SIZE": "2000"})

# %%
# An entry has the collective's number within its process group, its size, and the Python frames that led to it.
# The frames tell the phase, and the innermost one tells the reason.

PHASES = {"__init__": "constructor", "_pre_forward": "forward"}
REASONS = {
    "_verify_param_shape_across_processes": "are the models alike?",
    "_sync_params_and_buffers": "rank 0's parameters, buffers",
    "_pre_forward": "rank 0's new bucket layout",
    "_distributed_broadcast_coalesced": "rank 0's buffers",
}


def explain(entry):
    functions = [function for function, _file, _line in entry.frames]  # a GPU's backward has none: another thread
    phase = next((PHASES[function] for function in functions if function in PHASES), "backward")
    return phase, REASONS.get(functions[0] if functions else "", "a bucket of gradients")


print("  #  phase        operation    elements  type   reason                        innermost frame")
for entry in recorded[0]:
    phase, reason = explain(entry)
    frame = entry.frames[0][0] if entry.frames else "–"
    what = f"{entry.operation:10} {entry.elements:10,}  {entry.dtype:5}"
    print(f"{entry.number:3}  {phase:11}  {what}  {reason:28}  {frame}")

# %%
# Every rank issued the same operations, of the same sizes, in the same order: the one rule of collectives.

plain = [[(entry.number, entry.operation, entry.elements) for entry in log] for log in recorded]
assert plain[0] == plain[1]
counts = {phase: sum(explain(entry)[0] == phase for entry in recorded[0]) for phase in ("constructor", "backward")}
record("collectives", total=len(plain[0]), **counts)

fig, ax = subplots(height_in=3.9)
for entry in recorded[0]:
    phase, reason = explain(entry)
    color, hatch = (ACCENT, None) if entry.operation == "all_reduce" else (MUTED, "///")
    bar = ax.barh(entry.number, entry.elements, color="none", edgecolor=color, hatch=hatch)
    if hatch is None:
        bar[0].set_facecolor(color)
    ax.annotate(f"{entry.operation}: {reason}", (entry.elements, entry.number), (5, 0), textcoords="offset points", va="center", fontsize=8)
phases = [explain(entry)[0] for entry in recorded[0]]
starts = [i for i, phase in enumerate(phases) if i == 0 or phases[i - 1] != phase]
for start in starts[1:]:
    ax.axhline(start + 0.5, color=MUTED, linewidth=0.6)
ax.set_yticks([start + 1 for start in starts], [phases[start] for start in starts])
ax.set(xscale="log", xlim=(0.7, 3e7), ylim=(len(phases) + 0.6, 0.4), xlabel="elements (log scale)")
ax.set_title("All that DDP sends: constructor and two steps, in order")

# %%
# A hang
# ------
# Now a bug that every team has once: the mean loss is computed with an all-reduce, but only rank 0 logs.
# Rank 0 waits in its fourth collective for a rank that never comes.
# Here the group's timeout is 2 s, and rank 0 reads its recorder when the time is up.


def only_rank_zero_logs():
    group = dist.new_group(timeout=timedelta(seconds=2), backend="gloo")

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
# The last number of each rank says who is missing; the frames of the rank that waits say where.

for rank, log in enumerate(logs):
    entry = log[-1]
    _function, file, line = next(frame for frame in entry.frames if frame[0] in ("train_step", "log_mean_loss"))
    print(f"rank {rank}: last collective #{entry.number}, {entry.operation} of {entry.elements:,} elements, {_function}")
last = [log[-1].number for log in logs]
behind = last.index(min(last))
print(f"rank {behind} never issued #{min(last) + 1}")
assert last == [4, 3]
