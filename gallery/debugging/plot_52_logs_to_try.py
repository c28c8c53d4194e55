"""
Five failed jobs, and all that they printed
===========================================

What does a terminal show after a failure, and where in it is the reason?
These are the logs that the page :ref:`diagnose-a-log` lets you try.
It serves :ref:`debugging-tools`.

:Level: evidence, 10 minutes
"""

# %%
# One program on three ranks under ``torchrun``, with a fault that its argument names.
# All five jobs run at once.

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """\
import logging, os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def train(fault, rank):
    dist.init_process_group("gloo", timeout=timedelta(seconds=4 if fault == "hang" else 60))
    logging.basicConfig(format=f"%(asctime)s [rank{rank}] %(message)s", level=logging.INFO)
    model = DDP(nn.Linear(4, 1))
    for step in range(1, 5):
        if step == 3 and fault == "hang" and rank == 2:
            time.sleep(120)  # it reads data that never come
        if step == 3 and fault == "memory" and rank == 1:
            torch.empty(2**48)  # a batch with one very long sample
        if step == 3 and fault == "killed" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        if fault == "shapes":  # the losses of a batch; rank 1 has a smaller last batch
            dist.all_reduce(torch.ones(5 if step == 3 and rank == 1 else 8))
        logging.info("step %d loss %.3f", step, loss.item())

train(sys.argv[1], int(os.environ["RANK"]))
"""


def start(fault, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3"]
    command += [*(options or ["--standalone"]), "train.py", fault]
    own = {"OMP_NUM_THREADS": "1", "TMPDIR": folder.name}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder.name, env={**os.environ, **own}, **pipes)


folder = tempfile.TemporaryDirectory()
Path(folder.name, "train.py").write_text(PROGRAM)
taken = socket.create_server(("127.0.0.1", 0))
port = taken.getsockname()[1]
jobs = {
    "hang": start("hang"),
    "memory": start("memory"),
    "shapes": start("shapes"),
    "killed": start("killed"),
    "port": start("port", "--master-addr=127.0.0.1", f"--master-port={port}"),
}
try:
    logs = {name: job.communicate(timeout=150)[0] for name, job in jobs.items()}
finally:
    for job in jobs.values():
        job.kill()
    taken.close()
assert [job.returncode for job in jobs.values()] == [1] * 5, logs

# %%
# Nothing is left out of the outputs below.
# Only names of this machine are replaced: its folders and its own name.


def show(name):
    log = re.sub(r'[^\s"]*/(?=lib/python3)', "/venv/", logs[name])
    log = log.replace(sys.executable, "/venv/bin/python").replace(folder.name, "/job")
    print(log.replace(socket.gethostname(), "node0").strip())


# %%
# Rank 2 waits for data that never come.
# It prints nothing; the others raise when the group's timeout is over.

show("hang")
assert "Timed out waiting 4000ms" in logs["hang"]

# %%
# Rank 1 asks for more memory than there is.

show("memory")
assert "can't allocate memory" in logs["memory"]

# %%
# Rank 1 brings five numbers where the others bring eight.

show("shapes")
assert "Received data size doesn't match" in logs["shapes"]

# %%
# Rank 1 gets SIGKILL.
# It cannot print; ``torchrun`` knows its exit code.

show("killed")
assert "exitcode  : -9" in logs["killed"]

# %%
# The port of the rendezvous is taken: no rank starts.

show("port")
assert "EADDRINUSE" in logs["port"]
