"""
The first program on a new cluster
==================================

Are all ranks there, can they reach each other, and is each one what the others expect?
``hello_ranks.py`` asks these questions in the order in which they can be answered, each with a time limit, and prints one table.
This lab runs it three times: where all is well, with a wrong network interface, and with a rank that never comes.
It serves :ref:`setup-hello-ranks`.

A first program on a cluster asks the simplest question first, and stops at the first wrong answer.
Keep in mind: a rank that is missing can be named only by those that are there.

:Level: core, 10 minutes
"""

# %%
# All is well
# -----------
# Two ranks under torchrun, started as you start a training; the large all-reduce is one of 16 MiB of float32.

import os
import re
import socket
import subprocess
import sys
import time

from ddplab import record
from ddplab.apparatus.recipes import FOLDER, torchrun
from ddplab.runtime.needs import a_gpu_each

GPUS = a_gpu_each(2)  # or none: two ranks on one GPU would be a finding
table = torchrun("hello_ranks.py", 2, "--mib", "16", env=GPUS)
print(table, end="")
assert "nothing wrong" in table
record(unit="Gbit/s", rate=float(re.search(r"([\d.]+) Gbit/s", table)[1]))

# %%
# An interface that does not exist
# --------------------------------
# A job script from another cluster names an interface that this machine does not have.
# The run ends before any library tries to use it.

try:
    torchrun("hello_ranks.py", 2, "--patience", "3", env={**GPUS, "GLOO_SOCKET_IFNAME": "ib7"})
except RuntimeError as error:
    output = str(error)
print(output[output.index("hello_ranks: ") : output.index("1 wrong")] + "1 wrong")
assert "GLOO_SOCKET_IFNAME=ib7, but" in output

# %%
# A rank that never comes
# -----------------------
# torchrun would wait for a missing machine and start nothing, so nobody could tell you which one it is.
# Started by hand, with the four variables that torchrun would set, the ranks that are there report which one is missing.
# Here the world size is three, and two ranks are started.

with socket.create_server(("127.0.0.1", 0)) as probe:
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}

began = time.monotonic()
command = [sys.executable, FOLDER / "hello_ranks.py", "--patience", "3"]
env = {**os.environ, **GPUS, **meet, "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"}
ranks = [
    subprocess.Popen(command, env={**env, "RANK": rank}, stdout=subprocess.PIPE, text=True)
    for rank in ("0", "1")
]
tables = [rank.communicate(timeout=60)[0] for rank in ranks]
record(unit="s", missing=time.monotonic() - began)
print(tables[0], end="")
assert [rank.returncode for rank in ranks] == [1, 1]
assert "rank 2: no message" in tables[0]
assert tables[1] == ""

# %%
# What to notice
# --------------
# * Only rank 0 prints, and all ranks end with exit code 1: a job script that goes on after ``hello_ranks.py`` can rely on that.
# * Each wrong row is followed by what to do, and the checks that were skipped are named.
# * With ``--patience 3`` everything was over :measured:`hello-ranks.missing:.1f` after the start; the default of 60 gives slow file systems time to load torch.
#
# What this does not mean
# -----------------------
# The :measured:`hello-ranks.rate` above is a copy through the memory of one machine, not the rate of a network.
# On one machine, clocks and connections between machines are not checked either.
#
# Change it: predict, then run
# ----------------------------
# Start other ranks by hand: ``for rank in ("0", "2")``.
# Whom does rank 0's table report, and which checks does it skip?
#
# Expect: rank 1, of which it got no message, and everything that needs all ranks; the assertion that rank 2 is missing fails.
#
# Say it aloud
# ------------
# "Before a job I run a small program that checks variables, rendezvous, versions, devices, interfaces and an all-reduce, each with a time limit.
# It says what is wrong and on which machine.
# It costs a minute of the allocation, and it checks what a small program can see, not how the network behaves under load."
