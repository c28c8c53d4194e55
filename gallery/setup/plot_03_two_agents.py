"""
Two agents, as on two machines
==============================

On two machines you start ``torchrun`` twice, once on each.
Who then decides which machine has ranks 0 and 1?
Here both agents run on one host, each with its own loopback address; nothing else is different.
It serves :ref:`setup-variables` and :ref:`setup-launchers`.

With several machines each runs an agent, the agents meet first, and they number the nodes among themselves.
Keep in mind: read your rank, and do not derive it from the order in which you started.

:Level: deep, 12 minutes
"""

import json
import os
import socket
import subprocess
import sys

from ddplab import record
from ddplab.apparatus.plotting import MUTED, RANK_COLORS, label, subplots
from ddplab.apparatus.recipes import FOLDER

# %%
# What you type on each machine
# -----------------------------
# The endpoint is an address of one of them, and a port that is free there.
# The commands differ only in ``--local-addr``, which real machines rarely need, and in the node rank that they ask for; the lab shows what comes of it.


def agent(address, endpoint, *options):
    """One machine's ``torchrun``, which starts two ranks."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=2",
    ]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=lab"]
    command += [f"--local-addr={address}", *options, "variables.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=FOLDER, env=env, text=True, **pipes)


with socket.create_server(("127.0.0.2", 0)) as probe:
    endpoint = f"127.0.0.2:{probe.getsockname()[1]}"
wanted = {"127.0.0.2": 0, "127.0.0.10": 1}
agents = {at: agent(at, endpoint, f"--node-rank={node}") for at, node in wanted.items()}
outputs = {address: process.communicate(timeout=120) for address, process in agents.items()}

# %%
# The variables that the ranks got
# --------------------------------

ranks = {}  # rank -> (the address of its agent, its variables)
for address, (printed, _) in outputs.items():
    for line in printed.replace("}{", "}\n{").splitlines():
        if line.startswith("{"):
            variables = json.loads(line)
            ranks[int(variables["RANK"])] = address, variables
names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR"]
print(f"{'agent at':12}" + "".join(f"{name:>13}" for name in names))
for rank in sorted(ranks):
    address, variables = ranks[rank]
    print(f"{address:12}" + "".join(f"{variables[name]:>13}" for name in names))

# %%
# The agent that hosts the rendezvous, and was started with ``--node-rank=0``, has the *second* node number.
# The other one gives the reason in a warning that is easy to overlook (torch 2.13):

for line in outputs["127.0.0.10"][1].splitlines():
    if "node_rank is" in line:  # torch 2.11 prints nothing
        print(line.rpartition("] ")[2])
assert ranks[0][0] == "127.0.0.10"
assert ranks[2][1]["GROUP_RANK"] == "1"
record(nodes=2, ranks=len(ranks))

# %%
# Under c10d, nodes are numbered by what ``--local-addr`` says, or else by their full host names, *as text*: "127.0.0.10" comes before "127.0.0.2".
# Within a node ranks follow the local rank; the agent of node 0 holds the store in which the ranks meet.

# drawing
fig, ax = subplots(height_in=1.7)
for rank, (address, variables) in ranks.items():
    middle, look = rank + 0.45, {"edgecolor": RANK_COLORS[rank], "linewidth": 2}
    ax.bar(middle, 0.7, width=0.85, facecolor="none", **look)
    label(ax, middle, 0.35, f"rank {rank}", fontsize=9.5)
    local = variables["LOCAL_RANK"]
    label(ax, middle, -0.12, f"local rank {local}", va="top", color=MUTED, fontsize=8)
    if local == "0":
        text = f"node {variables['GROUP_RANK']}, {address}"
        label(ax, rank, 0.85, text, ha="left", va="bottom", fontsize=9)
ax.set(xlim=(-0.1, 4), ylim=(-0.5, 1.2))
ax.axis("off")
ax.set_title("Two agents with two ranks each, as they were numbered")

# %%
# What to notice
# --------------
# * ``RANK`` is ``GROUP_RANK × LOCAL_WORLD_SIZE + LOCAL_RANK`` here, because both agents start the same number of ranks.
#   Read ``RANK``; do not compute it.
# * ``MASTER_ADDR`` is chosen by the agents, not by you: it is where node 0 is, whatever the endpoint says.
#
# What this does not mean
# -----------------------
# The static rendezvous (``--master-addr`` and ``--node-rank``) does number the nodes as you ask.
#
# Change it: predict, then run
# ----------------------------
# Start the second agent at 127.0.0.3 in place of 127.0.0.10.
# Which agent gets ranks 0 and 1?
#
# Expect: that at 127.0.0.2: as text it now comes first; the lines after the table still ask for 127.0.0.10, and end the lab.
#
# Say it aloud
# ------------
# "Under the c10d rendezvous the agents agree on node numbers by comparing addresses or names as text, and node 0 hosts the store of the ranks.
# So ranks are right, and not those that I expected.
# The static rendezvous gives me the order, and gives up joining late and replacing a node."
