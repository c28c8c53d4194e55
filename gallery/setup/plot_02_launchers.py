"""
Who sets which variable
=======================

``init_process_group`` reads four variables, and your program reads a fifth to choose its device.
Which launcher sets them, and what do you have to set yourself?
This lab starts one program in four ways and prints what it was told.
It serves :ref:`setup-variables`.
"""

import json
import os
import subprocess
import sys

from ddplab import launch
from ddplab.labs.recipes import FOLDER, torchrun

# %%
# The program prints the variables that say something about its place.
#
# .. literalinclude:: /../gallery/recipes/variables.py
#    :language: python
#
# Without a launcher
# ------------------
# Whatever this script itself was started with is taken out of the environment first.

clean = {
    name: text
    for name, text in os.environ.items()
    if not name.startswith(("SLURM_", "OMP_", "TORCHELASTIC_"))
}


def told(*command):
    """Run a program of gallery/recipes; return what each of its processes was told, in rank order."""
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=FOLDER,
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    ranks = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return sorted(ranks, key=lambda rank: rank.get("RANK", ""))


alone = told("variables.py")
print(f"python variables.py: {len(alone)} process, {len(alone[0])} variables")

# %%
# torch.multiprocessing.spawn
# ---------------------------
# ``mp.spawn`` starts processes and passes each its number as an argument; it sets no variable.
# What ``spawn.py`` shows is therefore what ``spawn.py`` sets by hand, and the shortest list that works.
#
# .. literalinclude:: /../gallery/recipes/spawn.py
#    :language: python
#    :pyobject: run

spawned = told("spawn.py", "2", "variables.py")

# %%
# torchrun
# --------
# The same program, unchanged.

lines = torchrun("variables.py", 2).splitlines()
agent = sorted(
    (json.loads(line) for line in lines if line.startswith("{")), key=lambda rank: rank["RANK"]
)

# %%
# The labs of this book
# ---------------------
# ``launch`` sets what the ranks of a lab need.


def worker():
    import os

    return dict(os.environ)


labs = launch(worker, 2, init=False)

# %%
# Side by side
# ------------
# Values of rank 1; a dot stands for a variable that is not set.

names = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
]
names += [
    "OMP_NUM_THREADS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
]
columns = {"python": alone[0], "spawn.py": spawned[1], "torchrun": agent[1], "launch": labs[1]}


def shown(name, rank):
    text = rank.get(name, "·")
    return (
        "set" if text != "·" and name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID") else text
    )  # other at each start


print(f"{'variable':29}" + "".join(f"{column:>12}" for column in columns))
for name in names:
    print(f"{name:29}" + "".join(f"{shown(name, rank):>12}" for rank in columns.values()))
assert not alone[0]
assert all(spawned[1][name] == agent[1][name] for name in names[:4])

# %%
# Same program, same result
# -------------------------
# A training program cannot tell the launchers apart, and ends with the same weights.

ran = subprocess.run(
    [sys.executable, "spawn.py", "2", "hello_ddp.py"],
    cwd=FOLDER,
    env=clean,
    capture_output=True,
    text=True,
    check=True,
)
for name, printed in ("torchrun", torchrun("hello_ddp.py", 2)), ("spawn.py", ran.stdout):
    weights = {line.split()[-1] for line in printed.splitlines() if line.startswith("rank")}
    print(f"{name:8} sum of weights on both ranks {', '.join(weights)}")

# %%
# What to notice
# --------------
# * Four variables are the contract: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``.
#   ``LOCAL_RANK`` is for your program: torch does not read it to form the group.
# * Plain ``python`` sets none, so ``init_process_group`` fails there; it does not fall back to one process.
# * torchrun also sets ``OMP_NUM_THREADS=1`` unless you have set it. That is a floor, not a good value:
#   give each rank the cores of the machine divided by its ranks.
#
# What this does not mean
# -----------------------
# A launcher is more than variables: torchrun watches its processes, ends all of them when one fails, and can restart them.
