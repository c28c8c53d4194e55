"""
Where is each rank? Stacks from outside and from inside
=======================================================

A hung rank prints nothing, but it is at some line of the program.
There are three ways to see which: ``py-spy`` from outside, with no preparation; ``faulthandler`` on a signal, or after a time, set up beforehand.
It serves :ref:`debugging-tools`.

A hung rank is at a line, which can be read from outside, or by a handler that was set before.
The rank that is in no collective is the one that the others wait for.

:Level: core, 15 minutes
:Proves: tool-stacks-from-inside
"""

# %%
# Rank 0 waits for the mean loss; rank 1 loads a batch that does not come.
# Each rank prepares with three lines of ``faulthandler``, and writes its process id to a file.

import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ddplab.apparatus.postmortem import postmortem


def train(folder):
    rank, group = dist.get_rank(), dist.new_group(backend="gloo")
    own = open(f"{folder}/{rank}.stacks", "w")  # noqa: SIM115  (faulthandler writes to it)
    faulthandler.register(signal.SIGUSR2, file=own)  # then: kill -USR2 PID
    faulthandler.dump_traceback_later(1.0, file=sys.stderr)  # unless cancelled before
    handled = []  # when a handler in Python runs: has the batch come by then?
    signal.signal(signal.SIGTERM, lambda *_: handled.append(Path(folder, "batch").exists()))
    Path(folder, f"{rank}.pid").write_text(f"{os.getpid()}\n")

    def next_batch():
        while rank == 1 and not Path(folder, "batch").exists():
            time.sleep(0.01)

    def mean_loss():
        dist.all_reduce(torch.ones(1), group=group)

    next_batch()
    mean_loss()
    faulthandler.cancel_dump_traceback_later()
    return handled


# %%
# From outside
# ------------
# ``py-spy dump`` reads another process's memory: nothing is installed in the program, and the program continues unharmed.


HERE = ("mean_loss", "next_batch")  # where each rank waits


def written(path, until, ask=lambda: None):
    while not (path.exists() and re.search(until, path.read_text())):
        assert not run.done(), f"no {until!r} in {path}"
        ask()
        time.sleep(0.1)
    return path.read_text()


def py_spy(pid):
    tool = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    try:
        command = [tool, "dump", "--pid", pid.strip()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "  py-spy is not installed: pip install py-spy"
    if done.returncode:  # tracing is not allowed here: see below
        return "  refused: " + done.stderr.strip().splitlines()[0][:80]
    lines = done.stdout.splitlines()
    return "\n".join(x for x in lines if "plot_45" in x or "distributed_c10d" in x)


folder = tempfile.TemporaryDirectory()
with ThreadPoolExecutor() as pool:
    run = pool.submit(postmortem, train, 2, folder.name, timeout_s=60)
    pids, signaled = [written(Path(folder.name, f"{rank}.pid"), "\n") for rank in (0, 1)], []
    for rank, pid in enumerate(pids):  # asked until it is where it waits
        ask = partial(os.kill, int(pid), signal.SIGUSR2)
        place = rf"in {HERE[rank]}\n.* in train\n"
        signaled.append(written(Path(folder.name, f"{rank}.stacks"), place, ask))
    for rank, pid in enumerate(pids):
        print(f"rank {rank}:", py_spy(pid), sep="\n")
        os.kill(int(pid), signal.SIGTERM)
    time.sleep(2)
    Path(folder.name, "batch").touch()  # it comes after all: no tool has harmed the ranks
    endings = run.result()
assert [e.value for e in endings] == [[True], [False]]  # what the handlers in Python saw
folder.cleanup()

# %%
# From inside, on a signal
# ------------------------
# ``kill -USR2 PID`` makes the rank write its stacks; faulthandler does it in C, so it works while Python waits inside torch.
# A handler in Python, set by ``signal.signal``, does not run until the wait ends: rank 0's ran when the batch had come, rank 1's at once.
# Keep faulthandler's default, all threads: any thread may receive the signal, and with ``all_threads=False`` one of gloo's, which runs no Python, writes nothing.


def functions(text):
    main_thread = text.split("hread 0x")[-1]  # the oldest comes last
    return re.findall(r'File ".*", line \d+ in (\S+)', main_thread)


for rank, text in enumerate(signaled):
    print(f"rank {rank}:", " <- ".join(functions(text)[:4]))
    assert HERE[rank] in functions(text)

# %%
# From inside, after a time
# -------------------------
# ``dump_traceback_later`` needs nobody at the keyboard: after the time it writes the stacks of *all* threads, again from C.

for ending in endings:
    first = ending.printed.splitlines()[0]
    print(f"rank {ending.rank}: {first}", " <- ".join(functions(ending.printed)[:4]))
    assert first.startswith("Timeout (0:00:01)")
    assert HERE[ending.rank] in functions(ending.printed)

# %%
# When to reach for which
# -----------------------
# A job that hangs now: ``py-spy dump --pid PID`` on every rank; ``--native`` shows C++ frames, too.
# It needs permission to trace the process: root, or the same user where ``/proc/sys/kernel/yama/ptrace_scope`` is 0; in a container the capability ``SYS_PTRACE``.
# A job that you will start: ``faulthandler.register`` in every rank, which needs only the permission to send a signal.
# A hang that comes at night: ``dump_traceback_later`` at the start of every step, set again by the next.
#
# What they do not show
# ---------------------
# Which of many collectives it is: two ranks in the same line may be a thousand steps apart.
# The flight recorder counts them.
#
# Change it: predict, then run
# ----------------------------
# Let both ranks wait for the batch: ``while not Path(...)``.
# What do the stacks show?
#
# Expect: both are in ``next_batch``, so the data is missing for all; the assertion fails.
#
# Say it aloud
# ------------
# "For a job that hangs now I use ``py-spy dump``, for one that I start ``faulthandler``.
# I look for the rank that is in no collective.
# py-spy needs no line in the program but the right to trace it; faulthandler needs the line."
