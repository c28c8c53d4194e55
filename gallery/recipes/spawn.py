"""Start a program on several ranks of this machine without torchrun.

    python spawn.py 2 train.py --steps 20

The program is the one that torchrun starts, unchanged. torchrun also joins several machines,
can restart the ranks, and reports which failed first and why.
"""

import os
import runpy
import socket
import sys

from torch import multiprocessing as mp


def run(local_rank: int, nproc: int, port: int, command: list[str]) -> None:
    """Set the variables that init_process_group reads, then run the program."""
    os.environ.update(
        RANK=str(local_rank),  # one machine, so the rank is the local rank
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(nproc),
        LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else each process uses all cores
    sys.argv = command
    sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
    runpy.run_path(command[0], run_name="__main__")


def main() -> None:
    """Choose a port and start the processes."""
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.exit("usage: python spawn.py NPROC PROGRAM [ARGUMENTS…]")
    nproc = int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]  # free now; rank 0 takes it soon
    try:
        mp.spawn(run, (nproc, port, sys.argv[2:]), nprocs=nproc)
    except mp.ProcessExitedException as error:
        sys.exit(error.exit_code)  # such as 75 of train.py: saved, run the same command again


if __name__ == "__main__":  # each new process imports this file
    main()
