"""
Which batch fills the card
==========================

From which batch on does a larger one stop giving more samples per second?
It serves :ref:`gpu-mfu`.

Until the kernels fill the GPU, a step waits for the host and takes the same time for any batch; then it grows with the batch.
Think of a bus: until it is full, one more passenger costs nothing.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# The batch doubles until the memory or the time is used up.
# While the step waits for the host, it takes the same time for any batch, and samples per second double with the batch.
# Once the kernels fill the GPU, the time doubles instead; the batch between the two is the smallest that fills the card.
# On several GPUs, the same batch per rank alone and with all: that is weak scaling.

import itertools

import torch
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gpt import GPT
from ddplab.apparatus.gpu import DDP_WARM_UP, gpu_times_ms, host_time_ms, needs_gpus, worlds
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, log_axis, subplots

MODEL = {"width": 768, "layers": 12, "heads": 12, "tokens": 256, "vocabulary": 8192}
MOST = 512
LONGEST_MS, MOST_MEMORY = (
    600,
    0.6,
)  # a step that takes longer, or more of the GPU's memory, is the last
STILL_GROWS = 1.25  # by less than this, a doubled batch does not pay


def trainer():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = GPT(**MODEL).to(device())
    ddp = DistributedDataParallel(model, device_ids=[device()], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters())

    def step_of(batch):
        text = model.text(batch, device())

        def step():
            with torch.autocast(device().type, dtype=torch.bfloat16):
                loss = ddp(text)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    for _ in range(DDP_WARM_UP):
        step_of(1)()
    return step_of


def sweep():
    """Batch, GPU time in ms, host time in ms and peak memory as a share, for each batch."""
    step_of, rows, batch = trainer(), [], 1
    total = torch.cuda.get_device_properties().total_memory
    while batch <= MOST:
        torch.cuda.reset_peak_memory_stats()
        step = step_of(batch)
        ms = gpu_times_ms({"": step}, rounds=7)[""]
        host_ms = host_time_ms(step, rounds=3)
        memory = torch.cuda.max_memory_allocated() / total
        rows.append((batch, ms, host_ms, memory))
        if 2 * ms > LONGEST_MS or 2 * memory > MOST_MEMORY:
            break
        batch *= 2
    return rows


def one_batch(batch):
    return gpu_times_ms({"": trainer()(batch)}, rounds=10)[""]


# %%
# Run it
# ------

gpus = needs_gpus()
rows = launch(sweep, 1, quiet=True)[0]
print("batch     step ms   host ms   samples/s   peak memory")
for batch, ms, host_ms, memory in rows:
    print(f"{batch:5} {ms:11.2f} {host_ms:9.2f} {1e3 * batch / ms:11.1f} {memory:13.1%}")

# %%

# drawing
fig, ax = subplots(height_in=2.8)
describe(
    fig,
    "Samples per second against the batch, and the line on which they would double with it",
)
batches = [batch for batch, *_ in rows]
rates = [1e3 * batch / ms for batch, ms, *_ in rows]
ax.plot(batches, rates, "o-", color=ACCENT, label="measured")
ax.plot(
    batches,
    [rates[0] * batch / batches[0] for batch in batches],
    ":",
    color=MUTED,
    label="doubling",
)
log_axis(ax.xaxis, batches)
ax.set(yscale="log", xlabel="batch", ylabel="samples per second")
ax.axhline(max(rates), color=INK, lw=0.6)
ax.legend()
ax.set_title("One rank")

# %%
# Takeaway
# --------

pairs = list(itertools.pairwise(rows))
growth = [
    (before[0], (after[0] / after[1]) / (before[0] / before[1])) for before, after in pairs
]
filled = next((batch for batch, factor in growth if factor < STILL_GROWS), None)
if filled:
    print(
        f"A batch of {filled} fills the card: twice of it gives less than {STILL_GROWS} times the samples."
    )
else:
    print(f"No batch up to {rows[-1][0]} fills the card: the largest still gives more.")
best = filled or rows[-1][0]
host_bound = [batch for batch, ms, host_ms, _ in rows if host_ms > 0.9 * ms]
print("Steps that wait for the host: batches", ", ".join(map(str, host_bound)) or "none")
if gpus > 1:
    times = {ranks: max(launch(one_batch, ranks, best, quiet=True)) for ranks in worlds(gpus)}
    efficiency = times[1] / times[gpus]
    print(
        f"Weak scaling with {best} per rank: {gpus} ranks have {efficiency:.1%} of {gpus} times the rate."
    )
    record("%", weak_scaling=100 * efficiency)
record(filled=best, largest=rows[-1][0])
record("samples/s", first_rate=rates[0], best_rate=max(rates))

# %%
# Change it: predict, then run
# ----------------------------
# Double ``tokens``. Does the batch that fills the card halve?
#
# What this does not mean
# -----------------------
# That this batch trains best: how large a batch may be before it wastes samples is a question of the loss, not of the card.
#
# Say it aloud
# ------------
# "Below the batch that fills the card a larger one is free; above it samples per second stay the same.
# I double the batch until that stops paying, and watch the peak memory.
# A larger batch buys throughput, and pays with memory and with fewer updates per epoch."
