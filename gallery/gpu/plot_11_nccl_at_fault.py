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
# With several GPUs, or two ranks that share one (``DDPLAB_SHARE_GPU=1``), the last rank stays away from an all-reduce.
# It does so in two settings: with the watchdog as it is, which ends the process, and with ``TORCH_NCCL_BLOCKING_WAIT``, which raises where the program waits.
# What is left is compared with what the chapter says, line by line: who ends, by which signal, whose dumps are there, and what ``ddplab`` reads from them.
#
# Predict before: which rank's process ends, the one that waits or the one that stays away? How many dumps are there?

import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddplab import launch, record
from ddplab.apparatus.nccl_faults import NOT_SHARED, log_of, shown
from ddplab.apparatus.postmortem import postmortem, report
from ddplab.diagnose import diagnose
from ddplab.flight import DumpError, compare, read_dumps
from ddplab.runtime.gpus import cards
from ddplab.runtime.needs import NotShownHere, needs_nccl_ranks
from ddplab.wording import ranks_text

TIMEOUT_S = 10  # of the process group, which ranks must also form in that time
BOUND_S = 40  # of a launch: a rank that still runs then has hung


def group(gpu=None):
    import os
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    own = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()  # ranks may share one
    torch.cuda.set_device(own if gpu is None else gpu)
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
    import torch
    import torch.distributed as dist

    ones = group()
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    if dist.get_rank() < dist.get_world_size() - 1:
        dist.all_reduce(ones)
        torch.cuda.synchronize()


# %%
# Both names of each variable, the older and the one of newer releases of torch.
# Between the dump and its end the watchdog waits four times ``TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC``, which is a minute by default; here it is four seconds.


def leaving(folder):
    dumps, records = f"{folder}/dump_", "2000"
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%p.log",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": records,
        "TORCH_FR_BUFFER_SIZE": records,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps,
        "TORCH_FR_DUMP_TEMP_FILE": dumps,
    }


def case(worker, ranks, more):
    """How each rank ended, the first answer to it, what NCCL wrote, and the dumps."""
    with tempfile.TemporaryDirectory() as folder:
        # A rank that stays away lives on until the others have ended, as one that is stuck would.
        leave, env = worker is not one_stays_away, {**leaving(folder), **more}
        endings = postmortem(
            worker, ranks, init=False, timeout_s=BOUND_S, leave=leave, env=env
        )
        logs = Path(folder).glob("nccl.*.log")
        written = "\n".join(path.read_text(errors="replace") for path in logs)
        try:
            dumps = read_dumps(folder)
        except DumpError:
            dumps = []
    answers = diagnose([*log_of(endings), *written.splitlines()])
    return endings, answers[0] if answers else None, written, dumps


# %%
# Run it
# ------

here = cards()
if not here:
    raise NotShownHere("needs a GPU")
try:
    ranks = needs_nccl_ranks()
except NotShownHere as lack:
    ranks, differs = 1, f"not run: {lack}"
names = launch(lambda: __import__("torch").cuda.get_device_name(), 1, init=False, quiet=True)
endings, _, written, _ = case(healthy, ranks, {})
version = re.search(r"NCCL version (\S+)", written)
network = re.search(r"Using network (.+)", written)
print(
    f"{ranks} rank(s) on {min(ranks, len(here))} {names[0]}: {endings[0].how}; "
    f"{len(written.splitlines())} lines by NCCL"
)
print(
    f"  version {version[1] if version else 'not said'}, network {network[1] if network else 'not said'}"
)

# %%
# The rank that stays away has the card for itself in both settings: its clock runs while the group forms.

faults = {
    "two on one GPU": (two_on_one_gpu, 2, NOT_SHARED),
    "a CPU tensor": (a_cpu_tensor, 1, {}),
    "no such GPU": (no_such_gpu, 1, {}),
}
apart = {
    "watchdog": (one_stays_away, ranks, {}),
    "blocking wait": (one_stays_away, ranks, {"TORCH_NCCL_BLOCKING_WAIT": "1"}),
}
left = {}
for together in (faults, apart if ranks > 1 else {}):
    with ThreadPoolExecutor(3) as pool:
        ran = pool.map(lambda fault: case(*fault), together.values())
        left |= dict(zip(together, ran, strict=True))
for name, (endings, answer, written, dumps) in left.items():
    warned = [line for line in written.splitlines() if " WARN " in line]
    found = ranks_text([dump.rank for dump in dumps]) if dumps else "no rank"
    print(f"{name}: {len(warned)} warnings by NCCL; dumps of {found}")
    print(f"  first answer {answer.id if answer else 'none'}")
    if answer:
        print(shown(answer))
    print(report(endings, timed=False))

# %%
# The rank that stays away: what the chapter says, and what is seen here.
# Nothing ends that rank in this lab; a launcher would.


def compared(endings, answer, written, dumps):
    """What the chapter says, what is seen, and whether they agree."""
    *waiting, absent = endings
    ran = re.search(r"Timeout\(ms\)=(\d+)\) ran for (\d+) milliseconds", waiting[0].printed)
    ends = sorted({e.error.partition("\n")[0] or e.how for e in waiting})
    with_dump, first = [dump.rank for dump in dumps], answer.id if answer else "none"
    place = compare(dumps) if dumps else None
    aborts = len(re.findall("Abort COMPLETE", written))
    return [
        ("the watchdog logs the collective", "logged" if ran else "not logged", bool(ran)),
        (
            "it does so at the timeout",
            f"after {int(ran[2]) / int(ran[1]):.1f} timeouts" if ran else "not logged",
            bool(ran) and int(ran[2]) >= int(ran[1]),
        ),
        (
            "all ranks write their flight recorders",
            ranks_text(with_dump) if dumps else "no rank",
            with_dump == [e.rank for e in endings],
        ),
        ("it ends the process that waits", ", ".join(ends), ends == ["was killed by SIGABRT"]),
        ("without aborting the communicator", f"{aborts} aborts in NCCL's log", aborts == 0),
        (
            "only a launcher ends the rank that stays away",
            absent.how,
            absent.how == "returned",
        ),
        (
            "the dumps name that rank",
            ranks_text(place.absent) if place and place.absent else "no rank",
            bool(place) and place.absent == (absent.rank,),
        ),
        ("diagnose: nccl-watchdog-timeout", first, first == "nccl-watchdog-timeout"),
    ]


agree = 0
if "watchdog" in left:
    lines = compared(*left["watchdog"])
    agree = sum(same for *_, same in lines)
    print(f"{'the chapter says':48}{'seen here':31}agrees")
    for said, seen, same in lines:
        print(f"{said:48}{seen[:30]:31}{'yes' if same else 'no'}")
    dumps = left["watchdog"][-1]
    differs = compare(dumps) if dumps else "nothing: no dump was left"
print("The dumps say:", differs)

# %%
# Takeaway
# --------

raised = [
    name for name, (endings, *_) in left.items() if {e.how for e in endings} == {"raised"}
]
others = [name for name in left if name not in raised]
print("All ranks get an exception:", ", ".join(raised) or "in no case")
print("Some rank does not:", ", ".join(others) or "in no case")
print(
    "Agrees with the chapter:",
    f"{agree} of {len(lines)} statements" if "watchdog" in left else "not compared",
)
record(cases=len(left), all_raised=len(raised), agree=agree)

# %%
# Change it: predict, then run
# ----------------------------
# Let the last rank raise an exception of its own before its second all-reduce, in place of staying away.
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
