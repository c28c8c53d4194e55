"""
Out of memory, read and repaired
================================

What does torch's message say when memory runs out, which batch would have fitted, and what does each repair buy?
It serves :ref:`gpu-memory`.

A step needs a fixed part, whatever the batch, and a part per sample: the activations that the backward will read.
Two small batches measure both, so the largest batch that fits is a division, to within what the allocator rounds up.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# Each process here gets a limit, ``torch.cuda.set_per_process_memory_fraction``, so that the same step fails on a small card and on a large one.
# First a ledger: parameters, gradients, Adam's moments, and what a sample adds.
# Predict the fixed part in copies of the parameters: one for them, one for gradients that are views of DDP's buckets, two for Adam, and half a one during a step, for the bf16 copies of the weights.
# What is beyond that are the workspaces of cuBLAS, which torch's allocator hands out, too.
# Then the batch that should just fit, one that is 10 % larger, and one that is much too large, with its message taken apart.
# Then the repairs, with the batch that was too large: predict which of them runs, and its peak.
# Accumulation in pieces divides the activations by the number of pieces, and adds one copy: under ``no_sync`` the gradients lie outside of the buckets until the last piece.
# Recomputing the blocks keeps the input of each and not the dozen tensors in it; two small batches tell what is left.
#
# Expect the prediction to be a little too large: it counts what tensors take, and the limit counts what the allocator reserves.

import contextlib
import gc
import re

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddplab import device, launch, record
from ddplab.apparatus.gpt import GPT
from ddplab.apparatus.gpu import needs_gpus, worlds
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, describe, name_rows, subplots

MODEL = {"width": 1024, "layers": 16, "heads": 16, "tokens": 256, "vocabulary": 8192}
LIMIT_MIB = 12288
SMALL_BATCHES = (4, 12)
TOO_LARGE, PIECES = 2.5, 4  # times the batch that should fit; parts of it
MIB = 2**20


class Recomputed(nn.Module):
    """A block that keeps its input only, and runs again in the backward."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def trainer(recompute=False):
    """A step over some text, in pieces, and the model."""
    total = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_MIB * MIB / total))
    torch.manual_seed(0)
    with device():
        model = GPT(**MODEL)
    if recompute:
        model.blocks = nn.ModuleList(map(Recomputed, model.blocks))
    ddp = DistributedDataParallel(model, device_ids=[device()], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), fused=True)

    def step(text, pieces=1):
        for piece in range(pieces):  # the same text each time: only memory is looked at
            last = piece == pieces - 1
            with contextlib.nullcontext() if last else ddp.no_sync():
                with torch.autocast(device().type, dtype=torch.bfloat16):
                    loss = ddp(text) / pieces
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


def ledger(recompute=False):
    """MiB of the parameters, of all tensors between two steps, of a step whatever the batch, and of a sample."""
    gc.collect()  # a trainer before this one
    step, model = trainer(recompute)
    peaks = []
    for batch in SMALL_BATCHES:
        text = model.text(batch, device())
        for _ in range(3):  # the first makes Adam's moments, the second rebuilds the buckets
            step(text)
        torch.cuda.reset_peak_memory_stats()
        step(text)
        peaks.append(torch.cuda.max_memory_allocated() / MIB)
    parameters = sum(p.nbytes for p in model.parameters()) / MIB
    few, more = SMALL_BATCHES
    per_sample = (peaks[1] - peaks[0]) / (more - few)
    fixed = peaks[0] - per_sample * few
    return parameters, torch.cuda.memory_allocated() / MIB, fixed, per_sample


def ledgers():
    return ledger(), ledger(recompute=True)


def attempt(batch, pieces=1, recompute=False):
    """Peak MiB in tensors, MiB reserved, whether segments can grow, and torch's message if memory ran out."""
    message = None
    try:
        step, model = trainer(recompute)
        text = model.text(batch // pieces, device())
        for _ in range(3):
            step(text, pieces)
    except torch.OutOfMemoryError as error:
        message = str(error)
    stats = torch.cuda.memory_stats()
    grows = any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot())
    held = (stats[f"{kind}_bytes.all.peak"] / MIB for kind in ("allocated", "reserved"))
    return *held, grows, message


# %%
# The parts of the message, as ``c10/cuda/CUDACachingAllocator.cpp`` writes them (torch 2.11.0); a part may be missing.

SIZE = r"([\d.]+ (?:bytes|[KMG]iB))"
PARTS = {
    "asked for": (
        rf"Tried to allocate {SIZE}",
        "the tensor that did not fit, not what filled the memory",
    ),
    "the card": (rf"total capacity of {SIZE}", "of all processes together"),
    "free": (rf"of which {SIZE} is free", "what the driver could still give"),
    "another process": (rf"Process \d+ has {SIZE}", "or this one, as a container numbers it"),
    "this process": (rf"this process has {SIZE}", "with the CUDA context and NCCL's buffers"),
    "allowed": (rf"{SIZE} allowed;", "only where a fraction was set"),
    "in tensors": (rf"{SIZE} is allocated by PyTorch", "what your program holds"),
    "kept in pieces": (
        rf"{SIZE} is reserved by PyTorch but unallocated",
        "what the allocator holds and could not use",
    ),
}


