"""The variables that tell a rank who it is and where ranks meet, and the port they meet at. Nothing imports torch."""

from __future__ import annotations

import os
import socket


def torchrun_variables(rank: int, nproc: int, port: int) -> dict[str, str]:
    """Return what ``torchrun --standalone`` would set for one of ``nproc`` ranks that meet at ``port`` of this machine.

    ``OMP_NUM_THREADS`` is among them where torchrun would set it: with several ranks, unless it is set already.
    """
    return {
        **({"OMP_NUM_THREADS": "1"} if nproc > 1 and "OMP_NUM_THREADS" not in os.environ else {}),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def adopt_srun_variables() -> bool:
    """Set what torchrun sets, if srun started this process without it; return whether this process is a rank.

    On several nodes the batch script must export ``MASTER_ADDR``. ``recipes/train.py`` holds a copy of this, since
    readers take that file alone.
    """
    env = os.environ
    if "RANK" not in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        env["RANK"], env["LOCAL_RANK"] = env["SLURM_PROCID"], env["SLURM_LOCALID"]
        env["WORLD_SIZE"] = env["SLURM_STEP_NUM_TASKS"]
        env["LOCAL_WORLD_SIZE"] = env.get("SLURM_STEP_TASKS_PER_NODE", env["WORLD_SIZE"]).split("(")[0].split(",")[0]
        env.setdefault("MASTER_PORT", str(20000 + int(env.get("SLURM_JOB_ID", "0")) % 10000))
        if env.get("SLURM_STEP_NUM_NODES") == "1":
            env.setdefault("MASTER_ADDR", "127.0.0.1")
    return "RANK" in env


def reserve_port(address: str = "127.0.0.1") -> socket.socket:
    """Return a socket with a port of this machine; as long as it is open, nobody else is given that port.

    It does not listen, so a program that gets the port number can, with ``SO_REUSEADDR`` as servers have it.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((address, 0))
    return reservation
