"""
Launch: how the labs run, and the same program under torchrun
==============================================================

How do the pages of this book run real ranks, and what changes when you run the program yourself?
Every lab defines a ``worker`` and calls ``launch(worker, nproc)``.
A reader's own program is started by ``torchrun``.
This lab does both, compares the results, and measures what each start costs.
It serves :ref:`internals-torchrun`.

A launcher starts processes and sets variables; all that makes them one training happens in the program.
Keep in mind: the number of ranks is decided outside, and the program asks for it.

:Level: core, 10 minutes
"""

import statistics
import time

from ddplab import launch, record
from ddplab.apparatus.recipes import torchrun
from ddplab.runtime.needs import ON_CPU

# %%
# A worker
# --------
# The function below runs once per rank.
# ``launch`` has set what torchrun would set and has initialized the process group, so it can start at ``get_rank``.
# What a rank prints appears in its lane, and what it returns comes back to the script.


def worker():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    weights = sum(p.sum().item() for p in model.parameters())
    print(f"loss {loss.item():.4f}, sum of weights after the step {weights:+.6f}")
    return weights


weights = launch(worker, 2, env=ON_CPU)  # a GPU adds in a different order
assert weights[0] == weights[1]

# %%
# The losses differ, because each rank saw different data; the weights agree, because the gradients were averaged.
#
# The same program under torchrun
# -------------------------------
# Your own program has three more tasks: it initializes the process group, chooses its device, and cleans up.
#
# .. literalinclude:: /../gallery/recipes/hello_ddp.py
#    :language: python
#
# ``torchrun`` starts one process per rank, and sets ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
# ``MASTER_PORT`` in each.

printed = torchrun("hello_ddp.py", 2, env=ON_CPU)
print("$ torchrun --standalone --nproc-per-node 2 hello_ddp.py")
print("".join(sorted(printed.splitlines(keepends=True))), end="")
assert printed.count(f"{weights[0]:+.6f}") == 2  # the same weights, digit for digit

# %%
# What a start costs
# ------------------
# Each of torchrun's processes imports torch again.
# ``launch`` forks its ranks from a server that has imported it once, which is why a page can afford many launches.
# Both run the program above alternately, so that other load on the machine affects both.


def seconds(action, *args, **options):
    start = time.perf_counter()
    action(*args, **options)
    return time.perf_counter() - start


warm, cold = [], []
for _ in range(3):
    cold.append(seconds(torchrun, "hello_ddp.py", 2, env=ON_CPU))
    warm += [seconds(launch, worker, 2, quiet=True, env=ON_CPU) for _ in range(7)]

launch_s, torchrun_s = statistics.median(warm), statistics.median(cold)
record(unit="ms", warm_launch=1e3 * launch_s)
record(unit="s", torchrun=torchrun_s)
record(unit="times", ratio=torchrun_s / launch_s)
print(f"warm launch of 2 ranks {1e3 * launch_s:6.0f} ms (median of {len(warm)})")
print(f"torchrun, same ranks   {1e3 * torchrun_s:6.0f} ms (median of {len(cold)})")

# %%
# Each dot below is one start.

# drawing
from ddplab.apparatus.plotting import ACCENT, MUTED, subplots

fig, ax = subplots(height_in=1.7)
for row, (times, color) in enumerate([(cold, MUTED), (warm, ACCENT)]):
    starts_ms = [1e3 * start_s for start_s in times]
    ax.plot(starts_ms, [row] * len(times), "o", color=color, alpha=0.7, clip_on=False)
ax.set_yticks([0, 1], ["torchrun", "launch, warm"])
ax.set(xscale="log", xlabel="time from call to return (ms, logarithmic)", ylim=(-0.6, 1.6))
ax.set_title("A warm launch starts two ranks sooner than torchrun")

# %%
# What to notice
# --------------
# * A warm ``launch`` takes :measured:`launch-and-torchrun.warm_launch`,
#   a ``torchrun`` of the same program :measured:`launch-and-torchrun.torchrun`.
# * Both end with the same weights, so what you learn on these pages holds for your own program.
#
# What this does not mean
# -----------------------
# ``launch`` is not a better torchrun.
# It runs on one machine, for a page or a test, and restarts nothing; a job that matters runs under torchrun or Slurm.
#
# Change it: predict, then run
# ----------------------------
# Launch three ranks instead of two in ``weights = launch(worker, 2, env=ON_CPU)``.
# How many losses does it print, and how many sums of weights?
#
# Expect: three losses and one sum, which is not that of two ranks, because a third rank's gradient is in the mean; the comparison with torchrun, which still starts two, then fails.
#
# Say it aloud
# ------------
# "torchrun starts one fresh process per rank and sets RANK, WORLD_SIZE and where to meet; the program joins the group from these.
# The labs fork their ranks from a process that has torch loaded.
# That starts sooner, and pays with one machine, no restarts, and a parent whose state the ranks inherit."
