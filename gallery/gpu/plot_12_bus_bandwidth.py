"""
Bus bandwidth against size
==========================

How fast are this machine's memory, its PCIe and its links, and from which message size on?
It serves :ref:`setup-networks`.

A transfer takes a latency, whatever its size, and a time per byte; below some size the first rules, above it the second.
Bus bandwidth converts an all-reduce into what each link carries, so that it can be compared with the link.

:Level: deep, 15 minutes
"""

# %%
# What it will show
# -----------------
# For sizes from a few KiB on: the rate of a copy within the GPU, to it and from it, and an all-reduce of two ranks over gloo with CUDA tensors, which passes through the host.
# The size at which half of the highest rate is reached divides latency from rate.
# Predict where the copy within the GPU is fastest: two buffers of a few MiB lie in the GPU's L2 cache, which is faster than its memory.
# So expect a peak that no large size reaches again, and read the memory's own rate from the largest size.
# On several GPUs: NCCL's all-reduce with its bus bandwidth, a fit of latency and rate, ring and tree, the protocols, with and without P2P, and a step of DDP at four bucket sizes.

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gpt import GPT
from ddplab.apparatus.gpu import DDP_WARM_UP, gpu_times_ms, needs_gpus
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, RANK_COLORS, describe, subplots
from ddplab.model.fit import fit_link
from ddplab.model.link import bus_bandwidth

SIZES = tuple(2**power for power in range(12, 29, 2))
MODEL = {"width": 1024, "layers": 12, "heads": 16, "tokens": 256, "vocabulary": 8192}
BATCH = 4


def copies():
    """GB/s by kind and size; a copy within the GPU reads and writes, so its bytes count twice."""
    here, found = device(), {}
    for nbytes in SIZES:
        a, b = (torch.empty(nbytes, dtype=torch.uint8, device=here) for _ in range(2))
        pinned = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
        cases = {
            "within the GPU": lambda a=a, b=b: b.copy_(a),
            "to the GPU": lambda a=a, pinned=pinned: a.copy_(pinned, non_blocking=True),
            "from the GPU": lambda a=a, pinned=pinned: pinned.copy_(a, non_blocking=True),
        }
        for name, ms in gpu_times_ms(cases, rounds=9).items():
            moved = 2 * nbytes if name == "within the GPU" else nbytes
            found.setdefault(name, []).append(moved / ms / 1e6)
    return found


