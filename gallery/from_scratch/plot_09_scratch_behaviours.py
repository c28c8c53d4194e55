"""
Does it behave like torch's?
============================

Equal gradients in a clean loop are half of the claim.
The other half is what a wrapper does when a loop is not clean: an unused parameter, a second backward, an exception, a copy.
PyTorch's own tests show which cases matter; this lab runs them with torch's class and with ``ddplab.scratch.DDP``, and prints what each does.
It serves :ref:`from-scratch-behaviours`.

:Level: evidence, 12 minutes
:Proves: scratch-behaves-like-torch scratch-refuses-clearly
"""

# %%
# One case in full
# ----------------
# Each case is a short function that takes ``wrap``, which puts a model into the class under test.
# It returns what that class left behind, here the gradients.
# They are all in ``ddplab/apparatus/parity/rows``, each with the names of the tests in PyTorch that it follows.

import inspect
import textwrap
from collections import Counter

from torch.nn.parallel import DistributedDataParallel

from ddplab import record
from ddplab.apparatus.parity.behaviors import BEHAVIOURS, observe_all
from ddplab.apparatus.parity.observe import cell, same
from ddplab.scratch import DDP

print(inspect.getsource(BEHAVIOURS["Two forwards, two backwards"].run))

# %%
# All of them
# -----------
# Two ranks run every case with both classes, on data that differs between the ranks.
# An exclamation mark precedes the call that raised; where the ranks raised in different calls, both are named.
# *Same* is strict: equal bits in all that the function returned, on each rank, or an error in the same call.

seen = observe_all(BEHAVIOURS, DistributedDataParallel, DDP)


def verdict(row, of_torch, of_scratch):
    if row.refused:
        return "refused"
    if row.differs:
        assert (cell(of_torch), cell(of_scratch)) == row.differs
        return "differs"
    assert same(of_torch, of_scratch)
    return "same"


verdicts, topic = {}, ""
for title, (of_torch, of_scratch) in seen.items():
    row = BEHAVIOURS[title]
    verdicts[title] = verdict(row, of_torch, of_scratch)
    if row.topic != topic:
        topic = row.topic
        print(f"\n{topic.upper():38} {'torch':23} {'from scratch':13} verdict")
    print(f"{title:38} {cell(of_torch):23} {cell(of_scratch):13} {verdicts[title]}")

counts = Counter(verdicts.values())
assert counts["same"] > 60
print(f"\n{len(seen)} cases: {dict(counts)}")
record(cases=len(seen), **counts)
record(tests=len({test for row in BEHAVIOURS.values() for test in row.tests}))

# %%
# What it reports when it refuses
# -------------------------------
# Torch's class can do these cases, and this one cannot.
# None of them hangs, and none continues with a wrong gradient.

for title in (title for title in seen if verdicts[title] == "refused"):
    of_torch, of_scratch = seen[title]
    assert not any(s.error for s in of_torch)
    assert all(BEHAVIOURS[title].refused in s.error for s in of_scratch)
    print(title)
    print(textwrap.indent(textwrap.fill(of_scratch[0].error, 80), "    "))

# %%
# What to notice
# --------------
# - Of :measured:`scratch-behaviours.cases` cases, :measured:`scratch-behaviours.same` come out the same, :measured:`scratch-behaviours.refused` are refused, and in :measured:`scratch-behaviours.differs` the two classes differ on purpose.
# - An unused parameter raises a step earlier from scratch, in the backward that lacks it: its callback for the end of a backward is registered when the first gradient arrives, so it runs whether or not the last one comes.
# - Two forwards and then two backwards, or two backwards of one graph: torch's class averages the first backward and leaves the second one local, without an error.
#   The one from scratch averages both, because only a forward under ``no_sync`` turns averaging off.
# - Some traps are the same in both: ``no_sync`` around the forward only, a parameter unfrozen after wrapping, the inner module called by itself.
#   There the ranks differ, and no error reports it.
#
# What this does not mean
# -----------------------
# That the one from scratch is finished: GPUs, streams and mixed precision are not in these cases.