def mib(size):
    number, unit = size.split()
    return float(number) * {"bytes": 1 / MIB, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


def taken_apart(message):
    """MiB of each part that the message has."""
    found = {name: re.search(pattern, message) for name, (pattern, _) in PARTS.items()}
    return {name: mib(match[1]) for name, match in found.items() if match}


# %%
# Run it
# ------

gpus = needs_gpus()
for ranks in worlds(gpus):
    plain, recomputed = launch(ledgers, ranks, quiet=True)[0]
    parameters, between, fixed, per_sample = plain
    print(f"{ranks} rank(s), MiB: parameters {parameters:.0f}")
    print(f"  between steps   {between:8.0f}, ledger of 4 copies {4 * parameters:8.0f}")
    print(f"  in a step       {fixed:8.0f}, ledger of 4.5 copies {4.5 * parameters:6.0f}")
    print(f"  of each sample  {per_sample:8.1f}, with blocks recomputed {recomputed[3]:.1f}")
fits = int((LIMIT_MIB - fixed) / per_sample)
print(f"so {LIMIT_MIB} MiB should hold a batch of {fits}")

# %%
# Each in a new process. Expandable segments are a setting of the allocator: they let it grow what it has reserved.

over, far_over = int(1.1 * fits) + 1, int(TOO_LARGE * fits)
grow = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
in_pieces = fixed + parameters + per_sample * (far_over // PIECES)
cases = {  # what `attempt` gets, the environment, and the expected peak
    "should just fit": ((fits,), {}, fixed + per_sample * fits),
    "the same, expandable": ((fits,), grow, fixed + per_sample * fits),
    "10 % more": ((over,), {}, fixed + per_sample * over),
    "much too large": ((far_over,), {}, fixed + per_sample * far_over),
    f"in {PIECES} pieces": ((far_over, PIECES), {}, in_pieces),
    "blocks recomputed": ((far_over, 1, True), {}, recomputed[2] + recomputed[3] * far_over),
}
seen = {}
print(f"{'':22} {'batch':>6} {'expected':>9} {'tensors':>8} {'reserved':>9}  (MiB, peaks)")
for name, (arguments, env, expected) in cases.items():
    seen[name] = launch(attempt, 1, *arguments, env=env, quiet=True)[0]
    tensors, reserved, grows, message = seen[name]
    end = "out of memory" if message else "runs"
    end += f"; segments grow: {grows}" if env else ""
    print(f"{name:22} {arguments[0]:6} {expected:9.0f} {tensors:8.0f} {reserved:9.0f}  {end}")

# %%
# The message of the batch that was much too large:

message = seen["much too large"][3] or ""
said = taken_apart(message)
for name, (_, meaning) in PARTS.items():
    print(
        f"{name:16}",
        f"{said[name]:9.1f} MiB" if name in said else "     not said",
        "",
        meaning,
    )
needed = cases["much too large"][2]
if message:
    print(
        f"The step needs {needed:.0f} MiB and {LIMIT_MIB} are allowed: no setting of the allocator would help."
    )
just = seen["should just fit"]
if just[3] and not seen["the same, expandable"][3]:
    print("The batch that should just fit needs segments that grow: that is fragmentation.")

# %%

# drawing
fig, ax = subplots(height_in=2.6)
describe(fig, "Peak memory in tensors of each attempt, and the limit")
for place, (tensors, _, _, message) in enumerate(seen.values()):
    ax.barh(place, tensors, color=FAINT if message else ACCENT, ec=INK, lw=0.6)
name_rows(ax, list(seen))
ax.axvline(LIMIT_MIB, color=INK, lw=0.8, ls="--")
ax.set_xlabel("peak MiB in tensors; violet: it ran, light: out of memory; dashed: the limit")
ax.set_title("Six attempts")

# %%
# Takeaway
# --------

ran = [name for name, (*_, message) in seen.items() if not message]
print("It ran:", ", ".join(ran) or "nothing")
print(
    f"Fixed {fixed:.0f} MiB and {per_sample:.1f} MiB per sample: "
    f"a batch of {fits} should take {fixed + fits * per_sample:.0f} of {LIMIT_MIB} MiB, "
    f"and {'ran out of them' if just[3] else 'ran'}."
)
record(ledger=between / (4 * parameters), fits=fits, ran=len(ran), of=len(seen))
record("MiB", fixed=fixed, per_sample=per_sample)
peaks = {"pieces": f"in {PIECES} pieces", "recomputed": "blocks recomputed"}
record("MiB", **{f"peak_{key}": seen[name][0] for key, name in peaks.items()})
record("MiB", **{name.replace(" ", "_"): held for name, held in said.items()})

# %%
# Change it: predict, then run
# ----------------------------
# Give ``zero_grad`` the argument ``set_to_none=False``. By how many copies of the parameters does the peak in pieces fall, and does that of the others change?
#
# What this does not mean
# -----------------------
# That a batch that fits once always fits: a longer text, a rank with more of it, or pieces in the allocator may need more later.
# Nor that recomputation divides every model's memory so far: what lies outside of the blocks, such as the scores of a large vocabulary, stays.
#
# Say it aloud
# ------------
# "The message names the tensor that failed; what fills the memory stands behind it: in tensors, and reserved in pieces.
# If the step needs more than the card has, no setting of the allocator helps, and I accumulate or recompute; if it fits with segments that grow, it was fragmentation.
# Two small batches give the fixed part and the part per sample, so I calculate the batch that fits; accumulation pays with launches, recomputation with a second forward."
