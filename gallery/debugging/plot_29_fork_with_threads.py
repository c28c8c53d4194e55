"""
A worker forked while a thread held a lock
==========================================

One rank hangs in its data loader, at the first batch or now and then at the start of an epoch; the others wait in an all-reduce.
There is no error, and no load on any core.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-fork-with-threads
"""

# %%
# The samples come through a cache with a lock, and a thread fills the cache ahead of time.
# On rank 1 the thread is working, and so holds the lock, at the moment when the loader forks its worker.

import threading

from ddplab import launch
from ddplab.apparatus.postmortem import postmortem, report
from ddplab.runtime.needs import ON_CPU


def train(thread):
    import multiprocessing

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset

    multiprocessing.current_process().daemon = False  # a rank of a lab may have no workers
    lock, works, finish = threading.Lock(), threading.Event(), threading.Event()

    class Cached(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, i):
            with lock:
                return torch.full((1,), float(i))

    def fill_the_cache():
        with lock:
            works.set()
            finish.wait()

    def start_thread():
        if dist.get_rank() == 1:
            threading.Thread(target=fill_the_cache, daemon=True).start()
            works.wait()

    loader = DataLoader(Cached(), 4, num_workers=1, multiprocessing_context="fork")
    if thread == "first":
        start_thread()
    batches = iter(loader)  # forks the worker
    if thread == "last":
        start_thread()
    finish.set()  # the thread releases the lock right after
    count = 0
    for batch in batches:
        dist.all_reduce(batch)
        count += 1
    return f"{count} batches"


print("no thread:", launch(train, 2, "none", env=ON_CPU))
wait = {"timeout_s": 8, "group_timeout_s": 60}  # still there after 8 s: it hangs
endings = postmortem(train, 2, "first", **wait, leave=True, env=ON_CPU)
print(report(endings))
assert [e.how for e in endings] == ["hung", "hung"]
assert endings[0].where.startswith("all_reduce")
assert endings[1].where.startswith("__next__")

# %%
# A fork copies the memory with the lock in it, but only the thread that called it.
# In rank 1 the thread releases the lock a moment later; in the worker there is no such thread, and the copy stays locked forever.
# The rank waits for its worker, and the other ranks wait for the rank.
#
# If the workers start before the thread, no lock is held when they are forked.

trained = launch(train, 2, "last", env=ON_CPU)
print("workers first:", trained)
assert trained == ["4 batches"] * 2

# %%
# The fix
# -------
# Create the loader's iterator before you start threads, with ``persistent_workers=True`` so that later epochs do not fork; or avoid the fork: ``DataLoader(…, multiprocessing_context="forkserver")`` starts workers from a process without your threads.
# The data set must then be picklable and its class importable; a lock is not picklable, so create it in the worker, in ``worker_init_fn`` or at first use.
# Python's own ``logging`` resets its locks in a forked child; nothing resets yours, or those of C libraries.
#
# How to recognize it
# -------------------
# One rank is in ``__next__`` of the loader, all others are in a collective.
# The stack of the *worker* (``py-spy dump --pid`` of the child) ends at a lock, in ``__getitem__``.
# Give the loader ``timeout=60``: the hang becomes ``DataLoader timed out after 60 seconds`` on the rank that has it.
