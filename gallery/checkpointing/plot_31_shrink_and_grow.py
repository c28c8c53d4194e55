"""
Shrink and grow
===============

Two agents with one rank each, ``--nnodes=1:2``.
One agent is killed, then its rank, and later an agent comes back: how many ranks train at each time, and from which step?
It serves :ref:`checkpointing-elastic`.

Whenever a rank is lost or an agent comes, all ranks stop, get new numbers, and start from the last checkpoint.
Rank, world size and restart count are true for one such life only.

:Level: deep, 20 minutes
"""

import os
import random
import re
import signal
import tempfile
import time

from ddplab import record
from ddplab.apparatus import elastic_training
from ddplab.apparatus.machines import loopback
from ddplab.apparatus.plotting import ACCENT, INK, RANK_COLORS, describe, subplots

# %%
# The agents
# ----------
# The program is that of :doc:`/labs/checkpointing/plot_30_kill_a_rank`.
# A step takes the same eight samples for any number of ranks, so the curve does not depend on who is there; every fifth step is saved.
# A hosts the rendezvous and stays. B and C are on the machine whose address comes first, which therefore has rank 0.
# ``--rdzv-conf`` shortens two waits: a node is dead after three missing heartbeats of 1 s each, and a rendezvous waits 2 s for more nodes.

CONF = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # each life meets in a new store
LIMIT_S = 90
agents, events = {}, []  # name -> (program, when it was started); (when, what)


