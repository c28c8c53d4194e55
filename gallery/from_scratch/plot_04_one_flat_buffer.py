"""
One flat buffer
===============

Why is one all-reduce per parameter slow, when the bytes are the same?
Stage 5 of the class copies all gradients into one flat buffer and sends that.
It serves :ref:`from-scratch-flat`.

A message costs a fixed time, and then time for its bytes; many small ones pay the fixed part many times.
Think of postage: one parcel instead of three hundred letters.

:Level: core, 12 minutes
:Proves: flat-one-allreduce
"""

# %%
# The model is the one with many small tensors: 151 layers of 64 by 64.

import statistics

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients
from ddplab.runtime.clock import now
from ddplab.runtime.torch_private import flight_records
from ddplab.scratch import flat, naive

LAYERS, WIDTH = 151, 64


def one_step(stage):
    torch.manual_seed(0)
    model = stage.DDP(
        nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(device())
    )
    torch.manual_seed(dist.get_rank())
    model(torch.randn(8, WIDTH).to(device())).square().mean().backward()
    before = len(flight_records())
    model.sync_gradients()
    return flat_gradients(model), [entry.elements for entry in flight_records()[before:]]


results = {stage: launch(one_step, 2, stage)[0] for stage in (naive, flat)}
print("stage                  all-reduces   elements in all")
for stage, (_, elements) in results.items():
    print(f"{stage.__name__.rpartition('.')[2]:22} {len(elements):11,}   {sum(elements):15,}")
(per_parameter, many), (flattened, one) = results.values()
print(f"equal gradients, bit for bit, on 2 ranks: {torch.equal(per_parameter, flattened)}")
assert torch.equal(per_parameter, flattened)
assert (len(many), len(one)) == (2 * LAYERS, 1)
assert sum(many) == sum(one)
record("all-reduces", messages=len(many))
record("MiB", size=4 * sum(one) / 2**20)

# %%
# What a message costs
# --------------------
# Send the same bytes in more and more pieces, and nothing else.

PIECES = [1, 38, 76, 151, 227, 302]


def in_pieces(elements, rounds):
    flat_buffer, times = torch.randn(elements).to(device()), {count: [] for count in PIECES}
    for _ in range(rounds):
        for count in PIECES:
            pieces = flat_buffer.tensor_split(count)
            dist.barrier()
            start = now()
            for piece in pieces:
                dist.all_reduce(piece)
            times[count].append(1e3 * (now() - start))
        flat_buffer.normal_()
    return [statistics.median(times[count]) for count in PIECES]


ms = launch(in_pieces, 2, sum(one), 7)[0]
slope, intercept = statistics.linear_regression(PIECES, ms)
print(f"1 message: {ms[0]:.2f} ms; {PIECES[-1]} messages: {ms[-1]:.1f} ms, for the same bytes")
print(f"straight line: {1e3 * slope:.0f} µs for each message more")
record("ms", one_message=ms[0], all_messages=ms[-1])
record("µs", per_message=1e3 * slope)

# %%
# The line shows what a message costs apart from its bytes.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, describe, subplots

fig, ax = subplots(height_in=2.7)
describe(
    fig,
    "Time to all-reduce the same bytes in 1 to 302 messages, with a straight line through it",
)
ax.axline((0, intercept), slope=slope, color=INK, lw=1, ls="--")
ax.plot(PIECES, ms, "o", color=ACCENT, ms=6)
ax.annotate(
    "flat: one message",
    (1, ms[0]),
    (12, 0.3 * ms[-1]),
    arrowprops={"arrowstyle": "-", "color": INK},
)
ax.text(PIECES[-1] - 6, ms[-1], "naive: one per parameter", ha="right", va="bottom")
ax.set(xlabel="all-reduces that carry the gradient", ylabel="time (ms)", xlim=(-4, 320))
ax.set_ylim(0, 1.15 * max(ms))
ax.set_title("The same bytes cost more in more messages")

# %%
# What to notice
# --------------
# - Neither the bytes nor the bits of the result changed; only the number of messages did.
# - Each all-reduce costs about :measured:`one-flat-buffer.per_message:.0f` before its first byte counts: on two ranks that is twice the latency :math:`\alpha` of a message (:ref:`internals-collectives`), here of the stamp's backend between two processes that share a machine.
#   :measured:`one-flat-buffer.messages` one after the other pay it that many times.
#
# What this does not mean
# -----------------------
# That fewer messages are always better.
# A single message can only leave when the last gradient is ready; the next stage fixes that.
#
# Change it: predict, then run
# ----------------------------
# Run the first comparison on three ranks: ``launch(one_step, 3, stage)``.
# Are the gradients of both stages still equal bit for bit?
#
# Expect: no: in the flat buffer a number stands in another place, so its sum starts at another rank, and from three ranks on the order of additions shows in the last bits; the assertion fails.
#
# Say it aloud
# ------------
# "Every all-reduce has a latency before its first byte counts, so I copy all gradients into one buffer and send that.
# The bytes are the same, the number of messages is one.
# What I lose is overlap: the one message cannot leave before the last gradient is ready."
