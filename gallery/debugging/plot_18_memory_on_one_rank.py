"""
Out of memory on one rank
=========================

One rank meets the longest sample of the epoch and runs out of memory; the others report a closed connection.
So someone catches the error and continues with the next batch, as it worked on one GPU.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-memory-on-one-rank
"""

# %%
# The broken program
# ------------------
# The model compares all tokens with all; in step 2 rank 1's sample is so long that no machine has the memory.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.apparatus.gloo import gloo_group, shorten
from ddplab.apparatus.postmortem import postmortem, report


class Model(nn.Linear):
    def forward(self, tokens):
        return super().forward((tokens @ tokens.T).mean(dim=1, keepdim=True))


def out_of_memory(error):  # the messages of a CPU and of a GPU
    return "can't allocate memory" in str(error) or "out of memory" in str(error)


def worker(on_error):
    group = gloo_group()  # on every machine: the peers' texts are gloo's own
    torch.manual_seed(0)
    model = DDP(Model(1, 1).to(device()), process_group=group)
    shorten(group, 2)  # all are ready to train
    sums = {}
    for step in range(1, 5):
        long = step == 2 and dist.get_rank() == 1
        tokens = torch.full((1, 1), float(step)).to(device())
        tokens = tokens.expand(2**24 if long else 8, 1)
        failed = torch.zeros(1)
        try:
            loss = model(tokens).mean()
        except RuntimeError as error:
            if on_error == "fail" or not out_of_memory(error):
                raise
            failed += 1
            print(f"step {step} skipped")
        if on_error == "all skip":
            dist.all_reduce(failed, group=group)  # did any rank fail?
        if not failed:
            print(f"step {step}, backward")
            model.zero_grad()
            loss.backward()
            gradient = model.module.weight.grad.item()
            sums[step] = round(gradient * dist.get_world_size())
    return sums


# %%
# What every rank reports
# -----------------------

endings = postmortem(worker, 3, "fail")
print(report(endings, said=1))
assert out_of_memory(endings[1].error)
assert all(endings[rank].lost_peer for rank in (0, 2))

# %%
# Caught on one rank
# ------------------

endings = postmortem(worker, 3, "skip")
for e in endings:
    print(f"rank {e.rank} │ {'; '.join(e.printed.splitlines())}")
    print(f"       │ {e.how} {e.error.split('] ')[-1].split(' op')[0]}")
assert [e.how for e in endings] == ["raised", "returned", "raised"]
assert any("Timed out" in e.error for e in endings)  # the first to time out ends both
# Each rank adds the square of its step:
assert endings[1].value == {1: 1 + 1 + 1, 3: 4 + 9 + 4, 4: 9 + 16 + 9}

# %%
# No error in step 2, and none in step 3: rank 1's gradient of step 3 was averaged with the others' of step 2.
# Every step after it is shifted like that, until rank 1 has no more batches and the others wait for one more all-reduce: the error comes at the end of the epoch.
#
# The fix
# -------
# Ask all ranks before the backward, and let all of them leave out the batch.

endings = postmortem(worker, 3, "all skip")
for e in endings:
    print(f"rank {e.rank} │ {'; '.join(e.printed.splitlines())}")
    assert e.how == "returned"
    assert e.value == {1: 3 * 1, 3: 3 * 9, 4: 3 * 16}

# %%
# This works for a forward only: in the backward some buckets may already be on their way, so let the job end there and resume from a checkpoint.
# Better: limit the length of a batch in tokens, on all ranks.
#
# How to recognize it
# -------------------
# Loud: ``can't allocate memory`` or ``out of memory`` in one rank's log, which names the bytes it asked for, and closed connections in all others.
# Silent: a rank that has taken fewer steps than its peers; log the number of backwards per rank at the end of an epoch.
