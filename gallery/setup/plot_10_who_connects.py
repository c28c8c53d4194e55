"""
Who connects to whom
====================

Which connections does a training on two machines need, and which ports do they use?
Two agents with two ranks each meet and wait; the kernel's own table then shows who is connected to whom.
It serves :ref:`setup-rendezvous`.

Agents meet at the endpoint that you name; ranks meet at a second store, and then connect among themselves on ports that the system chooses.
Keep in mind: one open port is not enough.

:Level: deep, 15 minutes
"""

from ddplab.apparatus.machines import connections, machines, torchrun
from ddplab.apparatus.plotting import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    RANK_COLORS,
    describe,
    subplots,
)

# %%
# The program joins the process group, meets the others once, and stays.
# ``torchrun`` of the kit starts one agent per machine, with the same rendezvous endpoint for all.

PROGRAM = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print(f"rank {dist.get_rank()} is there\\n", end="", flush=True)
time.sleep(60)
"""

with machines(2) as (hosts, why_not):
    kind = "network namespaces" if not why_not else f"loopback addresses ({why_not})"
    agents = torchrun(hosts, "--nproc-per-node=2", "--no-python", "python", "-c", PROGRAM)
    for node, agent in enumerate(agents):
        for rank in (2 * node, 2 * node + 1):
            agent.wait_for(f"rank {rank} is there", timeout_s=60)
    seen = connections(agents)

print(f"two machines: {kind}\n{len(seen)} connections")

# %%
# Who listens, and who connected
# ------------------------------
# Each store listens on its own port, and agent 0 has two: agent 1 connects only to that of the rendezvous.

meeting = next(c.port for c in seen if c.client == "agent 1")
stores = {"rendezvous store": [], "group's store": []}
for c in seen:
    if c.server == "agent 0":
        stores["rendezvous store" if c.port == meeting else "group's store"].append(c.client)
mesh = sorted(tuple(sorted((c.client, c.server))) for c in seen if c.server.startswith("rank"))

for store, clients in stores.items():
    where = "port of --rdzv-endpoint" if store == "rendezvous store" else "a free port"
    print(f"{store:17} agent 0, {where:23}  from {', '.join(sorted(clients))}")
pairs = ", ".join(f"{a[-1]}–{b[-1]}" for a, b in mesh)
print(f"{'gloo':17} each rank, {'a free port':21}  pairs of ranks {pairs}")

ranks = [f"rank {rank}" for rank in range(4)]
assert sorted(stores["rendezvous store"]) == ["agent 0", "agent 1"]
assert sorted(stores["group's store"]) == ["agent 0", *ranks]
assert mesh == [(a, b) for a in ranks for b in ranks if a < b]
assert len(seen) == 2 + 5 + 6

# %%
# The same connections as a drawing.
# Thick lines lead to the rendezvous store, dashed ones to the store of the process group, gray ones join ranks.

# drawing
fig, ax = subplots(height_in=4.1)
describe(fig, "Two machines with an agent and two ranks each. Both stores are in agent 0.")
place = {"agent 0": (2.3, 5.6), "agent 1": (7.7, 5.6)}
place |= {"rank 0": (0.9, 2.2), "rank 1": (3.2, 0.7)}
place |= {"rank 2": (6.8, 0.7), "rank 3": (9.1, 2.2)}
store_at = {"group's store": (1.2, 4.5), "rendezvous store": (3.4, 4.5)}
color = {name: ACCENT if "agent" in name else RANK_COLORS[int(name[-1])] for name in place}


def line(a, b, **style):
    ax.plot(*zip(a, b, strict=True), **{"color": MUTED, "lw": 1.2, "zorder": 1, **style})


def label(at, text, edge, **style):
    shape = {"boxstyle": "round,pad=0.4", "facecolor": FAINT, "edgecolor": edge, "lw": 1.6}
    ax.text(*at, text, ha="center", va="center", bbox=shape, zorder=3, **style)


for a, b in mesh:
    line(place[a], place[b])
for name, clients in stores.items():
    thick = {"lw": 2.6} if name == "rendezvous store" else {"ls": "--"}
    for client in clients:
        line(place[client], store_at[name], color=color[client], **thick)
for name, at in place.items():
    label(at, name, color[name])
for name, at in store_at.items():
    label(at, name, INK, fontsize=8.5)
for node, left in enumerate((0, 5.4)):
    line((left, 6.25), (left + 4.6, 6.25), color=INK)
    ax.text(left, 6.35, f"machine {node}", va="bottom", weight="bold")
ax.set(xlim=(-0.1, 10.1), ylim=(0.2, 6.9))
ax.axis("off")
ax.set_title(f"{len(seen)} connections of four ranks on two machines")

# %%
# What to notice
# --------------
#
# - Agent 0 hosts two stores: the rendezvous, where agents meet, and the store in which ranks find each other.
#   Ranks never go to the port that you typed.
# - Rank 0 hosts nothing.
#   ``MASTER_ADDR`` and ``MASTER_PORT`` lead to agent 0.
# - gloo joins every pair of ranks, p(p−1)/2 connections; each rank listens on a port that the system chose.
#   Which of a pair opens the connection differs from run to run, so the lines have no arrow heads.
#
# What this does not mean
# -----------------------
#
# That NCCL connects like this: gradients on GPUs travel over connections of its own, along rings and trees.
# Its ranks too begin at the second store.
#
# Change it: predict, then run
# ----------------------------
# Remove ``dist.barrier()`` from ``PROGRAM``.
# Which of the connections between ranks are gone?
#
# Expect: none: gloo connects all pairs inside ``init_process_group``, before any collective is called.
#
# Say it aloud
# ------------
# "A torchrun job on two machines opens the rendezvous port, a store for the group, and a connection for each pair of ranks on free ports.
# So a firewall between nodes has to let all ports of the job through.
# Connecting every pair at the start finds a blocked one at once, and grows with the square of the ranks."
