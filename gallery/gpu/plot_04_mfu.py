"""
Which MFU is yours
==================

What share of the card's arithmetic does a training step use, and does the number format change it?
It serves :ref:`gpu-mfu`.

MFU is the rate of the FLOPs that the model needs, divided by the rate that the card reaches.
Only the model's own FLOPs count: work that is repeated or wasted takes time and adds none.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# Two tables: the rate of a large product of matrices in each format, which is the peak that this card reaches, and the rate of a training step of a small GPT.
# Their ratio is the *model FLOPs utilization*, MFU, here against the measured peak and not against a data sheet.
# A faster format raises the peak more than the step, so expect tokens per second to rise while the MFU falls.

import torch
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.labs.gpt import GPT
from ddplab.labs.gpu import gpu_times_ms, needs_gpus, worlds
from ddplab.labs.plotting import ACCENT, INK, describe, name_rows, subplots

MODEL = {"width": 2048, "layers": 8, "heads": 16, "tokens": 1024, "vocabulary": 16384}
BATCH = 8
SIZE = 8192

# How float32 products are computed, and the dtype of autocast.
FORMATS = {
    "fp32": ("highest", None),
    "TF32": ("high", None),
    "bf16": ("highest", torch.bfloat16),
}


def product_of(dtype, here):
    a, b = (
        torch.rand(SIZE, SIZE, device=here, dtype=dtype or torch.float32) for _ in range(2)
    )
    return lambda: a @ b


def step_of(model, optimizer, text, dtype):
    def step():
        with torch.autocast(text.device.type, dtype=dtype, enabled=dtype is not None):
            loss = model(text)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def worker():
    """Teraflops per second of the product and of the step, and tokens per second, by format."""
    torch.manual_seed(0)
    here, peaks, rates = device(), {}, {}
    for name, (precision, dtype) in FORMATS.items():
        torch.set_float32_matmul_precision(precision)
        ms = gpu_times_ms({name: product_of(dtype, here)}, rounds=7)[name]
        peaks[name] = 2 * SIZE**3 / ms / 1e9
    model = GPT(**MODEL).to(here)
    ddp = DistributedDataParallel(model, device_ids=[here], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters())
    text = model.text(BATCH, here)
    for name, (precision, dtype) in FORMATS.items():
        torch.set_float32_matmul_precision(precision)
        step = step_of(ddp, optimizer, text, dtype)
        ms = gpu_times_ms({name: step}, rounds=5, warm_up=3)[name]
        rates[name] = model.flops(BATCH) / ms / 1e9, 1e3 * BATCH * MODEL["tokens"] / ms
    torch.set_float32_matmul_precision("highest")
    return peaks, rates


# %%
# Run it
# ------

gpus = needs_gpus()
mfu = {}
for ranks in worlds(gpus):
    for rank, (peaks, rates) in enumerate(launch(worker, ranks, quiet=True)):
        print(f"rank {rank} of {ranks}   peak TFLOP/s   step TFLOP/s     MFU   tokens/s")
        for name, (rate, tokens) in rates.items():
            mfu[ranks, rank, name] = rate / peaks[name]
            print(
                f"  {name:10} {peaks[name]:14.1f} {rate:14.1f} {rate / peaks[name]:7.1%} {tokens:10,.0f}"
            )
        if ranks == 1:
            alone = {
                name: (rate, tokens, peaks[name]) for name, (rate, tokens) in rates.items()
            }

# %%

# drawing
fig, ax = subplots(height_in=2.2)
describe(fig, "The step's rate as a share of the measured peak, for each format")
for row, name in enumerate(FORMATS):
    ax.barh(row, 100 * mfu[1, 0, name], color=ACCENT, ec=INK, lw=0.6)
name_rows(ax, list(FORMATS))
ax.set(xlabel="% of the measured peak", xlim=(0, 100))
ax.set_title("MFU of one rank")

# %%
# Takeaway
# --------

fastest = max(FORMATS, key=lambda name: alone[name][1])
highest = max(FORMATS, key=lambda name: mfu[1, 0, name])
gain, peak_gain = (alone[fastest][at] / alone["fp32"][at] for at in (1, 2))
print(f"{fastest} trains the most tokens per second; {highest} has the highest MFU.")
print(
    f"Against fp32, {fastest} has {peak_gain:.1f} times the peak and {gain:.1f} times the tokens."
)
if gpus > 1:
    slowest = min(range(gpus), key=lambda rank: mfu[gpus, rank, fastest])
    print(
        f"On {gpus} ranks the lowest MFU is rank {slowest}'s, {mfu[gpus, slowest, fastest]:.1%}."
    )
record("%", **{f"mfu_{name.lower()}": 100 * mfu[1, 0, name] for name in FORMATS})
record("TFLOP/s", **{f"peak_{name.lower()}": alone[name][2] for name in FORMATS})

# %%
# Change it: predict, then run
# ----------------------------
# Halve the width and double the layers twice, which keeps the weights. Does the MFU rise or fall, and why?
#
# What this does not mean
# -----------------------
# That the MFU compares clusters: it depends on the model, the batch and how FLOPs are counted.
# Recomputed activations are not counted here, and attention is counted without its mask.
#
# Say it aloud
# ------------
# "MFU divides the model's FLOPs per second by the card's peak, so it says how much of the arithmetic serves the model.
# A faster format raises the peak more than the step, so training gets faster while the MFU falls.
# I choose by tokens per second: a faster format buys those, and pays with precision."
