"""Groups on gloo for ranks that are meant to fail: made with patience, and a short timeout only where it is wanted."""

from __future__ import annotations

import datetime

import torch.distributed as dist

from ..runtime.torch_private import set_timeout

PATIENT_S = 1800.0  # gloo's own default


def gloo_group(timeout_s: float = PATIENT_S) -> dist.ProcessGroup:
    """Return a group of all ranks that is on gloo on every machine; all are connected in it, however late they came.

    Args:
        timeout_s: of what a rank starts in the group from now on. Given to ``new_group`` it would also bound the making
            of the group, and so decide on a busy machine what happens.
    """
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=PATIENT_S))
    assert isinstance(group, dist.ProcessGroup)  # all ranks are members
    shorten(group, timeout_s)
    return group


def shorten(group: dist.ProcessGroup, timeout_s: float) -> None:
    """Once all ranks are here, what this rank starts in the group has so many seconds; all ranks must call it.

    It belongs in front of the collective that not all ranks will join, behind all that is to succeed.
    """
    dist.barrier()
    set_timeout(group, timeout_s)
