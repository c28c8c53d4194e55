"""
A process of the last run has the port
======================================

The last run was killed, you start the next one with the same ``MASTER_PORT``, and rank 0 reports ``EADDRINUSE``.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-port-taken setup-port-taken
"""

# %%
# Rank 0 of the last run still waits for its peer, which was killed before it connected.
# The next run has the same port; to distinguish the runs, each rank adds the number of its run.

import glob
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from ddplab import launch
from ddplab.apparatus.postmortem import postmortem, report

LAST_RUN = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(total := torch.tensor(100))
print(f"the last run's rank 0 has {total.item()}", flush=True)
time.sleep(600)  # and has the port until it is ended
"""


def train():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(total := torch.tensor(1))
    return total.item()


# %%
# Linux knows who listens at a port, without any tool: ``/proc/net/tcp`` has the socket, ``/proc/PID/fd`` its owner.


def holder(port):
    rows = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    sockets = re.findall(rf":{port:04X} \S+ 0A (?:\S+ +){{5}}(\d+)", rows)  # 0A: it listens
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link)[8:-1] in sockets:
                return int(link.split("/")[2])
        except OSError:  # gone, or another user's
            pass
    return None


with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
at_port = {"MASTER_PORT": str(port)}
place = {**os.environ, **at_port, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
command = [sys.executable, "-c", LAST_RUN]
with subprocess.Popen(command, env=place, stdout=-1, text=True) as leftover:
    try:
        while not holder(port) and leftover.poll() is None:
            time.sleep(0.05)
        print(f"port held by process {holder(port)}; the leftover is {leftover.pid}")
        assert holder(port) == leftover.pid
        endings = postmortem(train, 2, init=False, leave=True, env=at_port)
        print(report(endings))
        print(last := leftover.stdout.readline(), end="")
    finally:
        leftover.kill()
assert [e.how for e in endings] == ["raised", "returned"]
assert "EADDRINUSE" in endings[0].error
assert endings[1].value == 101
assert "has 101" in last

# %%
# Rank 0 is refused at once: a port has one owner.
# Rank 1 connects to the owner, whichever process that is, and it is a store that waits for a rank 1.
# So the new rank 1 and the old rank 0 train together, and rank 1 sees no error at all.
# Once the leftover process is ended, the same call on the same port works.

sums = launch(train, 2, init=False, env=at_port)
print(f"sums on the two ranks: {sums}")
assert sums == [2, 2]

# %%
# The fix
# -------
# End the process that has the port (``ss -ltnp``, ``lsof -i :PORT``, or the lines above), by its number.
# Take a free port for each run, as ``torchrun --standalone`` does on one machine.
# Whatever starts your ranks must end all of them when one fails: torchrun does, ``srun`` with ``--kill-on-bad-exit=1``, a shell loop with ``&`` does not.
#
# How to recognize it
# -------------------
# ``EADDRINUSE`` appears on rank 0 only.
# The others depend on what holds the port: a store that waits for them accepts them, a store whose ranks have met lets them run into a timeout, and a program that is not a store may keep them even longer (:ref:`setup-hello-ranks`).
