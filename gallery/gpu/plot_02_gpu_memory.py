"""
Where GPU memory goes
=====================

What fills a GPU's memory through one DDP step, and what does the allocator hold beyond it?
It serves :ref:`gpu-memory`.

torch's allocator takes segments from the driver, hands out parts of them, and keeps them when tensors are freed.
Keep the order in mind: allocated is at most reserved, and reserved is less than what the driver counts.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# A table with a row for each moment of a step and three columns.
# *Allocated* is what tensors take; *reserved* is what torch's allocator took from the driver and keeps; *outside* is what the driver counts beyond that: the CUDA context, loaded kernels, NCCL's buffers.
# Allocated is compared with a ledger of parameters, gradients, buckets and Adam's states, with gradients of their own and with ``gradient_as_bucket_view=True``.
# Then every second one of many tensors is freed, and a larger one is asked for: reserved grows although enough is free.

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gpt import GPT
from ddplab.apparatus.gpu import needs_gpus, worlds
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots
from ddplab.runtime.clock import now

MODEL = {"width": 1024, "layers": 8, "heads": 16, "tokens": 512, "vocabulary": 16384}
BATCH, MIB = 8, 2**20
HOLES, HOLE_MIB = 64, 32


def in_use():
    """MiB allocated, its peak since the last reset, reserved, and outside of torch's allocator, now."""
    now()
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    reserved = stats["reserved_bytes.all.current"]
    kept = stats["allocated_bytes.all.current"], stats["allocated_bytes.all.peak"], reserved
    return [nbytes / MIB for nbytes in (*kept, total - free - reserved)]


def worker(views):
    torch.manual_seed(0)
    here, moments = device(), {}

    def note(name):
        moments[name] = in_use()
        torch.cuda.reset_peak_memory_stats()

    note("start")
    model = GPT(**MODEL).to(here)
    text = model.text(BATCH, here)
    note("model")
    ddp = DistributedDataParallel(model, device_ids=[here], gradient_as_bucket_view=views)
    note("wrapped")
    optimizer = torch.optim.Adam(ddp.parameters())
    for step in range(3):  # the second rebuilds the buckets
        last = step == 2
        loss = ddp(text)
        if last:
            note("forward")
        loss.backward()
        if last:
            note("backward")
        optimizer.step()
        if last:
            note("step")
        optimizer.zero_grad()
    del loss
    note("zero_grad")
    parameters = sum(p.nbytes for p in model.parameters()) / MIB
    return parameters, moments


# %%
# Two more questions, each in new processes: what holes between tensors cost, and what one more communicator costs.
# With one rank that communicator has no peer to hold a buffer for, so only several GPUs show the price.


def fragmented():
    here = device()
    tensors = [
        torch.empty(HOLE_MIB * MIB, dtype=torch.uint8, device=here) for _ in range(HOLES)
    ]
    full = in_use()
    del tensors[::2]
    holes = in_use()
    tensors.append(torch.empty(2 * HOLE_MIB * MIB, dtype=torch.uint8, device=here))
    return full, holes, in_use()


def one_more_group():
    ones = torch.ones(MIB, device=device())
    dist.all_reduce(ones)
    before = in_use()
    group = dist.new_group()
    dist.all_reduce(ones, group=group)
    return in_use()[3] - before[3]


# %%
# Run it
# ------

gpus = needs_gpus()
seen = {}
for ranks in worlds(gpus):
    for views in (False, True):
        parameters, moments = seen[ranks, views] = launch(worker, ranks, views, quiet=True)[0]
        print(f"{ranks} rank(s), views {views}; parameters {parameters:.0f} MiB")
        print("              allocated      peak  reserved   outside (MiB)")
        for name, held in moments.items():
            print(f"  {name:10} " + "".join(f"{mib:10.0f}" for mib in held))

# %%
# The ledger: parameters once, Adam's states twice, buckets once, gradients once unless they are views of the buckets.

ledger = {}
for (ranks, views), (parameters, moments) in seen.items():
    expected = parameters * (4 if views else 5)
    found = moments["step"][0] - moments["start"][0]
    ledger[views] = found / expected
    print(
        f"{ranks} rank(s), views {views!s:5}: after the step {found:7.0f} MiB, ledger {expected:7.0f} MiB"
    )
(full, holes, after), *_ = launch(fragmented, 1, quiet=True)
print("MiB                  allocated  reserved")
for name, held in {"full": full, "every second freed": holes, "a larger one": after}.items():
    print(f"{name:20} {held[0]:9.0f} {held[2]:9.0f}")
groups = {ranks: launch(one_more_group, ranks, quiet=True)[0] for ranks in worlds(gpus)}
for ranks, grown in groups.items():
    print(f"one more NCCL communicator of {ranks} rank(s): {grown:.0f} MiB outside of torch")

# %%

# drawing
fig, ax = subplots(height_in=3.0)
describe(fig, "Memory at each moment of a step: allocated, peak and reserved")
_, moments = seen[min(ranks for ranks, _ in seen), False]
for column, (name, color, line) in enumerate(
    [("allocated", ACCENT, "-"), ("peak", INK, ":"), ("reserved", MUTED, "--")]
):
    ax.plot(
        range(len(moments)),
        [held[column] for held in moments.values()],
        line,
        color=color,
        label=name,
    )
ax.set_xticks(range(len(moments)), list(moments))
ax.set(ylabel="MiB", ylim=(0, None))
ax.legend()
ax.set_title("One rank, gradients of their own")

# %%
# Takeaway
# --------

saved = seen[1, False][1]["step"][0] - seen[1, True][1]["step"][0]
needed, grew = 2 * HOLE_MIB, after[2] - holes[2]
free = holes[2] - holes[0]
print(
    f"Views save {saved:.0f} MiB between steps, {saved / seen[1, False][0]:.2f} copies of the parameters."
)
print(
    f"With {free:.0f} MiB free in holes, a tensor of {needed} MiB made the allocator reserve {grew:.0f} MiB more."
)
peak, kept = (
    max(held[1] for held in moments.values()),
    max(held[0] for held in moments.values()),
)
print(f"The peak is {peak:.0f} MiB, the most at any of these moments {kept:.0f} MiB.")
record("MiB", saved=saved, grew=grew, peak=peak, outside=moments["step"][3])
record(ledger=ledger[False], ledger_views=ledger[True])

# %%
# Change it: predict, then run
# ----------------------------
# Set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` in the environment.
# What will reserved be after every second tensor is freed and a larger one is asked for?
#
# What this does not mean
# -----------------------
# That what is reserved is lost: torch uses it for its next tensors, and only other programs cannot.
# *Outside* belongs to all processes on the GPU; where other jobs run, it counts theirs, too.
#
# Say it aloud
# ------------
# "Between steps a rank with Adam holds parameters once, moments twice, gradients once and buckets once; with views, gradients and buckets are one.
# What the driver shows beyond that is cached segments, the context and NCCL's buffers.
# Caching saves slow calls to the driver, and pays with memory that is reserved and in pieces."
