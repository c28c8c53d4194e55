"""Choose buckets: a solution"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab.buckets import MIB
from ddplab.costmodel import Gradient, Link, bucketed, simulate_step


def choose_cap_mib(gradients: list[Gradient], latency_s: float, bytes_per_s: float) -> float:
    """Return a bucket cap in MiB."""
    link = Link(latency_s, bytes_per_s, algorithm="link")

    def seconds(cap_bytes: int) -> float:
        return simulate_step(0.0, gradients, bucketed(gradients, cap_bytes), link).step_s

    # From one bucket down to one gradient per bucket, in steps of 4 %. A finer search finds
    # little: near its lowest point the curve is flat.
    caps = [sum(nbytes for _, nbytes in gradients)]
    while caps[-1] > min(nbytes for _, nbytes in gradients):
        caps.append(int(caps[-1] * 0.96))
    return min(caps, key=seconds) / MIB


def wrap(
    model: nn.Module,
    gradients: list[Gradient],
    latency_s: float,
    bytes_per_s: float,
) -> DistributedDataParallel:
    """Return the model in DDP, with the buckets that suit the link, the same on all ranks."""
    where = next(model.parameters()).device
    cap_mib = torch.tensor(
        choose_cap_mib(gradients, latency_s, bytes_per_s),
        dtype=torch.float64,
        device=where,
    )
    dist.broadcast(cap_mib, src=0)  # each rank has a profile of its own: one decides
    return DistributedDataParallel(model, bucket_cap_mb=cap_mib.item())
