"""
Who sets which variable
=======================

``init_process_group`` reads four variables, and your program reads a fifth to choose its device.
Which launcher sets them, and what do you have to set yourself?
This lab starts one program in four ways and prints the variables that it gets.
It serves :ref:`setup-variables`.

A launcher's contract with the program is a handful of variables.
Keep in mind: four say where a rank stands and where to meet, ``LOCAL_RANK`` says which device to take, and plain ``python`` sets none.

:Level: core, 10 minutes
:Proves: setup-torchrun-variables
"""

import json
import os
import subprocess
import sys

from ddplab import launch
from ddplab.apparatus.recipes import FOLDER, torchrun

# %%
# The program prints the variables that describe its place in the job.
#
# .. literalinclude:: /../gallery/recipes/variables.py
#    :language: python
#
# Without a launcher
# ------------------
# The variables that this script itself was started with are removed first.

OWN = "SLURM_", "OMP_", "TORCHELASTIC_"
clean = {name: text for name, text in os.environ.items() if not name.startswith(OWN)}


def python(*command):
    """Run a program of gallery/recipes without torchrun; return what it printed."""
    options = {"cwd": FOLDER, "env": clean, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, *command], check=True, **options).stdout


def variables(printed):
    """The variables that each process printed, in rank order."""
    ranks = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return sorted(ranks, key=lambda rank: rank.get("RANK", ""))


alone = variables(python("variables.py"))
print(f"python variables.py: {len(alone)} process, {len(alone[0])} variables")

# %%
# torch.multiprocessing.spawn
# ---------------------------
# ``mp.spawn`` starts processes and passes each its number as an argument; it sets no variable.
# So the program sees what ``spawn.py`` sets by hand: the four that torch reads, two local numbers, and the threads.
#
# .. literalinclude:: /../gallery/recipes/spawn.py
#    :language: python
#    :pyobject: run

spawned = variables(python("spawn.py", "2", "variables.py"))

# %%
# torchrun
# --------
# The same program, unchanged.

agent = variables(torchrun("variables.py", 2))

# %%
# The labs of this book
# ---------------------
# ``launch`` sets what the ranks of a lab need.


labs = launch(lambda: dict(os.environ), 2, init=False)

# %%
# Side by side
# ------------
# Values of rank 1; a dot stands for a variable that is not set.

SHARED = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
names = [*SHARED, "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"]
names += [f"TORCHELASTIC_{name}" for name in ("RUN_ID", "RESTART_COUNT", "USE_AGENT_STORE")]
columns = {"python": alone[0], "spawn.py": spawned[1], "torchrun": agent[1], "launch": labs[1]}


def shown(name, rank):
    varies = name in rank and name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID")
    return "set" if varies else rank.get(name, "·")


print(f"{'variable':29}" + "".join(f"{column:>12}" for column in columns))
for name in names:
    print(f"{name:29}" + "".join(f"{shown(name, rank):>12}" for rank in columns.values()))
assert not alone[0]
for rank, held in enumerate(agent):
    assert [held[name] for name in names[:5]] == [str(rank), str(rank), "2", "2", "0"]
    assert all(held[name] == agent[0][name] for name in ("MASTER_ADDR", "MASTER_PORT"))
assert all(spawned[1][name] == agent[1][name] for name in SHARED)

# %%
# Same program, same result
# -------------------------
# A training program cannot tell the launchers apart, and ends with the same weights.

spawned = python("spawn.py", "2", "hello_ddp.py")
for name, printed in ("torchrun", torchrun("hello_ddp.py", 2)), ("spawn.py", spawned):
    weights = {line.split()[-1] for line in printed.splitlines() if line.startswith("rank")}
    print(f"{name:8} sum of weights on both ranks {', '.join(weights)}")

# %%
# What to notice
# --------------
# * Four variables are the contract: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``.
#   ``LOCAL_RANK`` is for your program: torch does not read it to form the group.
# * Plain ``python`` sets none, so ``init_process_group`` fails there; it does not fall back to one process.
# * For several ranks torchrun also sets ``OMP_NUM_THREADS=1`` unless you have set it. That is the minimum, not a good value:
#   give each rank the cores of the machine divided by its ranks.
#
# What this does not mean
# -----------------------
# A launcher is more than variables: torchrun watches its processes, ends all of them when one fails, and can restart them.
#
# Change it: predict, then run
# ----------------------------
# Give torchrun a number of threads: ``torchrun("variables.py", 2, env={"OMP_NUM_THREADS": "4"})``.
# What does its column show?
#
# Expect: 4, in that column alone: torchrun passes on what you have set.
#
# Say it aloud
# ------------
# "torchrun, spawn and Slurm differ in who starts the processes; the program reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from any of them.
# torchrun also watches and restarts.
# spawn needs no other command and leaves errors, variables and threads to you."
