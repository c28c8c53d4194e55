"""What is said of diagnoses that no entry has: title, cause, fix, what to collect. The page says the same."""

_RECORD = (
    "Decorate `main` with `@record` (`torch.distributed.elastic.multiprocessing.errors`), run with "
    "`torchrun --log-dir logs --tee 3`, and give the folder to `ddplab diagnose`."
)

BUILT_IN = {
    "python-exception": (
        "A Python exception ended a rank: {name}",
        "`{type}` was raised{place}. No entry of the handbook knows the message, so it is probably your own.",
        "Read this rank's traceback from its last frame in your code upwards. "
        "The other ranks failed because this one left. "
        "If it fails with one process, too (`torchrun --nproc-per-node 1`), debug it there.",
        "",
    ),
    "stopped": (
        "The run was stopped from outside: {name}",
        "Someone, the scheduler or the launcher ended the program; this is no failure of its own.",
        "If nobody pressed Ctrl-C, look at the scheduler's record for a time limit, preemption or node failure.",
        "",
    ),
    "exit-killed": (
        "{who} was killed with SIGKILL, most likely for memory",
        "The system's out-of-memory killer, or the scheduler's memory limit, ends a process in this way. "
        "It gets no chance to print anything. A scheduler that ends a job does so, too.",
        "Look at the host's memory while it runs: workers of the data loader, pinned memory, a data set that each rank "
        "loads whole, a checkpoint that all ranks load at once. Ask for more memory, or load less.",
        "`dmesg -T | grep -i -E 'killed process|out of memory'` on that host; under Slurm "
        "`sacct -j JOB -o State,MaxRSS,ReqMem`; under Kubernetes `kubectl describe pod` (OOMKilled).",
    ),
    "exit-segfault": (
        "{who} crashed with a segmentation fault",
        "Native code touched memory that is not its own: an extension built for another torch, a broken driver or "
        "library, seldom torch itself.",
        "Run with `python -X faulthandler` to see the Python frame. Take out extensions one by one. Build them "
        "anew for this torch.",
        "The traceback of `PYTHONFAULTHANDLER=1`, or a core file read with gdb (`bt`).",
    ),
    "exit-abort": (
        "{who} aborted (SIGABRT)",
        "Native code ended the process on purpose: an uncaught C++ exception, the NCCL watchdog after a timeout, or a "
        "failed assertion.",
        "Read the last lines of this rank before it ended: the text of `terminate called` names the exception.",
        _RECORD,
    ),
    "exit-bus-error": (
        "{who} died of a bus error, most likely because /dev/shm is full",
        "Shared memory is mapped, and the space behind it has run out. In a container /dev/shm is often 64 MiB.",
        "Run the container with `--shm-size=16g` or `--ipc=host` (Kubernetes: an emptyDir with medium Memory at "
        "/dev/shm), or use fewer data loader workers.",
        "`df -h /dev/shm` inside the container while the job runs.",
    ),
    "exit-terminated": (
        "{who} was ended from outside (SIGTERM)",
        "The scheduler, the launcher of another node, or a person ended it. The failure, if any, is elsewhere.",
        "Look at the scheduler's record for a time limit or preemption, and at the logs of the other nodes.",
        "The logs of all nodes: one of them failed earlier.",
    ),
    "exit-code": (
        "{who} ended with exit code {code}, and its traceback is not in this log",
        "The process failed by itself, and what it printed went elsewhere.",
        "Get the rank's own output.",
        _RECORD,
    ),
    "exit-signal": (
        "{who} was ended by signal {number}",
        "A signal ended the process.",
        "Read the last lines of this rank before it ended.",
        _RECORD,
    ),
}

NOTHING_KNOWN = (
    "The output of every rank: `torchrun --log-dir logs --tee 3`, then give the folder.",
    "Where each rank is while it hangs: `py-spy dump --pid PID`.",
    "More words: `TORCH_CPP_LOG_LEVEL=INFO TORCH_DISTRIBUTED_DEBUG=INFO`, and `NCCL_DEBUG=INFO` on GPUs.",
    "For a hang: the flight recorder's dumps (`TORCH_FR_BUFFER_SIZE=2000`), then `ddplab diagnose --dump DIR`.",
)
