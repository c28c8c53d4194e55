"""Waiting as long as a busy machine needs, and timeouts that come only where a test wants them."""

from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout  # private: seen in torch 2.4 to 2.13

from ddplab import launch as launch_within
from ddplab.labs.postmortem import postmortem as postmortem_within
from tools import PATIENCE_S

launch = partial(launch_within, timeout_s=PATIENCE_S)
postmortem = partial(postmortem_within, timeout_s=PATIENCE_S)


def patient_group(ranks=None):
    """A gloo group on every machine, which is made and works however late its ranks come."""
    return dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=PATIENCE_S))


def shorten(group, timeout_s):
    """Once all ranks are here, what this rank starts in the group has so many seconds; all ranks must call it.

    Given to ``new_group``, a short timeout is also that of making the group and of all that is to succeed in it. So a
    test shortens it in front of the collective that not all ranks will join.
    """
    dist.barrier()
    _set_pg_timeout(timedelta(seconds=timeout_s), group)
