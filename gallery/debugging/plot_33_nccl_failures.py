"""
Failures that need NCCL
=======================

NCCL has failures that gloo does not have: two ranks on one GPU, a watchdog that ends the process, an interface that is not there.
This lab causes five of them, on a machine that has the GPUs for them, and reads what the ranks print with ``ddplab diagnose``.
On a machine without them, it reports that and shows what it would run; then the texts in the error index are from NCCL's and torch's sources.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
"""

# %%
# Each worker is a program that fails, started as torchrun would start it.

from ddplab import record
from ddplab.diagnose import diagnose
from ddplab.labs.postmortem import postmortem, report


def group(gpu=None, timeout_s=20):
    import os
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank if gpu is None else gpu)
    dist.init_process_group("nccl", timeout=timedelta(seconds=timeout_s))
    return torch.ones(4, device="cuda")


def one_gpu_for_two():
    import torch.distributed as dist

    dist.all_reduce(group(gpu=0))


def a_cpu_tensor():
    import torch.distributed as dist

    dist.all_reduce(group().cpu())


def no_such_gpu():
    group(gpu=99)


def no_such_interface():
    import os

    import torch.distributed as dist

    os.environ["NCCL_SOCKET_IFNAME"] = "=nowhere0"
    dist.all_reduce(group())


def one_does_not_come():
    import time

    import torch
    import torch.distributed as dist

    ones = group(timeout_s=5)
    dist.all_reduce(ones)
    if dist.get_rank() == 0:
        dist.all_reduce(ones)
        torch.cuda.synchronize()
    time.sleep(20)  # the watchdog ends the process before


# %%
# The cases: ranks, GPUs that it takes, and the entry of the error index that should be the first answer.

CASES = {
    one_gpu_for_two: (2, 1, "nccl-duplicate-gpu"),
    a_cpu_tensor: (1, 1, "dist-no-backend-for-device"),
    no_such_gpu: (1, 1, "cuda-invalid-device-ordinal"),
    no_such_interface: (2, 2, "nccl-no-socket-interface"),
    one_does_not_come: (2, 2, "nccl-watchdog-timeout"),
}


def gpus():
    import torch
    import torch.distributed as dist

    return torch.cuda.device_count() if dist.is_nccl_available() else 0


here = postmortem(gpus, 1, init=False)[0].value
ran = 0
for worker, (ranks, needs, entry) in CASES.items():
    name = worker.__name__.replace("_", " ")
    if here < needs:
        print(
            f"{name:18} not run here: {ranks} ranks on {needs} GPU(s), this machine has {here}"
        )
        continue
    ran += 1
    # Refused even where NCCL would let two ranks share a GPU, as from 2.30 on it can.
    env = {
        "NCCL_DEBUG": "WARN",
        "NCCL_MULTI_RANK_GPU_ENABLE": "0",
        "DDPLAB_SHARE_GPU": "0",
    }
    endings = postmortem(worker, ranks, init=False, timeout_s=60, env=env)
    log = [
        f"[rank{e.rank}]: {x}" for e in endings for x in f"{e.printed}\n{e.error}".splitlines()
    ]
    answers = [answer.id for answer in diagnose(log)]
    print(f"{name}: first answer {answers[:1]}, expected {entry}\n{report(endings, said=3)}")
record(cases=len(CASES), ran=ran)

# %%
# The fix
# -------
# In the order of the cases: ``torch.cuda.set_device(local_rank)`` before the group; tensors on that device; as many ranks as GPUs; an interface that ``ip address`` lists; and for the last, what the stack of the absent rank shows.
#
# How to recognize it
# -------------------
# torch's exception names the kind, ``ncclInvalidUsage`` or ``ncclSystemError``, and behind ``Last error:`` NCCL's last warning.
# With ``NCCL_DEBUG=WARN`` every warning is in the log, also where no exception is raised.
