r"""
A stranger's GPUs: predict the buckets, then read the trace
===========================================================

What did DDP send on two A100s that you have never seen, and what of it was hidden?
It serves :ref:`performance-gpu-trace`.

DDP's buckets follow from sizes and their order, so the model alone predicts what a trace shows.
The time of an NCCL kernel is transfer and waiting; it takes two ranks' traces to divide them.

The traces are public profiler traces of real jobs with NCCL, from HolisticTraceAnalysis (MIT licence), reduced to what is read here; nothing was run for this page.

:Level: deep, 15 minutes
"""

# %%
# The model alone
# ---------------
# ResNet-50 as torchvision registers it: each convolution is followed by a BatchNorm with two parameters.
# Names do not matter for buckets; sizes and their order do.

# runs nothing: recorded traces of real GPUs
from ddplab import record
from ddplab.apparatus.plotting import ACCENT, RANK_COLORS, describe, name_rows, subplots
from ddplab.apparatus.public_traces import FOLDER, JOBS, SAMPLED, public_trace
from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, assign
from ddplab.cli.trace import show
from ddplab.trace import buckets, steps


def resnet50():
    """Yield the parameters' sizes in elements, and note the BatchNorms."""
    norms = [64]
    sizes = [64 * 3 * 7 * 7, 64, 64]

    def conv(inputs, outputs, kernel):
        sizes.extend([outputs * inputs * kernel**2, outputs, outputs])
        norms.append(outputs)

    inputs = 64
    for width, blocks in (64, 3), (128, 4), (256, 6), (512, 3):
        for block in range(blocks):
            conv(inputs, width, 1)
            conv(width, width, 3)
            conv(width, 4 * width, 1)
            if block == 0:
                conv(inputs, 4 * width, 1)  # the shortcut changes its shape
            inputs = 4 * width
    sizes.extend([2048 * 1000, 1000])
    return sizes, norms


sizes, norms = resnet50()
print(f"{sum(sizes):,} parameters in {len(sizes)} tensors, {len(norms)} BatchNorms")

# %%
# Predicted: the last gradient is ready first, a bucket closes at 1 MiB, then at 25 MiB, and each forward begins with the buffers, one broadcast per data type.

backward = sizes[::-1]
plan = assign([4 * size for size in backward], DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES)
predicted = [("broadcast", 2 * sum(norms)), ("broadcast", len(norms))]
predicted += [("allreduce", sum(backward[at] for at in bucket)) for bucket in plan]

# %%
# And seen
# --------
# Rank 0 of two, NCCL 2.17.1, three steps.

pair = public_trace("a100-pair")
own = buckets(steps(pair))
seen = [(bucket.name, bucket.elements) for bucket in own]
print("            predicted        seen")
for (name, wanted), (_, found) in zip(predicted, seen, strict=True):
    print(f"{name:10}{wanted:11,} {found:11,}  {'equal' if wanted == found else 'not equal'}")
assert predicted == seen
record(buckets=len(plan), parameters=sum(sizes))

# %%
# What hid, and what did not
# --------------------------
# *Exposed* is the time in which a kernel of NCCL ran and no other.
# Only the file of the ResNet-50 has sizes; of the others, times and streams can be read.