def start(name, host):
    options = ["--nnodes=1:2", "--max-restarts=3", f"--local-addr={host.address}"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint={hosts[1].address}:{port}"]
    options += [f"--rdzv-conf=is_host={int(host is hosts[1])},{CONF}"]
    program = [
        "--no-python",
        "python",
        elastic_training.__file__,
        folder,
        "2000",
        "5",
        "0",
        "0.05",
    ]
    event(f"agent {name} started")
    agent = host.start(["torchrun", *options, *program], {**host.agent_env, **FRESH})
    agents[name] = agent, time.monotonic()
    return agent


def event(text):
    events.append((time.monotonic(), text))


def last_step(agent, world):
    return int(re.findall(rf"of {world} │ step (\d+),", agent.output)[-1])


with tempfile.TemporaryDirectory() as folder, loopback(2) as hosts:
    port = random.randrange(20000, 30000)  # below those that the system hands out
    a, b = start("A", hosts[1]), start("B", hosts[0])
    a.wait_for("of 2 │ step 12,", LIMIT_S)
    rank_of_b = int(re.search(r"pid (\d+)", b.output)[1])
    try:
        event("agent B killed")
        os.kill(b.pid, signal.SIGKILL)
        a.wait_for(f"of 2 │ step {last_step(a, 2) + 30},", LIMIT_S)  # nothing has changed
        event("its rank killed")
    finally:
        os.kill(rank_of_b, signal.SIGKILL)  # its agent is gone: nobody else would end it
    a.wait_for("of 1 │ step", LIMIT_S)
    a.wait_for(f"of 1 │ step {last_step(a, 1) + 12},", LIMIT_S)
    c = start("C", hosts[0])
    c.wait_for("of 2 │ restart count", LIMIT_S)
    c.wait_for(f"of 2 │ step {last_step(a, 1) + 24},", LIMIT_S)

# %%
# What happened
# -------------

BEGINS = r"rank (\d) of (\d) │ restart count (\d), pid \d+, begins with step (\d+)"
lives = []  # one dict for each life of each rank
for name, (agent, started_s) in agents.items():
    for at_s, line in agent.lines:
        if begins := re.match(BEGINS, line):
            numbers = zip(
                ("rank", "world", "count", "first"), map(int, begins.groups()), strict=True
            )
            lives.append(
                {"agent": name, **dict(numbers), "from_s": started_s + at_s, "losses": {}}
            )
        elif step := re.match(r"rank \d of \d │ step (\d+), loss (\S+)", line):
            lives[-1]["to_s"] = started_s + at_s
            lives[-1]["losses"][int(step[1])] = float.fromhex(step[2])
zero_s = min(life["from_s"] for life in lives)
log = [(at_s - zero_s, text) for at_s, text in events if at_s > zero_s]
for life in lives:
    who = f"agent {life['agent']}: rank {life['rank']} of {life['world']}"
    what = f"restart count {life['count']}, steps {life['first']} – {max(life['losses'])}"
    log.append((life["from_s"] - zero_s, f"{who}, {what}"))
for at_s, text in sorted(log):
    print(f"{at_s:5.1f} s  {text}")
found = {(one["agent"], one["rank"], one["world"], one["count"]) for one in lives}
assert found == {
    ("A", 1, 2, 0),
    ("B", 0, 2, 0),
    ("A", 0, 1, 1),
    ("A", 1, 2, 1),
    ("C", 0, 2, 0),
}
assert "lost its agent, and trains on" in b.output

# %%
# Each change of the world costs the steps since the last checkpoint.
# The curve is that of one process without DDP that nobody interrupts.

two, one, grown = (life for life in lives if life["agent"] == "A")
for name, before, after in (("shrink", two, one), ("grow", one, grown)):
    again = max(before["losses"]) + 1 - after["first"]
    pause_s = after["from_s"] - before["to_s"]
    change = f"{before['world']} → {after['world']} ranks"
    print(f"{change}: {again} steps again, {pause_s:.1f} s pause")
    assert 0 <= again <= 5
    record("s", **{name: pause_s})
alone, worst = elastic_training.build(), 0.0
for step in range(1, 1 + max(grown["losses"])):
    loss = elastic_training.train_step(*alone, step).item()
    seen = [life["losses"][step] for life in (two, one, grown) if step in life["losses"]]
    worst = max(worst, *(abs(loss - other) for other in seen))
print(f"largest difference of a loss: {worst:.1e}")
assert worst < 1e-5

# %%
# The lives over time; each bar is a life of a rank, from its first line of output to its last step.

# drawing
fig, ax = subplots(height_in=2.6)
describe(fig, "Lives of the ranks of three agents over time, with what was killed and started")
for life in lives:
    row, left = "ABC".index(life["agent"]), life["from_s"] - zero_s
    width, color = life["to_s"] - life["from_s"], RANK_COLORS[life["rank"]]
    ax.barh(row, width, left=left, height=0.62, color="none", edgecolor=color, lw=2)
    text = f" rank {life['rank']}\n of {life['world']}"
    ax.text(left + width, row, text, va="center", color=INK, fontsize=8)
shown = [(at_s, text) for at_s, text in sorted(log) if "killed" in text or "started" in text]
for number, (at_s, text) in enumerate(shown):
    ax.axvline(at_s, color=ACCENT, lw=1, ls=":")
    ax.text(at_s, -0.9 + 0.35 * (number % 2), f" {text}", color=INK, fontsize=8)
ax.set(xlabel="seconds", yticks=range(3), yticklabels=[f"agent {name}" for name in "ABC"])
ax.set(ylim=(2.5, -1.2), xlim=(0, 1.1 * (max(life["to_s"] for life in lives) - zero_s)))

# %%
# What to notice
# --------------
#
# - The agent's death alone changed nothing: its rank trained on, and nobody else noticed.
#   Killing an agent with SIGKILL leaves its ranks behind.
# - The loss of a rank took one of agent A's restarts, because A's own rank failed with it, on gloo at once. The new node took none.
# - ``TORCHELASTIC_RESTART_COUNT`` is each agent's own count: at the end it is 1 on rank 1 and 0 on rank 0.
#   It numbers neither lives nor checkpoints, and must not go into a name or port that ranks have to agree on.
# - Agent A's rank was 1, then 0, then 1. Numbers follow the addresses of the nodes that are there; store nothing under a rank's number.
#
# What this does not mean
# -----------------------
#
# That the job survives the loss of any agent: A hosts the rendezvous, and without A the job is over.
# Nor that training with fewer ranks is the same training if each rank's batch is fixed: here, the global batch stays, and each rank takes a larger share.
#
# Change it: predict, then run
# ----------------------------
# Set ``--max-restarts=0``.
# What becomes of agent A when the rank of B is killed?
#
# Expect: A ends with ``ChildFailedError``, because its own rank failed too, and the job is over.
#
# Say it aloud
# ------------
# "With ``--nnodes=1:2`` the job goes on with the machines that are there.
# Each change stops all ranks and repeats the steps since the last checkpoint.
# That keeps machines in use, and pays with pauses and with a program that may not rely on its world size."
