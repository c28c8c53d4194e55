"""
Killed by SIGSEGV, without a message
====================================

The job ends with ``Signal 11 (SIGSEGV) received by PID …``, and no rank has a traceback.
Two programs do this in torch 2.13: a communication hook without a ``return``, and ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` with DDP on gloo.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-hook-returns-nothing
"""

# %%
# The broken program
# ------------------
# The hook does its work in place, so it seems to need no result.
# ``faulthandler`` prints the Python stack on a fatal signal.

import faulthandler
import re

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.apparatus.postmortem import postmortem, report


def nothing(state, bucket):
    dist.all_reduce(bucket.buffer(), group=state)


def tensor(state, bucket):
    dist.all_reduce(bucket.buffer(), group=state)
    return bucket.buffer()


def right(state, bucket, result=lambda done: done.value()[0]):
    mean = bucket.buffer().div_(state.size())
    future = dist.all_reduce(mean, group=state, async_op=True).get_future()
    return future.then(result)


def future_of_nothing(state, bucket):
    return right(state, bucket, result=lambda done: None)


def worker(hook):
    faulthandler.enable()
    group = dist.new_group(backend="gloo")  # on the CPU everywhere
    model = DDP(nn.Linear(4, 1), process_group=group)
    if hook:
        model.register_comm_hook(group, hook)
    model(torch.full((2, 4), dist.get_rank() + 1.0)).sum().backward()
    return model.module.weight.grad.tolist()


def show_crash(hook, level):
    endings = postmortem(worker, 2, hook, env={"TORCH_DISTRIBUTED_DEBUG": level})
    print(report(endings))
    stacks = []
    for e in endings:
        assert e.error == "was killed by SIGSEGV"
        assert "Traceback" not in e.printed
        assert "Fatal Python error: Segmentation fault" in e.printed
        stack = e.printed.partition("(most recent call first):")[2].partition("in worker")[0]
        functions = re.findall(r'(\w+\.py)", line \d+ in (\w+)', stack)
        stacks.append(functions)
        print(
            f"rank {e.rank} │ stack: " + ", ".join(f"{f} in {file}" for file, f in functions)
        )
    return stacks


# %%
# What every rank reports
# -----------------------

for functions in show_crash(nothing, "OFF"):
    assert functions[-1] == ("_tensor.py", "backward")

# %%
# The stack is all there is, and names ``backward``: the hook has returned, and C++ uses the missing result.
# Other wrong return values raise:

for hook, text in (
    (tensor, "must return a torch.futures.Future object, but got torch.Tensor"),
    (future_of_nothing, "Expected a proper Tensor but got None"),
):
    for e in postmortem(worker, 2, hook):
        print(f"rank {e.rank} │ {hook.__name__} {e.how}: … {text} …")
        assert e.how == "raised"
        assert text in e.error

# %%
# The fix
# -------
# Return a future whose value is the bucket's tensor: the function ``right``.

endings = postmortem(worker, 2, right, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"})
print(report(endings))
assert [e.value for e in endings] == [[[3.0] * 4]] * 2

# %%
# ``TORCH_DISTRIBUTED_DEBUG=DETAIL``
# ----------------------------------
# The same crash, now in the constructor, and without any hook (gloo, torch 2.13).

for functions in show_crash(None, "DETAIL"):
    assert functions[0] == ("distributed.py", "_ddp_init_helper")

# %%
# With gloo use ``INFO``, or ``DETAIL`` for a program that has no DDP in it.
#
# How to recognize it
# -------------------
# All ranks die with ``SIGSEGV`` at once and none has a Python traceback.
# Run again with ``PYTHONFAULTHANDLER=1``: a stack that ends in ``backward`` with a hook registered is the first case, ``_ddp_init_helper`` the second.
