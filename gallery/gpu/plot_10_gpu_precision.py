"""
bf16, fp16 and the scaler
=========================

What does each number format gain on this card, and what does ``GradScaler`` cost a step?
It serves :ref:`gpu-precision`.

fp16 has a narrow range, so a scaler lifts small gradients into it, and each step that overflowed must be skipped.
bf16 has fp32's range with fewer digits, so there is nothing to scale and nothing to wait for.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# The same model in fp32, in bf16, and in fp16 with a scaler: time and memory of a step, and how often the step makes the host wait for the GPU.
# Somebody must know whether a gradient overflowed: with SGD it is the host, so predict one wait per step there, and none in fp32 and bf16.
# A fused optimizer takes the answer as a tensor and skips the step on the GPU (``_step_supports_amp_scaling`` in ``torch/optim/sgd.py``); predict its waits, too.
# Then a scale that is far too large: the first steps are skipped, each halves the scale, and training goes on.
# On several GPUs, the all-reduce in bf16 (``bf16_compress_hook``) beside the usual one.

import warnings

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gpt import GPT
from ddplab.apparatus.gpu import DDP_WARM_UP, gpu_times_ms, needs_gpus
from ddplab.apparatus.plotting import ACCENT, INK, describe, name_rows, subplots
from ddplab.runtime.clock import now

MODEL = {"width": 1024, "layers": 8, "heads": 16, "tokens": 512, "vocabulary": 8192}
BATCH = 8
TOO_LARGE, TRIES = 2.0**40, 40
FORMATS = {  # the dtype of autocast, and whether the optimizer is fused
    "fp32": (None, False),
    "bf16": (torch.bfloat16, False),
    "fp16 + scaler": (torch.float16, False),
    "fp16 + scaler, fused": (torch.float16, True),
}


def trainer(dtype, fused=False, init_scale=2.0**10, hook=None):
    """A step, its scaler, and its model."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    here = device()
    model = GPT(**MODEL).to(here)
    ddp = DistributedDataParallel(model, device_ids=[here], gradient_as_bucket_view=True)
    if hook:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(
        ddp.parameters(), lr=1e-3, fused=fused or None
    )  # None: torch chooses
    scaler = torch.amp.GradScaler(
        here.type, init_scale=init_scale, enabled=dtype is torch.float16
    )
    text = model.text(BATCH, here)

    def step():
        with torch.autocast(here.type, dtype=dtype, enabled=dtype is not None):
            loss = ddp(text)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, scaler


def waits(step):
    """How often torch warns that a call made the host wait; the mode itself warns that it is a prototype."""
    now()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(one.message) for one in caught)


def worker(name):
    step, _ = trainer(*FORMATS[name])
    ms = gpu_times_ms({"": step}, rounds=10, warm_up=DDP_WARM_UP)[""]
    torch.cuda.reset_peak_memory_stats()
    step()
    now()
    return ms, torch.cuda.max_memory_allocated() / 2**20, waits(step)


def overflow():
    """The scale after each step, until it holds."""
    step, scaler = trainer(torch.float16, init_scale=TOO_LARGE)
    scales = [scaler.get_scale()]
    for _ in range(TRIES):
        step()
        scales.append(scaler.get_scale())
        if scales[-1] == scales[-2]:
            break
    return scales


def hooked():
    plain, _ = trainer(torch.bfloat16)
    small, _ = trainer(torch.bfloat16, hook=default_hooks.bf16_compress_hook)
    cases = {"fp32 buckets": plain, "bf16 buckets": small}
    return gpu_times_ms(cases, rounds=10, warm_up=DDP_WARM_UP)


# %%
# Run it
# ------

gpus = needs_gpus()
results = {name: launch(worker, 1, name, quiet=True)[0] for name in FORMATS}
print("                       step ms   peak MiB   waits per step")
for name, (ms, mib, waited) in results.items():
    print(f"{name:20} {ms:9.2f} {mib:10.0f} {waited:12}")
scales = launch(overflow, 1, quiet=True)[0]
print(f"scale: from 2^40, {len(scales) - 2} steps skipped, then {scales[-1]:g}")
if gpus > 1:
    for name, ms in launch(hooked, gpus, quiet=True)[0].items():
        print(f"{gpus} ranks, {name}: {ms:.2f} ms")

# %%

# drawing
fig, (left, right) = subplots(1, 2, height_in=2.2, sharey=True)
describe(fig, "Time and peak memory of a step in each format")
for row, (ms, mib, _) in enumerate(results.values()):
    left.barh(row, ms, color=ACCENT, ec=INK, lw=0.6)
    right.barh(row, mib, color=ACCENT, ec=INK, lw=0.6)
name_rows(left, list(results))
left.set_title("ms per step")
right.set_title("peak MiB")

# %%
# Takeaway
# --------

fastest = min(results, key=lambda name: results[name][0])
gain = results["fp32"][0] / results[fastest][0]
more = results["fp16 + scaler"][0] / results["bf16"][0]
print(f"{fastest} is fastest: 1/{gain:.2f} of fp32's time.")
waited = {name: waits for name, (_, _, waits) in results.items()}
print(
    f"fp16 with a scaler takes {more:.2f} times bf16's time, and waits {waited['fp16 + scaler']} times per step "
    f"with SGD, {waited['fp16 + scaler, fused']} with fused SGD."
)
keys = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16 + scaler": "fp16",
    "fp16 + scaler, fused": "fused",
}
record(gain=gain, scaler_over_bf16=more, scaler_waits=waited["fp16 + scaler"])
record(**{f"waits_{keys[name]}": count for name, count in waited.items()})
record(skipped=len(scales) - 2)
record("MiB", **{f"peak_{keys[name]}": mib for name, (_, mib, _) in results.items()})

# %%
# Change it: predict, then run
# ----------------------------
# Begin with a scale of 2^8. How many steps are skipped, and when does the scale first grow?
#
# Expect: it grows after ``growth_interval`` steps without an overflow, 2000 by default (``GradScaler`` in ``torch/amp/grad_scaler.py``, torch 2.13.0; read, not run).
#
# What this does not mean
# -----------------------
# That bf16 trains as well as fp32 for every model: this lab times steps and looks at no loss.
# Nor that torch counts every wait: it warns for most calls that wait, and says itself that it does not see all of them.
#
# Say it aloud
# ------------
# "Both formats take two bytes.
# fp16 has more digits and needs a scaler, which looks for an overflow in every step: the host waits for the answer, unless the optimizer is fused and takes it on the GPU.
# bf16 has fp32's range and needs none.
# The trade-off is digits against range."
