"""
A data worker dies
==================

``DataLoader worker (pid …) is killed by signal: Killed``: a worker process of one rank's loader is gone, usually because the machine or the container is out of memory.
The other ranks see something else.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-data-worker-dies
"""

# %%
# A worker of rank 1 ends by a signal, or exits by itself, while it reads its first sample.

import re

from ddplab.apparatus.postmortem import postmortem, report


def train(end, workers=1):
    import multiprocessing
    import os
    import signal
    import time
    import traceback

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset

    multiprocessing.current_process().daemon = False  # a rank of a lab may have no workers

    class Samples(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            if dist.get_rank() == 1:
                time.sleep(0.5)  # the rank waits for its batch by then
                if end == "exit":
                    os._exit(3)
                if end == "raise":
                    raise ValueError("this sample has no label")
                os.kill(os.getpid(), getattr(signal, end))
            return torch.full((1,), float(i))

    # On Linux "fork" is the default up to Python 3.13, except in this book's ranks.
    context = {"multiprocessing_context": "fork"} if workers else {}
    dist.barrier()  # all ranks are there
    try:
        for batch in DataLoader(Samples(), 4, num_workers=workers, **context):
            dist.all_reduce(batch)
    except Exception:
        traceback.print_exc()  # with the exception that caused it, which comes first
        raise


def outcome(end):
    endings = postmortem(train, 2, end, leave=True)
    assert [e.how for e in endings] == ["raised", "raised"]
    assert re.search(r"Connection (closed|reset) by peer", endings[0].error)
    assert "DataLoader worker" not in endings[0].error + endings[0].printed
    assert "DataLoader worker" in endings[1].printed
    return endings, re.findall(r"(?m)^(?:Runtime|Value)Error: (.*)", endings[1].printed)


killed, lines = outcome("SIGKILL")
print(report(killed))
print("\n".join(f"rank 1, line by line: {line}" for line in lines))
assert re.search("is killed by signal: Killed|exited unexpectedly", lines[0])

# %%
# Rank 0 is in the all-reduce and sees only that its peer is gone; other ends differ only in rank 1's message.

WORDS = {
    "SIGBUS": "killed by signal: Bus error. It is possible that dataloader's workers are out of",
    "exit": "exited unexpectedly with exit code 3. Details are lost due to multiprocessing",
    "raise": "Caught ValueError in DataLoader worker process 0",
}
for end, words in WORDS.items():
    _, lines = outcome(end)
    print(f"{end:8}{lines[0][:86]}")
    assert words in lines[0] or "exited unexpectedly" in lines[0], lines

# %%
# A signal leaves no traceback in the worker; with ``num_workers=0``, the rank reads and has one:

endings = postmortem(train, 2, "raise", 0, leave=True)
print(f"rank 1: {endings[1].error}, in {endings[1].where}")
assert endings[1].error == "ValueError: this sample has no label"
assert endings[1].where.startswith("__getitem__")

# %%
# The fix
# -------
# Read the first of chained exceptions: ``exited unexpectedly``, at the end, hides the signal above it (rarely, it is nowhere).
# ``Killed``: ask the kernel (``dmesg``, or ``oom_kill`` in the container's ``memory.events``), then use fewer workers, a smaller ``prefetch_factor``, or tensors instead of Python lists in the data set.
# ``Bus error``: ``/dev/shm``, through which batches travel, is full; give the container more (``docker run --shm-size=8g`` or ``--ipc=host``).
# ``Segmentation fault`` or ``exited unexpectedly``: a library in the worker; run the same samples with ``num_workers=0``.
#
# How to recognize it
# -------------------
# One rank reports ``DataLoader worker``; all others report that a connection was closed or reset, or wait.
# If the worker dies while a batch of it is on the way, ``ConnectionResetError`` from ``rebuild_storage_fd`` comes first, and the messages above follow it as a second exception.
