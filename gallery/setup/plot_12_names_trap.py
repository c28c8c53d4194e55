"""
Debian's 127.0.1.1
==================

Debian's installer gives a machine's own name the address 127.0.1.1, and the other machines do not know that name.
How does training on two such machines fail, and what fixes it?
It serves :ref:`setup-names`.

Three programs look up the machine's name in turn, and each acts on the address that it gets.
Keep in mind: a name must mean the same address on every machine.

:Level: deep, 12 minutes
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor

from ddplab.apparatus.machines import machines, torchrun

# %%
# A run on two machines whose endpoint is a good address.
# Three options are added one by one; the last run has none of them, but a good hosts file.
# A run that fails has 5 s to do so, instead of minutes.

PROGRAM = """
import datetime, os, sys, torch.distributed as dist
try:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(sys.argv[1])))
    dist.barrier()
    print("the ranks have met", flush=True)
except Exception as error:
    print(f"rank {os.environ['RANK']}: {error}", flush=True)
    os._exit(1)
"""
DEBIAN = "127.0.0.1 localhost\n127.0.1.1 {name}\n"
GOOD = "127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n"


def run(text, is_host, local_addr, gloo, patience_s):
    def options(host):
        conf = f"--rdzv-conf=read_timeout={patience_s}"
        conf += f",is_host={int(host is hosts[0])}" if is_host else ""
        return [conf, *([f"--local-addr={host.address}"] if local_addr else [])]

    with machines(2) as (hosts, why_not):
        if why_not:
            return f"Not run here: {why_not}"
        for host in hosts:
            host.hosts(text.format(name=host.name))
        python = ("--no-python", "python", "-c", PROGRAM, str(patience_s))
        env = {"GLOO_SOCKET_IFNAME": "eth0"} if gloo else {}
        agents = torchrun(hosts, *python, each=options, env=env)
        while None in (codes := [agent.returncode for agent in agents]) and not any(codes):
            time.sleep(0.1)  # until all have ended, or the first has failed
        return cause("".join(agent.output for agent in agents))


# %%
# Of the long message of the first run that failed, this keeps the words that name an address.

TELLING = r"connectFullMesh failed", r"addresses of \(node0, \d+\) cannot be retrieved"
TELLING += r"trying to connect to \(.*?\)", r"the ranks have met"


def cause(output):
    for pattern in TELLING:
        if found := re.search(pattern, output):
            remote = re.search(r"remote=\[(127\.0\.1\.1)\]", output)
            return found[0] + (f", remote {remote[1]}" if remote else "")
    return output


tries = {
    "as installed": (DEBIAN, False, False, False, 5),
    "+ is_host on node0": (DEBIAN, True, False, False, 5),
    "+ --local-addr": (DEBIAN, True, True, False, 5),
    "+ GLOO_SOCKET_IFNAME": (DEBIAN, True, True, True, 60),
    "hosts file fixed": (GOOD, False, False, False, 60),
}
with ThreadPoolExecutor(3) as pool:
    results = pool.map(lambda options: run(*options), tries.values())
    ended = dict(zip(tries, results, strict=True))

# %%
# What was reported
# -----------------

for name, message in ended.items():
    print(f"{name:21} {message}")

for name in ("+ GLOO_SOCKET_IFNAME", "hosts file fixed"):
    assert ended[name] == "the ranks have met" or ended[name].startswith("Not run here")

# %%
# What to notice
# --------------
#
# - Three programs look up the same name, one after the other: each agent, to see whether the endpoint is its own; the ranks, to find the store at node0; gloo, to publish where it listens.
#   Each needs its own option, and each option only reveals the next failure.
# - One line in ``/etc/hosts`` fixes all three: the machine's own name with its real address, and the others' names beside it.
# - No message names ``/etc/hosts``.
#   Look for ``127.0.1.1``, and for a host name where you gave an address.
#
# What this does not mean
# -----------------------
#
# That every Debian machine has the trap: where the name service knows all machines, the second failure does not occur.
#
# Change it: predict, then run
# ----------------------------
# Add a try with the last option alone: ``"only GLOO_SOCKET_IFNAME": (DEBIAN, False, False, True, 5),``.
# Does it get further than *as installed*?
#
# Expect: no, it fails at the same place: the agents look the name up first, and this option speaks to gloo only. (It needs network namespaces, as the lab does.)
#
# Say it aloud
# ------------
# "Debian gives a machine's own name the address 127.0.1.1, so agents, ranks and gloo each publish an address that leads nowhere for the others.
# Three options work around it, one line in the hosts file fixes it.
# The options need no root and go into every job script; the file needs an administrator, once."
