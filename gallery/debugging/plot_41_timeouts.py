"""
Timeouts: who waits how long, and which setting decides
=======================================================

A hang ends when a timeout ends it.
Which timeout that is depends on the group, on the call, and on the layer that waits; one of them is 30 minutes where you expected two seconds.
It serves :ref:`debugging-tools`.

A timeout belongs to a group, a call or a store, and each layer waits with its own.
It says how long somebody waited, and not who was missing.

:Level: core, 15 minutes
:Proves: tool-timeout-of-the-group setup-timeout-per-group
"""

# %%
# Rank 1 never comes.
# Rank 0 waits for it in seven ways, each with its own timeout, on groups that were created before.
# All groups are gloo groups: on NCCL a timeout does not raise, it ends the process.

import datetime
import time

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from ddplab import record
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report
from ddplab.runtime.torch_private import flight_dump


def seconds(s):
    return datetime.timedelta(seconds=s)


def wait_in_seven_ways():
    default = gloo_group(1.0)
    short = [gloo_group(0.3) for _ in range(2)]
    long = [gloo_group(60) for _ in range(2)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=seconds(60))
    if dist.get_rank() == 1:
        dist.barrier()  # until rank 0 has seen all
        return None
    one, ended = torch.ones(1), []

    def timed(what, asked, call):
        began = time.monotonic()
        try:
            call()
        except Exception as error:
            words = str(error).split("\n")[0].split("] ")[-1].split(", keys")[0].split(" [")[0]
            ended.append((what, asked, time.monotonic() - began, type(error).__name__, words))

    timed("all_reduce, group of 1 s", 1.0, lambda: dist.all_reduce(one, group=default))
    timed("all_reduce, group of 0.3 s", 0.3, lambda: dist.all_reduce(one, group=short[0]))
    timed("the same group again", 0, lambda: dist.all_reduce(one, group=short[0]))
    timed("barrier, group of 0.3 s", 0.3, lambda: dist.barrier(group=short[1]))
    work = dist.all_reduce(one, group=long[0], async_op=True)
    timed("work.wait(0.2 s)", 0.2, lambda: work.wait(seconds(0.2)))
    monitored = {"group": long[1], "timeout": seconds(0.2)}
    timed("monitored_barrier(0.2 s)", 0.2, lambda: dist.monitored_barrier(**monitored))
    timed("store.wait(key, 0.2 s)", 0.2, lambda: store.wait(["key"], seconds(0.2)))
    dist.barrier()  # the default group is as it was
    return ended


endings = postmortem(wait_in_seven_ways, 2)
assert [e.how for e in endings] == ["returned", "returned"], report(endings)
for what, asked, took, kind, words in endings[0].value:
    print(f"{what:26} {took:3.1f} s  {kind}: {words[:60]}")
    assert took >= asked * 0.95
texts = [words for *_, words in endings[0].value]
assert len(texts) == 7
assert "Timed out waiting 1000ms" in texts[0]
assert "pair closure" in texts[2]
record("s", default=default_pg_timeout.total_seconds())

# %%
# The first row is the timeout of the group that the call names; DDP's all-reduces have the timeout of DDP's ``process_group``.
# The third row: a gloo group that timed out is broken. It raises at once, even if the peer comes now, so catching the error and continuing does not work.
# ``work.wait`` raises, but the collective remains in progress; the group's own timeout still runs.
# The last row is not a process group: stores, and so ``init_process_group`` and ``new_group``, have their own timeout.
#
# The trap
# --------
# ``init_process_group(timeout=…)`` is the timeout of the default group only.
# The flight recorder keeps the timeout of every collective: here the default group has 20 s, and ``new_group`` is called without a timeout.


def timeouts_in_force():
    group = dist.new_group(backend="gloo")
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), group=group)
    return [entry["timeout_ms"] / 1000 for entry in flight_dump()["entries"]]


endings = postmortem(timeouts_in_force, 2, group_timeout_s=20)
default_s, subgroup_s = endings[0].value
print(f"default group, init_process_group(timeout=20 s): {default_s:g} s")
print(f"new_group() without a timeout:                   {subgroup_s:g} s")
assert (default_s, subgroup_s) == (20, 1800)

# %%
# The fix
# -------
# Give ``timeout=`` to ``init_process_group`` and to every ``new_group``.
# Choose it a little longer than the longest legitimate wait: the first step with compilation, a checkpoint on rank 0, the slowest evaluation.
#
# What this does not mean
# -----------------------
# The rank that reports "Timed out" is the one that waited. The one at fault reports nothing here.
# For its name use ``monitored_barrier`` (:doc:`plot_42_monitored_barrier`) or the flight recorder (:doc:`plot_44_compare_flight_records`).
#
# Change it: predict, then run
# ----------------------------
# Give the two groups in ``long`` 0.1 s in place of 60.
# Which limit ends ``work.wait(0.2 s)``?
#
# Expect: the group's, which is shorter, so an assertion fails.
#
# Say it aloud
# ------------
# "``init_process_group`` sets the timeout of the default group only; ``new_group`` and stores have their own.
# A gloo group that timed out is broken, so I end the job and do not retry.
# A short timeout finds a hang early, and a long one lets a slow checkpoint pass."
