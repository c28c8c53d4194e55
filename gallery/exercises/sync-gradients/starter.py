"""Average the gradients over all ranks

Every rank holds a replica of `module` and has just run its backward on a batch of its own.
Write `sync_gradients(module)`, which every rank then calls: when it returns, each `.grad`
must hold the mean of that gradient over all ranks, equal on all of them.

- It must work on any number of ranks, with any module, in every step of a training run.
- A rank that did not use a parameter has None in its `.grad`; other ranks may have used it.
  Such a rank counts as zero, and gets the mean too.
- A parameter that no rank used keeps None.
- Parameters are only read: the optimizer moves them, afterwards.
"""

import torch
import torch.distributed as dist
from torch import nn


def sync_gradients(module: nn.Module) -> None:
    """Leave in every `.grad` of `module` its mean over all ranks."""
    raise NotImplementedError
