"""Choose buckets: which cap for which link?

Write two functions.

`choose_cap_mib(gradients, latency_s, bytes_per_s)` returns a bucket cap in MiB for a model and
a link. `gradients` is a profile: one (ready, bytes) per gradient, in the order in which they
become ready, in seconds from the start of the backward. A bucket of n bytes takes
`latency_s + n / bytes_per_s`; one link serves the buckets in order.

- The backward together with its communication, as the book's cost model predicts it, takes at
  most 5 % longer than with the best cap that there is.
- Search or calculate, as you like; a check has 5 s of computing for up to 40 such questions.

`wrap(model, gradients, latency_s, bytes_per_s)` returns `model` in DDP with buckets of that
cap. Every rank calls it, with the profile that it has measured itself: these may differ, but
all ranks must make the same buckets.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab.buckets import MIB
from ddplab.costmodel import Gradient, Link, bucketed, simulate_step


def choose_cap_mib(gradients: list[Gradient], latency_s: float, bytes_per_s: float) -> float:
    """Return a bucket cap in MiB."""
    raise NotImplementedError


def wrap(
    model: nn.Module,
    gradients: list[Gradient],
    latency_s: float,
    bytes_per_s: float,
) -> DistributedDataParallel:
    """Return the model in DDP, with the buckets that suit the link, the same on all ranks."""
    raise NotImplementedError
