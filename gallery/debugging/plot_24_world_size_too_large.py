"""
A rank that never comes
=======================

Three ranks are announced, two are started: a machine that did not boot, ``WORLD_SIZE`` left over from a larger run, a rank that died while it imported.
Everyone waits for the timeout, 30 minutes by default, and then most ranks name a rank that is there.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-world-size-too-large
"""

# %%
# ``WORLD_SIZE`` is 3, and rank 2 does not come.
# The timeout is 2 s.

from ddplab import launch
from ddplab.apparatus.postmortem import postmortem, report


def train(missing):
    import datetime
    import os
    import time

    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    if rank == missing:
        return "never starts"
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    except dist.DistError:
        time.sleep(3 if rank == 0 else 0)  # it hosts the store; let the others report first
        raise
    return "trains"


endings = postmortem(train, 3, 2, init=False, leave=True)
print(report(endings))
assert [e.how for e in endings] == ["raised", "raised", "returned"]
assert "waiting for clients. 2/3 clients joined" in endings[0].error
assert "wait timeout after 2000ms, keys: /default_pg/0//cpu//0/0" in endings[1].error

rank_0, _, *others = postmortem(train, 4, 1, init=False, leave=True)  # another one of four
assert "3/4 clients joined" in rank_0.error
assert all(e.error.endswith("keys: /default_pg/0//cpu//0/0") for e in others)

# %%
# Rank 0 hosts the store, counts connections, and reports how many ranks came, but not which.
# Rank 1 has connected and waits for the address of rank 0, which rank 0 writes once all are there.
# So rank 1 asks for the key that ends in 0: it names rank 0, which is alive, and not rank 2, which is missing.
#
# Who is missing
# --------------
# A list of names at the same address, before the group is made, shows it.
# The store below does not wait for all of its clients; rank 0 waits for them and names those that it has not seen.


def roll_call(absent):
    import datetime
    import os

    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == absent:
        return "never starts"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    wait = {"wait_for_workers": False, "timeout": datetime.timedelta(seconds=3)}
    store = dist.TCPStore(address, port, is_master=rank == 0, **wait)
    store.set(f"here/{rank}", "")
    try:
        store.wait([f"here/{other}" for other in range(ranks)])
        missing = []
    except dist.DistStoreError:
        missing = [other for other in range(ranks) if not store.check([f"here/{other}"])]
    store.add("reported", 1)
    while rank == 0 and store.add("reported", 0) < ranks - len(missing):
        pass  # the rank that hosts the store leaves last
    return f"missing: {missing}"


endings = postmortem(roll_call, 3, 2, init=False, leave=True)
print(report(endings))
assert [e.value for e in endings] == ["missing: [2]", "missing: [2]", "never starts"]

# %%
# With all ranks there, the group forms.

print(launch(train, 3, None, init=False))

# %%
# The fix
# -------
# Start exactly ``WORLD_SIZE`` processes; let a launcher compute the number.
# Pass ``timeout=datetime.timedelta(minutes=5)`` or so to ``init_process_group``, and give later collectives that need longer a separate group.
#
# How to recognize it
# -------------------
# ``clients joined`` on rank 0 and ``wait timeout`` with a key on the others, all within the same second or two, and nothing was trained.
# A rank that started more than three seconds after rank 0 sees rank 0 leave first, and reports ``Failed to recv, got 0 bytes. Connection was likely closed.``
# If rank 0 is the missing one, there is no store, and all others report ``The client socket has timed out`` with its address.
