"""Several NCCL ranks on one GPU, where ``DDPLAB_SHARE_GPU=1`` asks for it: for what they send, never for how fast.

NCCL refuses two ranks of a group whose host and GPU are the same ("Duplicate GPU detected"). Up to 2.29 ``NCCL_HOSTID``
names the host (``getHostHash`` in src/misc/utils.cc, NCCL 2.28.9): with another one for each rank NCCL takes them for
nodes, which talk through sockets. From 2.30 on ``NCCL_MULTI_RANK_GPU_ENABLE=1`` allows about two, as an experiment.
Either way the ranks take turns on the GPU, so no time of theirs is one of DDP. Neither has run yet.
"""

from __future__ import annotations

import os

ASKED = "DDPLAB_SHARE_GPU"
_EACH_A_HOST = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
_ALLOWED_FROM, _RANKS_PER_GPU = (2, 30), 2


def is_asked() -> bool:
    """Whether ranks are to share a GPU where there are more of them than GPUs.

    Raises:
        ValueError: the variable has another value than 0 or 1.
    """
    value = os.environ.get(ASKED, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{ASKED} is {value!r}; set it to 1, or to 0")
    return value == "1"


def share_gpu(rank: int, ranks: int, gpus: int, nccl: tuple[int, ...] | None) -> str | None:
    """Set what lets NCCL take this rank, if that is asked and needed; what is set already stays.

    Args:
        rank: of this process.
        ranks: how many there are on this machine.
        gpus: how many they have.
        nccl: the version that is loaded; None: there is none.

    Returns:
        The variable that does it; None if NCCL is to be taken as it is.
    """
    if not is_asked() or nccl is None or not 0 < gpus < ranks:
        return None
    if nccl < _ALLOWED_FROM:
        settings = {"NCCL_HOSTID": f"ddplab-{rank}", **_EACH_A_HOST}
    elif ranks <= _RANKS_PER_GPU * gpus:
        settings = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    else:
        return None
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    return next(iter(settings))
