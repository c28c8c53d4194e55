"""DDP's own mixed precision, which is not autocast."""

import pytest
import torch
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, launch
from ddplab.runtime.needs import ON_CPU
from ddplab.runtime.torch_private import mixed_precision


@proves("ddp-mixed-precision")
def test_mixed_precision_fails_on_cpu_tensors():
    """The same model takes a step without the argument; with it, DDP asks for a GPU's stream or events and raises."""

    def worker(**options):
        ddp = DistributedDataParallel(nn.Linear(4, 1), **options)
        ddp(torch.ones(2, 4)).sum().backward()

    launch(worker, 2, env=ON_CPU)
    with pytest.raises(LaunchError, match=r"cpu backend doesn't support events|CUDA error"):
        launch(lambda: worker(mixed_precision=mixed_precision(torch.bfloat16)), 2, env=ON_CPU)
