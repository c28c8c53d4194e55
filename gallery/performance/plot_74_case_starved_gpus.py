r"""
Design case: GPUs that wait for data
====================================

A vision job trains half as many images as its GPUs could: which stage is the narrow one, and what makes it wider?
It serves :ref:`case-starved-gpus`.

:Level: evidence, 10 minutes
"""

# %%
# What is assumed
# ---------------
# All of it: images per second of a GPU with data that lies in memory, bytes of a stored image, the time that one core decodes and augments it, and what a node reads from its storage.
# The rate of the copy is PCIe 5 x16, at the share of its nominal rate that the cases assume.

# runs nothing: formulas, and rates that are assumed
from ddplab import record
from ddplab.apparatus.design_cases import GB, INK, NODE_GPUS, PCIE, SHARE
from ddplab.apparatus.forecast import slowest_of
from ddplab.apparatus.plotting import ACCENT, MUTED, describe, name_rows, subplots

TRAINS, BATCH, CORES, STORAGE = 2500, 256, 88, 3 * GB  # images/s and images of a GPU; node
PIXELS = 3 * 224 * 224  # bytes of an image as uint8
IMAGES = {"as stored": (110e3, 8e-3), "resized once": (20e3, 2.5e-3)}  # bytes; s on a core
GOAL = NODE_GPUS * TRAINS
record("images/s", gpu=TRAINS, goal=GOAL)
record(cores=CORES, gpus=NODE_GPUS, batch=BATCH)
record("GB/s", storage=STORAGE / GB)

# %%
# The narrowest stage
# -------------------
# Each stage in images per second of a node: storage and copy are bytes per second over bytes, decoding is cores over seconds per image.

rates = {}
for key, (name, (nbytes, core_s)) in zip(("stored", "small"), IMAGES.items(), strict=True):
    rates[name] = {
        "storage": STORAGE / nbytes,
        "cores": CORES / core_s,
        "copy to GPUs": NODE_GPUS * SHARE * PCIE / PIXELS,
    }
    narrow = min(rates[name], key=rates[name].get)
    pace = min(rates[name][narrow], GOAL)
    print(f"{name}: {pace:,.0f} images/s, {pace / GOAL:.0%} of what the GPUs train")
    print("\n".join(f"  {stage:13} {rate:11,.0f}" for stage, rate in rates[name].items()))
    record("images/s", **{f"{key}_pace": pace, f"{key}_storage": rates[name]["storage"]})
    record("images/s", **{f"{key}_cores": rates[name]["cores"]})
    record("%", **{f"{key}_busy": 100 * pace / GOAL})
    record(
        "ms", **{f"{key}_step": 1e3 * NODE_GPUS * BATCH / pace, f"{key}_core": 1e3 * core_s}
    )
    record("kB", **{f"{key}_image": nbytes / 1e3})
    record("cores", **{f"{key}_needs": GOAL * core_s})
    record("GB/s", **{f"{key}_reads": GOAL * nbytes / GB})
record("million images/s", copy=rates["as stored"]["copy to GPUs"] / 1e6)
record("ms", gpu_step=1e3 * BATCH / TRAINS)

# %%
# A queue, and what a job does without one
# ----------------------------------------
# A queue is memory: workers, times ``prefetch_factor`` (2 by default), times a batch.
# Without one, a step waits for the slowest loader of all ranks, so each must be faster than its GPU by a reserve: :math:`1 + \sigma\, m_p`, with :math:`m_p` the expected largest of :math:`p` (:ref:`performance-scaling`).

workers, spread = CORES // NODE_GPUS, 0.15  # assumed: deviation of the time that a batch takes
queue = NODE_GPUS * workers * 2 * BATCH * PIXELS
print(
    f"{workers} workers a rank: {queue / GB:.1f} GB in uint8, {4 * queue / GB:.1f} in float32"
)
record("GB", queue=queue / GB, queue_float32=4 * queue / GB)
record("workers", workers=workers)
record("%", spread=100 * spread)
for ranks in (8, 64):
    reserve = 1 + spread * slowest_of(ranks)
    print(
        f"{ranks:2} ranks: a loader without a queue needs {reserve:.2f} times its GPU's rate"
    )
    record(**{f"reserve_{ranks}": reserve})

# %%

# drawing
fig, ax = subplots(height_in=2.6)
describe(fig, "Images per second of storage, cores and copies, before and after resizing")
for shift, name, color, hatch in (
    (-0.19, "as stored", MUTED, "////"),
    (0.19, "resized once", ACCENT, ""),
):
    values = rates[name].values()
    at = [row + shift for row in range(3)]
    ax.barh(at, list(values), 0.34, color=color, hatch=hatch, ec=INK, lw=0.6, label=name)
    for row, value in zip(at, values, strict=True):
        ax.text(3.2e6, row, f"{value:,.0f}", va="center", fontsize=8.5)
ax.axvline(GOAL, color=INK, ls="--", lw=1)
name_rows(ax, list(rates["as stored"]))
ax.set_xscale("log")
ax.set(xlim=(5e3, 4e7), xlabel="images per second of a node; dashed: what its GPUs train")
ax.set_title("The narrowest stage sets the pace")
ax.legend(fontsize=8.5, loc="upper right")

# %%
# What to notice
# --------------
#
# - Cores, not storage and not the copy, are what is short; more workers than cores would change nothing.
# - Images made small once need :measured:`case-starved-gpus.small_needs:.0f` instead of :measured:`case-starved-gpus.stored_needs:.0f`.
# - A queue hides that batches differ, never that the mean is too slow.
#
# What this does not mean
# -----------------------
#
# That your decoder is as fast: time one worker on your images, alone, before you order machines.
