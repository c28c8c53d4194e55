"""
What NCCL leaves behind
=======================

When a job under NCCL fails, which ranks see an error, and what is in the logs and dumps that are left?
It serves :ref:`gpu-watchdog`.

Under NCCL a collective runs on the GPU, so a peer that is missing raises nothing on the host; a watchdog thread finds the timeout.
The rank that it ends is one that waited: the cause is what another rank did not issue.

:Level: deep, 20 minutes
"""

# %%
# What it will show
# -----------------
# ``NCCL_DEBUG`` writes a file per process here, and the lab reads from it the version, the interface and the warnings.
# One GPU: two ranks on it, a CPU tensor, and a GPU that is not there; for each, how the ranks end and the first answer of ``ddplab diagnose``.
# On several GPUs one rank stays away from an all-reduce, in two settings: with the watchdog as it is, which ends the process, and with ``TORCH_NCCL_BLOCKING_WAIT``, which raises where the program waits.
# The watchdog leaves a flight dump per rank, and their comparison names the rank that did not come.

import re
import tempfile
from pathlib import Path

from ddplab import launch, record
from ddplab.diagnose import diagnose
from ddplab.flight import DumpError, compare, read_dumps
from ddplab.labs.gpu import needs_gpus
from ddplab.labs.postmortem import postmortem, report

TIMEOUT_S = 5
LATE_S = 25


def group(gpu=None):
    import os
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) if gpu is None else gpu)
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S))
    return torch.ones(4, device="cuda")


def healthy():
    import torch
    import torch.distributed as dist

    ones = group()
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def two_on_one_gpu():
    import torch
    import torch.distributed as dist

    dist.all_reduce(group(gpu=0))
    torch.cuda.synchronize()


def a_cpu_tensor():
    import torch.distributed as dist

    dist.all_reduce(group().cpu())


def no_such_gpu():
    group(gpu=99)


def one_stays_away():
    import time

    import torch
    import torch.distributed as dist

    ones = group()
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        dist.all_reduce(ones)
        torch.cuda.synchronize()
    time.sleep(LATE_S)  # the watchdog ends the process before


# %%
# Both names of each variable, the older and the one of newer releases of torch.


def leaving(folder):
    dumps, records = f"{folder}/dump_", "2000"
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%p.log",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": records,
        "TORCH_FR_BUFFER_SIZE": records,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps,
        "TORCH_FR_DUMP_TEMP_FILE": dumps,
    }


def case(worker, ranks, folder, **more):
    """How it ended, the first answer to it, and what NCCL wrote."""
    env = {**leaving(folder), **more}
    endings = postmortem(worker, ranks, init=False, timeout_s=60, leave=True, env=env)
    log = [
        f"[rank{e.rank}]: {line}"
        for e in endings
        for line in f"{e.printed}\n{e.error}".splitlines()
    ]
    written = "\n".join(
        path.read_text(errors="replace") for path in Path(folder).glob("nccl.*.log")
    )
    answers = [answer.id for answer in diagnose([*log, *written.splitlines()])]
    return endings, (answers or ["none"])[0], written


# %%
# Run it
# ------

gpus = needs_gpus()
cards = launch(lambda: __import__("torch").cuda.get_device_name(), 1, init=False, quiet=True)
with tempfile.TemporaryDirectory() as folder:
    endings, _, written = case(healthy, gpus, folder)
    version = re.search(r"NCCL version (\S+)", written)
    network = re.search(r"Using network (.+)", written)
    print(
        f"{gpus} rank(s) on {cards[0]}: {endings[0].how}; {len(written.splitlines())} lines by NCCL"
    )
    print(
        f"  version {version[1] if version else 'not said'}, network {network[1] if network else 'not said'}"
    )

# %%

faults = {"two on one GPU": (two_on_one_gpu, 2), "a CPU tensor": (a_cpu_tensor, 1)}
faults["no such GPU"] = (no_such_gpu, 1)
heard = {}
for name, (worker, ranks) in faults.items():
    with tempfile.TemporaryDirectory() as folder:
        # Refused even where NCCL would let two ranks share a GPU, as from 2.30 on it can.
        endings, answer, written = case(
            worker, ranks, folder, NCCL_MULTI_RANK_GPU_ENABLE="0", DDPLAB_SHARE_GPU="0"
        )
    heard[name] = {ending.how for ending in endings}
    warned = [line for line in written.splitlines() if " WARN " in line]
    print(f"{name}: first answer {answer}; {len(warned)} warnings by NCCL\n{report(endings)}")

# %%

differs = "not run: needs two GPUs"
if gpus > 1:
    settings = {"watchdog": {}, "blocking wait": {"TORCH_NCCL_BLOCKING_WAIT": "1"}}
    for name, more in settings.items():
        with tempfile.TemporaryDirectory() as folder:
            endings, answer, _ = case(one_stays_away, gpus, folder, **more)
            heard[name] = {ending.how for ending in endings}
            print(f"{name}: first answer {answer}\n{report(endings, said=2)}")
            if not any(Path(folder).glob("dump_*")):
                print("  no dump was left")
                continue
            try:
                differs = compare(read_dumps(folder))
            except DumpError as error:
                differs = error
            print(f"  the dumps: {differs}")

# %%
# Takeaway
# --------

raised = [name for name, how in heard.items() if how == {"raised"}]
others = [name for name, how in heard.items() if how != {"raised"}]
print("All ranks get an exception:", ", ".join(raised) or "in no case")
print("Some rank does not:", ", ".join(others) or "in no case")
print("What the dumps say of the rank that stays away:", differs)
record(cases=len(heard), all_raised=len(raised))

# %%
# Change it: predict, then run
# ----------------------------
# Let the last rank raise an exception of its own before its second all-reduce, in place of sleeping.
# Which message does the log of rank 0 end with?
#
# What this does not mean
# -----------------------
# That the rank whose process ends first is at fault: it is the one that waited.
#
# Say it aloud
# ------------
# "When a rank stays away, NCCL's kernel waits until the watchdog ends the process, and each rank leaves a flight dump.
# Comparing the dumps names the rank that did not come.
# Blocking wait raises in the program instead, which gives a traceback and makes the host wait at each collective."
