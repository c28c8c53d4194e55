"""What every rank needs, imported once in the fork server and inherited by every rank.

The first DDP constructor imports ``torch._dynamo``; without it here, each launch would pay for it.
"""

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel  # noqa: F401  (its import is what is wanted)

from . import torch_private  # noqa: F401  (at the end of a rank it would be compiled)
from .rank import die_with_parent

die_with_parent()  # the fork server must not outlive the script, whatever kills that
