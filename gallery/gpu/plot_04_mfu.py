"""
Which MFU is yours
==================

What share of the card's arithmetic does a training step use, and what do the format, the optimizer, ``torch.compile`` and a CUDA graph change?
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
#
# Then three changes that leave the peak as it is, so that tokens and MFU move together.
# Order them by what they gain before you look.
# Fused AdamW reads and writes parameters and moments once, in place of once per operation; expect a gain in the share that the optimizer has of the step.
# ``torch.compile`` of each block fuses the operators between its products, which are bound by memory; expect more than from the optimizer.
# Inside of DDP it splits a block at the buckets' borders (:doc:`/labs/internals/plot_15_compile_splits`), also for one rank that would not need it.
# A CUDA graph saves launches; with kernels as long as these the GPU sets the pace, so expect next to nothing.

import torch
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch, record
from ddplab.apparatus.gpt import GPT
from ddplab.apparatus.gpu import DDP_WARM_UP, gpu_times_ms, needs_gpus, worlds
from ddplab.apparatus.plotting import ACCENT, INK, describe, name_rows, subplots
from ddplab.runtime.clock import now

MODEL = {"width": 2048, "layers": 8, "heads": 16, "tokens": 1024, "vocabulary": 16384}
BATCH = 8
SIZE = 8192
COMPILE = True

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


def rates_of(model, ms):
    """Teraflops per second of a step, and its tokens per second."""
    return model.flops(BATCH) / ms / 1e9, 1e3 * BATCH * MODEL["tokens"] / ms


def trainer(fused=None):
    """A model on the GPU, in DDP, and its optimizer; fused None leaves the choice to torch."""
    torch.manual_seed(0)
    with device():  # made where it is needed: half a billion weights take a CPU seconds
        model = GPT(**MODEL)
    ddp = DistributedDataParallel(model, device_ids=[device()], gradient_as_bucket_view=True)
    return model, ddp, torch.optim.AdamW(ddp.parameters(), fused=fused)


def worker():
    """Rates of the product and of the step by format, and of bf16 with a fused optimizer."""
    here, peaks, rates = device(), {}, {}
    for name, (precision, dtype) in FORMATS.items():
        torch.set_float32_matmul_precision(precision)
        ms = gpu_times_ms({name: product_of(dtype, here)}, rounds=7)[name]
        peaks[name] = 2 * SIZE**3 / ms / 1e9
    model, ddp, optimizer = trainer()
    text = model.text(BATCH, here)
    for _ in range(DDP_WARM_UP):
        step_of(ddp, optimizer, text, torch.bfloat16)()
    for name, (precision, dtype) in FORMATS.items():
        torch.set_float32_matmul_precision(precision)
        step = step_of(ddp, optimizer, text, dtype)
        rates[name] = rates_of(model, gpu_times_ms({name: step}, rounds=5)[name])
    torch.set_float32_matmul_precision("highest")
    del ddp, optimizer, step
    model, ddp, optimizer = trainer(fused=True)
    step = step_of(ddp, optimizer, text, torch.bfloat16)
    ms = gpu_times_ms({"": step}, rounds=7, warm_up=DDP_WARM_UP)[""]
    rates["+ fused AdamW"] = rates_of(model, ms)
    return peaks, rates


def compiled():
    """The same step with compiled blocks: what its first took, and its rate."""
    model, ddp, optimizer = trainer(fused=True)
    text = model.text(BATCH, device())
    step = step_of(ddp, optimizer, text, torch.bfloat16)
    for _ in range(DDP_WARM_UP):
        step()
    for block in model.blocks:
        block.compile()  # all blocks are alike: compiled once
    began = now()
    step()
    first_s = now() - began
    return first_s, rates_of(model, gpu_times_ms({"": step}, rounds=7)[""])


def refusal(error):
    return f"refused: {type(error).__name__}: {str(error).strip().splitlines()[0]}"


# %%
# The graph has a process and a model of its own, in no group: NCCL and a capture have conditions of their own (:doc:`plot_09_cuda_graphs`).


def graphed():
    torch.manual_seed(0)
    with device():
        model = GPT(**MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    step = step_of(model, optimizer, model.text(BATCH, device()), torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    usual = gpu_times_ms({"": step}, rounds=7)[""]
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        return rates_of(model, usual), None, refusal(error)
    return (
        rates_of(model, usual),
        rates_of(model, gpu_times_ms({"": graph.replay}, rounds=7)[""]),
        "",
    )


# %%
# Run it
# ------

gpus = needs_gpus()
mfu = {}


def row(name, rate, tokens, peak):
    print(f"  {name:22} {peak:14.1f} {rate:14.1f} {rate / peak:7.1%} {tokens:10,.0f}")


for ranks in worlds(gpus):
    measured, note = launch(worker, ranks, quiet=True), ""
    try:  # in a launch of its own: a compiler that takes too long takes nothing else with it
        for (_, rates), (first_s, both) in zip(
            measured, launch(compiled, ranks, quiet=True) if COMPILE else (), strict=COMPILE
        ):
            rates["+ compile"], note = both, f"its first step takes {first_s:.1f} s"
    except LaunchError as error:
        first, *_, last = [*str(error).splitlines()] * 2
        note = f"refused: {first} {last}"
    for rank, (peaks, rates) in enumerate(measured):
        print(
            f"{f'rank {rank} of {ranks}':24}   peak TFLOP/s   step TFLOP/s     MFU   tokens/s"
        )
        for name, (rate, tokens) in rates.items():
            peak = peaks.get(name, peaks["bf16"])
            mfu[ranks, rank, name] = rate / peak
            row(name, rate, tokens, peak)
        print(f"  + compile: {note or 'left out'}")
        if ranks == 1:
            alone = {
                name: (*both, peaks.get(name, peaks["bf16"])) for name, both in rates.items()
            }

# %%
# Without DDP, as usual and as a graph:

without, replayed, refused = launch(graphed, 1, init=False, quiet=True)[0]
row("bf16, fused, no DDP", *without, alone["bf16"][2])
if replayed:
    row("+ graph", *replayed, alone["bf16"][2])
if refused:
    print(refused)

# %%

# drawing
fig, ax = subplots(height_in=2.2)
describe(
    fig, "The step's rate as a share of the measured peak, for each format and each change"
)
for place, name in enumerate(alone):
    ax.barh(place, 100 * mfu[1, 0, name], color=ACCENT, ec=INK, lw=0.6)
name_rows(ax, list(alone))
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
gains = {"fused": alone["+ fused AdamW"][1] / alone["bf16"][1]}
if "+ compile" in alone:
    gains["compile"] = alone["+ compile"][1] / alone["+ fused AdamW"][1]
if replayed:
    gains["graph"] = replayed[1] / without[1]
for name, times in gains.items():
    print(f"{name}: {times:.2f} times the tokens per second of the step before")
record(**{f"gain_{name}": times for name, times in gains.items()})
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
# Nor that a graph is useless: make the model small, and the launches that it saves are most of the step.
#
# Say it aloud
# ------------
# "MFU divides the model's FLOPs per second by the card's peak, so it says how much of the arithmetic serves the model.
# A faster format raises the peak more than the step, so training gets faster while the MFU falls.
# I choose by tokens per second: a faster format buys those, and pays with precision.
# Fusing what waits for memory, in the optimizer and between the products, raises both; it pays with compile time."
