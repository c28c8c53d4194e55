"""
Failures that need NCCL
=======================

NCCL has failures that gloo does not have: two ranks on one GPU, a watchdog that ends the process, an interface that is not there.
This lab causes eight failures under NCCL and reads what the ranks print with ``ddplab diagnose``.
It needs a GPU, and for five of them two ranks of NCCL: two GPUs, or one that both share (``DDPLAB_SHARE_GPU=1``).
Where they are not, it reports that and shows what it would run; then the texts in the error index are from NCCL's and torch's sources.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
"""

# %%
# Each worker is a program that fails, started as torchrun would start it.

from concurrent.futures import ThreadPoolExecutor

from ddplab import record
from ddplab.apparatus.nccl_faults import NOT_SHARED, log_of, shown
from ddplab.apparatus.postmortem import postmortem, report
from ddplab.diagnose import diagnose
from ddplab.runtime.needs import NotShownHere, needs_nccl_ranks

BOUND_S = 40  # of a launch: a rank that still runs then has hung


def group(gpu=None, timeout_s=20):
    import os
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    own = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()  # ranks may share one
    torch.cuda.set_device(own if gpu is None else gpu)
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


# %%
# In the next four a first all-reduce succeeds, so all ranks have met.
# A rank whose program has ended stays until the others have, as one that is busy elsewhere would.


def one_does_not_come():
    import torch
    import torch.distributed as dist

    ones = group(timeout_s=5)
    dist.all_reduce(ones)
    if dist.get_rank() == 0:
        dist.all_reduce(ones)
    torch.cuda.synchronize()


def shapes_differ():
    import torch
    import torch.distributed as dist

    dist.all_reduce(group(timeout_s=5))
    mine = torch.ones(1024 * (1 + dist.get_rank()), device="cuda")
    dist.all_reduce(mine)
    return f"{(mine == dist.get_world_size()).sum().item()} of {len(mine)} sums are right"


def one_is_killed():
    import os
    import signal

    import torch
    import torch.distributed as dist

    ones = group(timeout_s=5)
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(ones)
    torch.cuda.synchronize()


def uneven_batches():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    group(timeout_s=5)
    ddp = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    for _ in range(3 - dist.get_rank()):
        ddp(torch.ones(8, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    return "all batches done"


# %%
# The cases: ranks, whether each needs NCCL, and the entry of the error index that should be the first answer.
# NCCL compares no sizes and promises nothing for shapes that differ: the sums may just be wrong, and no entry of the index can say so.
# What the survivor of a killed rank sees depends on the way to its peer: over a socket NCCL hears that it was closed, else only the timeout ends the wait.

CASES = {
    one_gpu_for_two: (2, False, ["nccl-duplicate-gpu"]),
    a_cpu_tensor: (1, False, ["dist-no-backend-for-device"]),
    no_such_gpu: (1, False, ["cuda-invalid-device-ordinal"]),
    no_such_interface: (2, True, ["nccl-no-socket-interface"]),
    one_does_not_come: (2, True, ["nccl-watchdog-timeout"]),
    shapes_differ: (2, True, ["nccl-watchdog-timeout", "nccl-sizes-differ", None]),
    one_is_killed: (2, True, ["nccl-remote-process-exited", "nccl-watchdog-timeout"]),
    uneven_batches: (2, True, ["nccl-watchdog-timeout"]),
}
SETTINGS = {
    "NCCL_DEBUG": "WARN",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
}  # ends soon after its timeout


def gpus():
    import torch

    return torch.cuda.device_count()


def lacks(worker):
    """What this machine lacks for a case, as one line; empty if nothing."""
    if not here:
        return "needs a GPU"
    try:
        if CASES[worker][1]:
            needs_nccl_ranks()
    except NotShownHere as lack:
        return str(lack)
    return ""


def run(worker):
    more = NOT_SHARED if worker is one_gpu_for_two else {}
    ranks = CASES[worker][0]
    endings = postmortem(worker, ranks, init=False, timeout_s=BOUND_S, env=SETTINGS | more)
    return endings, diagnose(log_of(endings))


here = postmortem(gpus, 1, init=False)[0].value
lacking = {worker: lacks(worker) for worker in CASES}
possible = [worker for worker in CASES if not lacking[worker]]
with ThreadPoolExecutor(len(CASES)) as pool:  # side by side: most of them only wait
    done = dict(zip(possible, pool.map(run, possible), strict=True))
as_expected = 0
for worker, (_, _, expected) in CASES.items():
    name = worker.__name__.replace("_", " ")
    if worker not in done:
        print(f"{name:18} not run here: {lacking[worker]}")
        continue
    endings, answers = done[worker]
    first = answers[0].id if answers else None
    as_expected += first in expected
    print(f"{name}: first answer {first}, expected {' or '.join(map(str, expected))}")
    if answers:
        print(shown(answers[0]))
    print(report(endings, timed=False))
record(cases=len(CASES), ran=len(done), as_expected=as_expected)

# %%
# The fix
# -------
# In the order of the cases: ``torch.cuda.set_device(local_rank)`` before the group; tensors on that device; as many ranks as GPUs; an interface that ``ip address`` lists.
# For the rank that does not come, what its stack shows; the same shape on every rank; what killed the rank, which its own log does not say; the same number of batches.
#
# How to recognize it
# -------------------
# torch's exception names the kind, ``ncclInvalidUsage`` or ``ncclSystemError``, and behind ``Last error:`` NCCL's last warning.
# With ``NCCL_DEBUG=WARN`` every warning is in the log, also where no exception is raised.