def all_reduces(backend=None):
    """Seconds of an all-reduce of each size, on the slowest rank."""
    group = dist.new_group(backend=backend) if backend else None
    took = []
    for nbytes in SIZES:
        buffer = torch.zeros(nbytes // 4, device=device())
        run = gpu_times_ms({"": lambda x=buffer: dist.all_reduce(x, group=group)}, rounds=9)
        took.append(run[""] / 1e3)
    slowest = torch.tensor(took, device=device())
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return slowest.tolist()


def bucket_caps(caps):
    here, cases = device(), {}
    text = GPT(**MODEL).text(BATCH, here)

    def step_of(ddp):
        def step():
            with torch.autocast(here.type, dtype=torch.bfloat16):
                loss = ddp(text)
            loss.backward()
            ddp.zero_grad()

        return step

    for cap in caps:
        torch.manual_seed(0)
        model = GPT(**MODEL).to(here)
        cases[cap] = step_of(
            DistributedDataParallel(model, device_ids=[here], bucket_cap_mb=cap)
        )
    return gpu_times_ms(cases, rounds=9, warm_up=DDP_WARM_UP)


# %%
# Run it
# ------

gpus = needs_gpus()
rates = launch(copies, 1, quiet=True)[0]
over_gloo = launch(all_reduces, 2, "gloo", quiet=True)[0]
rates["all-reduce, gloo"] = [
    bus_bandwidth(n, 2, s) / 1e9 for n, s in zip(SIZES, over_gloo, strict=True)
]
print("bytes        ", "".join(f"{name:>18}" for name in rates), "(GB/s)")
for row, nbytes in enumerate(SIZES):
    print(f"{nbytes:13,}", "".join(f"{rates[name][row]:18.2f}" for name in rates))

# %%
# Between the GPUs: each setting is a launch of its own, since NCCL reads its variables once.

settings = {"default": {}, "ring": {"NCCL_ALGO": "Ring"}, "tree": {"NCCL_ALGO": "Tree"}}
settings |= {protocol: {"NCCL_PROTO": protocol} for protocol in ("LL", "LL128", "Simple")}
settings["without P2P"] = {"NCCL_P2P_DISABLE": "1"}
if gpus > 1:
    between = {
        name: launch(all_reduces, gpus, env=env, quiet=True)[0]
        for name, env in settings.items()
    }
    print(f"{gpus} ranks, all-reduce, bus bandwidth in GB/s")
    print("bytes        ", "".join(f"{name:>13}" for name in between))
    for row, nbytes in enumerate(SIZES):
        cells = [bus_bandwidth(nbytes, gpus, took[row]) / 1e9 for took in between.values()]
        print(f"{nbytes:13,}", "".join(f"{cell:13.2f}" for cell in cells))
    for name, ms in launch(bucket_caps, gpus, (1, 5, 25, 100), quiet=True)[0].items():
        print(f"a DDP step with buckets of {name:3} MiB: {ms:.2f} ms")
    samples = list(zip(SIZES, between["default"], strict=True))
    try:
        link = fit_link(samples, gpus)
        print(f"fit: {1e6 * link.latency_s:.1f} µs per hop, {link.bytes_per_s / 1e9:.1f} GB/s")
    except ValueError as error:
        print("fit:", error)
    rates["all-reduce, NCCL"] = [bus_bandwidth(n, gpus, s) / 1e9 for n, s in samples]

# %%

# drawing
fig, ax = subplots(height_in=3.0)
describe(fig, "Rate against size: within the GPU, to it, from it, and all-reduces")
for (name, row), color in zip(rates.items(), (INK, ACCENT, MUTED, *RANK_COLORS), strict=False):
    ax.plot(SIZES, row, "o-", ms=3, color=color, label=name)
ax.set(xscale="log", yscale="log", xlabel="bytes", ylabel="GB/s")
ax.legend(fontsize=8)
ax.set_title("What moves, and how fast")

# %%
# Takeaway
# --------

for name, row in rates.items():
    half = next(n for n, rate in zip(SIZES, row, strict=True) if rate >= max(row) / 2)
    print(f"{name:18} at most {max(row):8.1f} GB/s; half of it from {half:,} bytes on")
slow = rates["within the GPU"][-1] / max(rates["all-reduce, gloo"])
print(f"Within the GPU's memory bytes move {slow:,.0f} times as fast as through gloo.")
within = zip(SIZES, rates["within the GPU"], strict=True)
cached = [n for n, rate in within if rate > 1.1 * rates["within the GPU"][-1]]
print(
    "Faster than the memory, so from a cache:", ", ".join(f"{n:,}" for n in cached) or "none"
)
keys = {
    "within the GPU": "within",
    "to the GPU": "upload",
    "from the GPU": "download",
    "all-reduce, gloo": "gloo",
}
record("GB/s", **{keys.get(name, "nccl"): max(row) for name, row in rates.items()})
record("GB/s", within_memory=rates["within the GPU"][-1])

# %%
# Change it: predict, then run
# ----------------------------
# Take pageable memory in place of pinned. Which of the curves fall, and by how much?
#
# What this does not mean
# -----------------------
# That a bus bandwidth is what a job sends: it is the rate that the links of a ring would have needed (nccl-tests, ``doc/PERFORMANCE.md``).
# Two ranks over gloo share one GPU here where there is only one.
# Nor that the highest rate within the GPU is that of its memory: see the sizes that the L2 cache holds.
#
# Say it aloud
# ------------
# "Small messages pay latency and large ones pay bytes; the size at half of the highest rate says which of them a bucket pays.
# Bus bandwidth multiplies bytes per second by 2(p − 1)/p, so I can compare it with the link.
# Larger buckets use the link better, and leave later."
