"""
The ranks' tensors differ in size
=================================

At the end of an epoch one rank dies with ``SIGABRT``, another reports a broken connection, and no message names your line.
A typical cause: the per-sample losses are all-reduced, and the last batch is shorter on one rank.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-shapes-differ
"""

# %%
# Rank 0 has 20 samples in its last batch, rank 1 has 10.

import re

import torch
import torch.distributed as dist

from ddplab import launch, record
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report


def wrong(samples, timeout_s=60):
    gloo = gloo_group(timeout_s)  # on every machine: the texts below are gloo's
    losses = torch.full([samples[dist.get_rank()]], dist.get_rank() + 1.0)
    dist.all_reduce(losses, group=gloo)
    return sorted(set(losses.tolist()))


endings = postmortem(wrong, 2, [20, 10])
print(report(endings, said=2))
assert [e.how for e in endings] == ["raised", "died"]
assert re.search("Connection (closed|reset) by peer", endings[0].error)
assert "SIGABRT" in endings[1].error
assert "op.preamble.length <= op.nbytes" in endings[1].printed

# %%
# gloo sends bytes and does not check whether the tensors agree.
# A message that is larger than the buffer waiting for it kills the process that receives it: rank 1, which has the *smaller* tensor.
# No Python traceback appears, because the exception is thrown in gloo's own thread.
# Rank 0 sees the connection break; it can only report that its peer "hangs or has a bug".
#
# A message that is *smaller* than the buffer is accepted.
# So with different sizes the same fault looks different.
# After ``returned`` are the values found in the sum; only 3 is right.

by_size = {tuple(sizes): postmortem(wrong, 2, sizes, 1) for sizes in ([2, 1], [3, 2])}
for sizes, endings in by_size.items():
    print(f"sizes {sizes}")
    for e in endings:
        print(f"  rank {e.rank} {e.how:8} {e.value or e.error.rpartition('] ')[2]}")
assert [e.how for e in by_size[2, 1]] == ["raised", "raised"]
assert [e.how for e in by_size[3, 2]] == ["raised", "returned"]
timed_out = ["Timed out" in e.error for e in by_size[2, 1]]
assert any(timed_out)  # the first ends the other
assert "Timed out" in by_size[3, 2][0].error
assert by_size[3, 2][1].value == [1.0, 3.0]

# %%
# One pair of sizes is a timeout on both ranks, which looks like a missing rank.
# With the other, one rank waits, while its peer returns a sum that is wrong in one element and continues training.
#
# Ask for the names
# -----------------
# With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` the ranks compare what they are about to run, before they run it.

endings = postmortem(wrong, 2, [20, 10], env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
print(report(endings[:1]))
print(f"rank 1 │ … {endings[1].error.rpartition('.')[2]}")
assert [e.how for e in endings] == ["raised", "raised"]
for e, theirs in zip(endings, ("20vs 10", "10vs 20"), strict=True):
    assert "Detected mismatch between collectives on ranks" in e.error
    assert e.error.endswith(f"Tensor Tensor shapes: {theirs}")
record(ranks_that_name_it=sum("shapes" in e.error for e in endings))

# %%
# The run after the fix
# ---------------------
# Reduce a sum and a count; their size does not depend on the batch.


def right(samples):
    losses = torch.full([samples[dist.get_rank()]], dist.get_rank() + 1.0)
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
    dist.all_reduce(total, group=dist.new_group(backend="gloo"))
    return (total[0] / total[1]).item()


means = launch(right, 2, [20, 10])
print(f"mean loss on rank 0 and rank 1: {means[0]:.4f}, {means[1]:.4f}")
assert means[0] == means[1] == torch.tensor(40 / 30).item()

# %%
# The fix
# -------
# All-reduce values that have the same size on every rank: a sum and a count.
# If you need the single values, exchange the lengths first, then pad to the largest and use ``all_gather``.
#
# How to recognize it
# -------------------
# ``op.preamble.length <= op.nbytes`` in the output of one rank, with two numbers of bytes: what arrived and what fits, each for a piece of the tensor.
# Look for the rank that died with ``SIGABRT``; the others only lost their connection to it.
# If all ranks time out instead, run again with ``DETAIL``: it prints ``Tensor shapes:`` for different sizes, and ``failed to pass monitoredBarrier`` for a missing rank (:doc:`plot_04_missing_collective`).