print("               step  computes  NCCL  exposed  streams (ms)")
for name in [name for name in JOBS if name not in SAMPLED]:
    trace = public_trace(name)
    step = sorted(steps(trace), key=lambda step: step.seconds)[len(trace.steps) // 2]
    times = (step.seconds, step.computing_s, step.communicating_s, step.exposed_s)
    streams = {one.stream for one in trace.collectives}
    row = "".join(f"{1e3 * seconds:9.1f}" for seconds in times)
    print(
        f"{JOBS[name]:20}{row}  {' '.join(sorted(streams))} beside {' '.join(trace.streams)}"
    )
    assert not streams & set(trace.streams)
    record("ms", **{f"{name.replace('-', '_')}_exposed": 1e3 * step.exposed_s})
median = sorted(steps(pair), key=lambda step: step.seconds)[1]
record("%", busy=100 * median.computing_s / median.seconds)

# %%
# The same bytes, longer
# ----------------------
# A kernel of NCCL begins when its own rank arrives, and waits on the GPU until the other has come.

stretched = max(own, key=lambda bucket: bucket.slowest_s - bucket.fastest_s)
fast, slow = 1e3 * stretched.fastest_s, 1e3 * stretched.slowest_s
print(f"{stretched.elements:,} floats took {fast:.2f} to {slow:.2f} ms")
rates = [bucket.bus_bytes_per_s / 1e9 for bucket in own if bucket.name == "allreduce"]
print("bus bandwidth of the fastest, GB/s:", "  ".join(f"{rate:.1f}" for rate in rates))
record("ms", fastest=fast, slowest=slow)
record("GB/s", lowest_rate=min(rates), highest_rate=max(rates))

# %%
# Two ranks, the same collective
# ------------------------------
# Of a job of 128 there are the files of two ranks, which are *samples*: events were left out at random.
# So the n-th kernel of one is not the n-th of the other, and no busy time can be read from them.
# Kernels that are in both are found by their ends; with ten kernels in 1.2 s, chance makes less than one such pair.

one, other = (public_trace(name).collectives for name in SAMPLED)
pairs = [(a, b) for a in one for b in other if abs(a.end_s - b.end_s) < 1e-3]
print(f"{len(pairs)} of {len(one)} kernels end within 1 ms of one of the other rank")
print("   begins            ends              lasts (ms)")
print("   rank 0   rank 1   rank 0   rank 1   rank 0   rank 1")
for a, b in pairs:
    times = a.start_s, b.start_s, a.end_s, b.end_s, a.seconds, b.seconds
    last = "rank 1" if b.seconds < a.seconds else "rank 0"
    print("".join(f"{1e3 * seconds:9.1f}" for seconds in times), f" {last} came last")
record("ms", begins_apart=1e3 * max(abs(a.start_s - b.start_s) for a, b in pairs))
record("ms", ends_apart=1e3 * max(abs(a.end_s - b.end_s) for a, b in pairs))
record(pairs=len(pairs))

# %%
# The same in words
# -----------------
# ``ddplab trace`` says it of any file that torch.profiler has written: ``show`` is what the command calls.

show([FOLDER / "a100-pair.json.gz"])

# %%

# drawing
fig, (top, bottom) = subplots(2, height_in=3.4, sharex=True)
describe(
    fig,
    "Two steps of rank 0: computing and collectives in time; the collectives of the second last longer",
)
for ax, step in zip((top, bottom), (steps(pair)[0], steps(pair)[2]), strict=True):
    bars = [
        (1e3 * (a - step.start_s), 1e3 * (b - a))
        for a, b in pair.compute
        if step.start_s <= a < step.end_s
    ]
    ax.broken_barh(bars, (0.6, 0.8), color=RANK_COLORS[0], lw=0)
    sent = [
        (1e3 * (one.start_s - step.start_s), 1e3 * one.seconds) for one in step.collectives
    ]
    ax.broken_barh(sent, (-0.4, 0.8), color=ACCENT, lw=0)
    name_rows(ax, ["NCCL", "computing"])
top.set_title("The first step of the trace, and the third")
bottom.set_xlabel("ms")

# %%
# What to notice
# --------------
#
# - All :measured:`real-gpu-trace.buckets` buckets come out equal to the element, and so do the two broadcasts of the buffers: DDP's rule, the order of registration and a pencil are enough.
# - The GPU computes in :measured:`real-gpu-trace.busy:.0f` of the step only: kernels are short and the host launches them one by one, so that even exposed communication is not what this job waits for.
# - The same all-reduce takes :measured:`real-gpu-trace.fastest:.1f` in one step and :measured:`real-gpu-trace.slowest:.1f` in another: the rest is waiting for the peer, inside the kernel.
# - Two ranks begin the same collective up to :measured:`real-gpu-trace.begins_apart:.0f` apart and end it within :measured:`real-gpu-trace.ends_apart:.1f`: the one whose kernel is shorter came last.
# - NCCL's kernels run on a stream of their own, beside the one that computes.
#
# What this does not mean
# -----------------------
#
# That NCCL needs that long: the duration of a kernel is transfer and waiting together, and one rank's trace cannot divide them.
# Nor does the bus bandwidth describe the machines; it is that of a few messages of a test.
#
# Change it: predict, then run
# ----------------------------
# In ``assign``, take ``DEFAULT_CAP_BYTES`` twice.
# Which rows still agree?
#
# Expect: only the broadcasts; there is one all-reduce fewer.
#
# Say it aloud
# ------------
# "From the parameters' sizes I predict each bucket to the element.
# A long all-reduce is a slow link or a late peer; the rank with the shorter kernel came last.
# One rank's trace is small and cannot tell which it is; two can, for twice the files."
