"""
Two processes with the same rank
================================

``rank=int(os.environ["LOCAL_RANK"])`` works on one machine.
On two machines with two processes each there are then two ranks 0, two ranks 1, and no ranks 2 and 3.
It serves :ref:`faults`.

:Level: evidence, 5 minutes
:Proves: fault-duplicate-rank
"""

# %%
# Four processes represent two machines with two each; only the wrong program gives its local rank to the group.

from ddplab import launch
from ddplab.apparatus.postmortem import postmortem, report


def train(rank_of, world_size):
    import datetime
    import os
    import time

    import torch
    import torch.distributed as dist

    rank = rank_of[int(os.environ["RANK"])]
    timeout = datetime.timedelta(seconds=2)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timeout)
    except dist.DistError:
        time.sleep(3 if rank == 0 else 0)  # it hosts the store; let the others report first
        raise
    total = torch.tensor(1)
    dist.all_reduce(total)
    return f"rank {rank}, the sum of ones is {total.item()}"


# %%
# The lanes below are numbered by process; processes 2 and 3 believe that they are ranks 0 and 1.

endings = postmortem(train, 4, [0, 1, 0, 1], 4, init=False, leave=True)
print(report(endings))
assert [e.how for e in endings] == ["raised"] * 4
assert sum("EADDRINUSE" in e.error for e in endings) == 1
assert sum("3/4 clients joined" in e.error for e in endings) == 1
assert sum("keys: /default_pg/0//cpu//0/0" in e.error for e in endings) == 2

# %%
# No message reports that a rank exists twice.
# Both ranks 0 want to host the store and one is refused; the other counts three and misses a fourth.
#
# If rank 0 exists once, the count is right.
# Here ranks 0, 1 and 1 form a group of three, and all wait for the address of the rank that does not exist:

endings = postmortem(train, 3, [0, 1, 1], 3, init=False, leave=True)
print(report(endings))
assert all("wait timeout" in e.error and e.error.endswith("cpu//0/2") for e in endings)

# %%
# With the numbers that a launcher sets, each rank exists once.

print("\n".join(launch(train, 4, [0, 1, 2, 3], 4, init=False)))

# %%
# The fix
# -------
# ``RANK`` numbers the process in the job and goes to the group; ``LOCAL_RANK`` numbers it on its machine and chooses the device.
# It is best to give ``init_process_group`` neither: it reads ``RANK`` and ``WORLD_SIZE`` by itself.
#
# How to recognize it
# -------------------
# All ranks fail in ``init_process_group`` and as many processes run as ``WORLD_SIZE`` says.
# The key in ``wait timeout`` ends in a rank; if no process has that rank, some other rank exists twice.
# Print ``RANK``, ``LOCAL_RANK`` and the host name on every process, sort the lines, and look for a repetition.
# If ``WORLD_SIZE`` is local as well, there is no error at all: there are two jobs, as with two ``--standalone`` agents (:ref:`setup-launchers`).
