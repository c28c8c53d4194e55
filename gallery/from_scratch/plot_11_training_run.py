"""
One training run, line by line
==============================

You have written the training loop many times: which of its lines communicate with other ranks, and which take the time?
A small transformer trains on two ranks, every line of its step has a name, and a profiler notes when each begins and ends.
It serves :ref:`from-scratch-training-run`.

Of all lines of a training step only the backward, and a forward with buffers, talk to other ranks.
Keep in mind: zeroing, clipping, stepping and logging are local.

:Level: core, 15 minutes
:Proves: communication-inside-backward
"""

# %%
# ``line`` is torch's ``record_function``: it puts a name into the profile for as long as its block runs.
# On a GPU a line only queues work, so it also waits for the device at the end of its block; your own run should not.

import statistics

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.next_word import Transformer, loader
from ddplab.apparatus.profiled import line, profiled

RANKS, BATCH, TOKENS, WORDS, WIDTH = 2, 16, 32, 64, 128
WAIT, WARMUP, ACTIVE = 2, 1, 5  # steps that the profiler ignores, warms up on, and keeps
STEPS = WAIT + WARMUP + ACTIVE
LINES = ["data", "to device", "zero_grad", "forward", "backward", "clip", "step", "log"]
SENDS = {"c10d::broadcast_": "broadcast", "c10d::allreduce_": "all_reduce"}  # call: collective

# %%
# The run
# -------
# The model, a transformer of three layers (``ddplab.apparatus.next_word``), reads word numbers and predicts, at each position, the next one.
# The data follows a rule that can be learned: word :math:`w` is followed by :math:`5w + 7`, modulo the number of words.


def train(after_step):
    torch.manual_seed(0)
    net = Transformer(WORDS, WIDTH, TOKENS).to(device())
    model = DistributedDataParallel(net, bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data, losses = loader(STEPS * BATCH * RANKS, WORDS, TOKENS, BATCH), []
    batches = iter(data)
    for _ in range(STEPS):
        with line("data"):
            (words,) = next(batches)
        with line("to device"):
            words = words.to(device())
        with line("zero_grad"):
            optimizer.zero_grad()
        with line("forward"):
            scores = model(words[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        with line("backward"):
            loss.backward()
        with line("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        with line("step"):
            optimizer.step()
        with line("log"):
            losses.append(loss.item())
        after_step()
    return losses


# %%
# The profiler leaves out the first two steps, because DDP rebuilds its buckets in the second.


def worker():
    names = *LINES, *SENDS, *SENDS.values()
    return profiled(train, names, wait=WAIT, warmup=WARMUP, active=ACTIVE)


ranks = launch(worker, RANKS, quiet=True)

# %%
# Where the time goes, and where the ranks talk
# ---------------------------------------------
# A collective leaves two entries: the call that launches it, and the time until it is done.
# The call lies in the line that made it.


def inside(spans, start, end):
    return [span for span in spans if start <= span[0] < end]


losses, spans = ranks[0]
took = {name: statistics.median(end - start for start, end in spans[name]) for name in LINES}
shares = {name: 100 * ms / sum(took.values()) for name, ms in took.items()}
print("rank 0             ms    share   broadcasts  all-reduces launched")
for name in LINES:
    sent = [sum(len(inside(spans[s], *at)) for at in spans[name]) / ACTIVE for s in SENDS]
    counts = "".join(f"{count:13.0f}" if count else f"{'–':>13}" for count in sent)
    print(f"{name:14} {took[name]:6.2f} {shares[name]:7.1f}%{counts}")
print(f"\nloss of rank 0: {losses[0]:.2f} in the first step, {losses[-1]:.2f} in the last")

for _, spans in ranks:
    assert len(spans["c10d::allreduce_"]) >= ACTIVE
    for call, returned in spans["c10d::allreduce_"]:
        assert any(start < call and returned < end for start, end in spans["backward"])
record("%", **{f"share_{name}": shares[name] for name in ("forward", "backward", "step")})
record(allreduces=len(spans["c10d::allreduce_"]) // ACTIVE)

# %%
# The step of median length: the lines of the loop, and below them the collectives.

# drawing
from ddplab.apparatus.plotting import FAINT, INK, RANK_COLORS, describe, subplots

whole = [log[1] - data[0] for data, log in zip(spans["data"], spans["log"], strict=True)]
step = sorted(range(ACTIVE), key=whole.__getitem__)[ACTIVE // 2]
begin = min(spans["data"][step][0] for _, spans in ranks)

fig, ax = subplots(height_in=4.8)
describe(fig, "One training step on two ranks, line by line, with its collectives below")
for rank, (_, spans) in enumerate(ranks):
    rows = [spans[name][step] for name in LINES]
    sent = sorted(span for collective in SENDS.values() for span in spans[collective])
    rows += inside(sent, rows[0][0], rows[-1][1])
    look = {"color": RANK_COLORS[rank], "hatch": "////" * rank, "ec": INK, "lw": 0.6}
    for row, (start, end) in enumerate(rows):
        ax.barh(row + 0.4 * rank - 0.2, end - start, 0.4, start - begin, **look)
    ax.axvspan(rows[4][0] - begin, rows[4][1] - begin, color=FAINT, alpha=0.5, zorder=0)
    ax.text(rows[3 + rank][1] - begin, 2.8 + 1.4 * rank, f" rank {rank}", va="center")
reduces = [f"all-reduce {i}" for i in range(1, len(rows) - len(LINES))]
ax.set_yticks(range(len(rows)), [*LINES, "broadcast", *reduces])
ax.invert_yaxis()
ax.axhline(len(LINES) - 0.5, color=INK, lw=1)
ax.tick_params("y", length=0, labelsize=11)
ax.set_xlabel("time since the step began (ms) · shaded: backward", fontsize=11)
ax.set_title("All-reduces begin inside backward, and no line after it has one")

# %%
# What to notice
# --------------
# - All :measured:`training-run.allreduces` all-reduces begin inside ``backward()``, which takes :measured:`training-run.share_backward:.0f` of this step.
#   Zeroing, clipping, stepping and logging send nothing.
# - The forward launches a broadcast that nobody wrote: the causal mask is a *buffer* of the model, and DDP sends rank 0's buffers before each forward, whether they changed or not.
# - ``clip`` and ``step`` follow the all-reduces, so both ranks clip the same gradient and take the same step.
# - A bar below the line includes waiting: no rank finishes an all-reduce before the slower one has launched it.
#   It may end a moment late, because gloo's thread delivers the result before it notes the end.
#
# What this does not mean
# -----------------------
# That your step has these shares: they belong to this model and this machine.
# Nor that ``data`` is free: here the samples are in memory and need no decoding.
#
# Change it: predict, then run
# ----------------------------
# Set ``bucket_cap_mb=25``.
# How many all-reduces does the backward launch, and what can they overlap with?
#
# Expect: one, and with nothing: the whole model fits into one bucket, which leaves when the last gradient is ready.
#
# Say it aloud
# ------------
# "I name every line of the step in the profiler and look where the collectives were launched: inside the backward, plus a broadcast of buffers in the forward.
# Clip and step come after, on the same averaged gradient.
# Naming and waiting for each line makes the step readable, and on a GPU it makes it slower, so I do not leave it in."
