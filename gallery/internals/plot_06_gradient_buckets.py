"""
Gradient buckets: a program to read
===================================

When does each bucket leave, and what is in it?
This is a code-reading lab: one short program, its output, and what both tell you.
It serves :ref:`internals-buckets`; :doc:`plot_05_bucket_xray` predicts buckets, this lab watches them leave.

Concept goal
------------
You can say what a bucket is, when it is launched, and why the second iteration looks different from the first.
What is transformed: the gradient of each parameter, from this rank's own into the mean over all ranks.
The shape that matters: the flat buffer of a bucket, with one dimension and all its gradients end to end.

Mental model
------------
Think of moving vans at the curb.
Gradients come out of the backward one by one, last layer first, and go into the van that is open.
A full van drives off at once, while the house is still being emptied.
Vans leave in order, even if a later one is full first.

:Level: core, 12 minutes
:Proves: perf-last-bucket-is-exposed
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record


def worker(bucket_cap_mb=2):
    torch.manual_seed(dist.get_rank())
    layers = [nn.Linear(512, 512, bias=False) for _ in range(5)]
    model = nn.Sequential(*layers).to(device())
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    name = {parameter: f"layer {i}" for i, parameter in enumerate(model.parameters())}
    log = []

    def ready(parameter):
        log.append(f"  ready     {name[parameter]}")

    def launched(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        flat, inside = bucket.buffer(), ", ".join(name[p] for p in bucket.parameters())
        mib = flat.nbytes / 2**20
        log.append(f"  launched  bucket {bucket.index()}, {mib:.0f} MiB: {inside}")
        flat.div_(dist.get_world_size())
        work = dist.all_reduce(flat, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(ready)
    ddp.register_comm_hook(None, launched)

    for iteration in range(2):
        log.append(f"iteration {iteration}, backward begins")
        ddp(torch.randn(16, 512, device=device())).square().mean().backward()
        log.append("  backward returns")
    return log


logs = launch(worker, 2)
assert logs[0] == logs[1]  # every rank launches the same buckets in the same order
print("\n".join(logs[0]))

# %%
# Block by block
# --------------
# * *Seeds.* Each rank builds different weights; the constructor replaces them with those of rank 0.
#   Each rank draws different inputs, so the gradients differ until they are reduced.
# * *Model.* A weight has 512 × 512 float32 numbers of 4 bytes each, which is 1 MiB, and so has its gradient.
#   ``bucket_cap_mb`` counts in MiB (2²⁰ bytes), so two layers fill a bucket.
# * *ready.* Autograd calls it once ``parameter.grad`` holds this rank's own gradient.
#   DDP has a hook on the same node of the graph: it copies the gradient into its bucket, and counts down.
# * *launched.* DDP calls the communication hook when a bucket's count is zero and all buckets before it have left.
#   The hook starts one all-reduce for the whole buffer and returns a future; DDP does not wait for it here, so the backward goes on.
#   A communication hook replaces DDP's own averaging, so this one divides before the sum.
# * *Loop.* Nothing in it mentions communication.
#   At its end ``backward()`` waits for all futures (on a GPU the stream waits, not the host), and ``.grad`` holds the mean.


def launches(log):
    """Per iteration: how many buckets, and how many of them before the last gradient."""
    half, counts = log.index("iteration 1, backward begins"), []
    for lines in log[:half], log[half:]:
        early = lines[: lines.index("  ready     layer 0")]
        counts.append([sum("launched" in line for line in part) for part in (lines, early)])
    return counts


print("              buckets   launched before the last gradient")
for iteration, (total, early) in enumerate(launches(logs[0])):
    print(f"iteration {iteration}{total:10}{early:10}")
assert launches(logs[0]) == [[1, 0], [3, 2]]
for cap_mib, buckets in (1, 5), (3, 2), (5, 1):  # only the last is left, whatever the cap
    for log in launch(worker, 2, cap_mib):
        assert launches(log)[1] == [buckets, buckets - 1]
record(unit="buckets", rebuilt=launches(logs[0])[1][0])

# %%
# What to notice
# --------------
# * In iteration 0 the only bucket lists the layers as registered, and leaves after the last gradient; in iteration 1 a bucket lists the layers as their gradients became ready.
# * The last bucket does not reach its cap; it leaves because nothing is left to wait for.
# * There is one all-reduce per bucket, not per parameter.
#
# What it does not mean
# ---------------------
# * *Launched* is not *done*: the line says when an all-reduce was queued; :doc:`plot_07_backward_timeline` shows when it ended.
# * ``ready`` sees the local gradient; the mean is there only when the backward returns.
# * Nothing waits for a peer here until the end, so this log cannot show how far a fast rank is ahead of a slow one.
#
# Change it: predict, then run
# ----------------------------
# Let ``worker`` begin with ``bucket_cap_mb=1``.
# How many buckets does iteration 1 launch, and how many of them before the last gradient is ready?
#
# Expect: one per layer, all but the last of them before the last gradient; iteration 0 is unchanged, and the assertion on the counts fails.
#
# Say it aloud
# ------------
# "DDP packs gradients into buckets, in the order in which the backward produces them, and starts one asynchronous all-reduce per bucket as soon as the bucket is complete and its turn has come.
# So communication overlaps with the rest of the backward, and small tensors share one latency.
# The first iteration is different: the order is not known yet, so one bucket holds everything, and the buckets are rebuilt before the second forward.
# How large a bucket may be is a choice: small ones leave early, large ones pay the latency less often."
#
# Intuition notes
# ---------------
# * A few large buckets save latency, many small ones start earlier: a bucket must be large enough to be worth a trip.
#   The arguments are in the `reference of DistributedDataParallel <https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html>`__.
# * Order is a contract: ranks match all-reduces by the order in which they are issued, not by name.
#   That is why buckets leave in order, and why rank 0's order is broadcast at the rebuild.
# * A hook sees the bucket before it leaves, so it may compress or cast it: see `communication hooks <https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html>`__.
#
# Further reading
# ---------------
# * `Distributed Data Parallel, design note <https://docs.pytorch.org/docs/stable/notes/ddp.html>`__; parts of it describe older releases.
# * Li et al., `PyTorch Distributed <https://arxiv.org/abs/2006.15704>`__, VLDB 2020, the section on gradient bucketing.
# * In the source: ``torch/csrc/distributed/c10d/reducer.cpp``, ``mark_variable_ready``, ``mark_bucket_ready`` and ``rebuild_buckets``.
