"""
When the network fails
======================

A worker is killed, a cable comes out, a port is blocked, the interface has another name.
What does each rank and each agent report, and after how long?
It serves :ref:`setup-network-faults`.

:Level: evidence, 12 minutes
"""

import re
from concurrent.futures import ThreadPoolExecutor

from ddplab.apparatus.machines import machines, torchrun

# %%
# Each rank all-reduces without end, in a group with a timeout of 4 s instead of 30 minutes.
# It prints what ended it in one line, without the place in gloo's source.

PROGRAM = """
import datetime, os, torch, torch.distributed as dist
try:
    dist.init_process_group("gloo")
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    for step in range(10**9):
        dist.all_reduce(torch.zeros(1), group=group)
        if step == 3:
            print(f"pid {os.getpid()} trains\\n", end="", flush=True)
except RuntimeError as error:
    message = str(error).splitlines()[0].rpartition(".cc:")[2].partition("] ")[2] or error
    print(f"rank {os.environ['RANK']}: {message}\\n", end="", flush=True)
    os._exit(1)
"""
PYTHON = ("--no-python", "python", "-c", PROGRAM)

# %%
# Each fault gets two fresh machines with one rank each.
# ``watch`` below then collects the messages, with the seconds since the fault.


def training(hosts):
    agents = torchrun(hosts, *PYTHON)
    lines = [agent.wait_for("trains", timeout_s=60) for agent in agents]
    return agents, [agent.seconds for agent in agents], lines[1].split()[1]


def worker_killed(hosts):
    agents, since, pid = training(hosts)
    hosts[1].kill(pid)
    return watch(agents, since)


def cable_out(hosts):
    agents, since, _ = training(hosts)
    with hosts.unplugged(hosts[1]):
        return watch(agents, since)


def port_blocked(hosts):
    with hosts[0].blocked(29400):
        patience = "--rdzv-conf=read_timeout=3,join_timeout=5"  # by default 60 and 600 s
        return watch(torchrun(hosts, patience, *PYTHON), [0, 0])


def wrong_interface(hosts):
    return watch(torchrun(hosts, *PYTHON, env={"GLOO_SOCKET_IFNAME": "eth9"}), [0, 0])


# %%
# Of an agent's long report this keeps its workers' exit codes, and why it could not reach the others.

TELLING = r"rank \d: .*|exitcode +: -?\d+|Rendezvous\w+Error|timed out after .*?\)"


def watch(agents, since, limit_s=12):
    seen = {}  # message: when it came first
    for node, (agent, began) in enumerate(zip(agents, since, strict=True)):
        try:
            end = f"exits with code {agent.wait(limit_s + began - agent.seconds)}"
        except TimeoutError:
            end = "has not exited; the lab stops looking"
        lines = [(at, m[0]) for at, text in agent.lines if (m := re.search(TELLING, text))]
        for at, message in [*lines, (agent.seconds, end)]:
            message = message if message.startswith("rank") else f"agent {node}: {message}"
            seen.setdefault(message.partition(". This")[0], at - began)
    in_order = sorted(seen.items(), key=lambda row: row[1])
    return "\n".join(f"{after:4.1f} s  {message[:85]}" for message, after in in_order)


def run(fault):
    with machines(2) as (hosts, why_not):
        if why_not and fault in (cable_out, port_blocked):
            return f"Not run here: {why_not}"
        return fault(hosts)


faults = (worker_killed, cable_out, port_blocked, wrong_interface)
with ThreadPoolExecutor(2) as pool:
    seen = dict(zip(faults, pool.map(run, faults), strict=True))

# %%
# Seconds after the worker of machine 1 was killed:

print(seen[worker_killed])

# %%
# Seconds after the cable of machine 1 came out:

print(seen[cable_out])

# %%
# The port of the rendezvous is blocked at machine 0; seconds from the start of the agents:

print(seen[port_blocked])

# %%
# ``GLOO_SOCKET_IFNAME=eth9``, a card that is not there; seconds from the start of the agents:

print(seen[wrong_interface])

# %%
# What to notice
# --------------
#
# - On gloo a peer that dies is noticed at once, because its host closes the connections; one that falls silent only after a timeout.
# - An agent that has lost the store exits when TCP stops resending, after many minutes by default.
# - Each agent's cause is its own rank: one names a signal, the other a broken connection.
#   Read the reports of all machines.
# - The agent that hosts the rendezvous reports only that time is up, not who is missing.
#
# What this does not mean
# -----------------------
#
# That these times are yours: most are timeouts, set short here.
