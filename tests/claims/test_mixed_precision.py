"""Two kinds of mixed precision: autocast, and DDP's own."""

import pytest
import torch
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch
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


@proves("autocast-keeps-copies-of-weights")
def test_autocast_keeps_copies_of_weights_for_the_backward():
    """What autograd saves of two layers: without autocast the weight itself, with it a copy in half the bytes.

    The first layer keeps no weight if its input needs no gradient.
    """

    def saved_weights(autocast, through=True):
        net, found = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)).to(device()), []
        weights = {p.untyped_storage().data_ptr() for p in net.parameters()}

        def note(tensor):
            if tensor.shape[0] != 8:  # the others are activations, of a batch of 8
                found.append((tensor.dtype, tensor.untyped_storage().data_ptr() in weights))
            return tensor

        x = torch.ones(8, 64, device=device(), requires_grad=through)
        noted = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with noted, torch.autocast(device().type, torch.bfloat16, enabled=autocast):
            net(x)
        return found

    cases = (False,), (True,), (True, False)
    for plain, autocast, second in launch(lambda: [saved_weights(*case) for case in cases], 2):
        assert plain == [(torch.float32, True)] * 2
        assert autocast == [(torch.bfloat16, False)] * 2
        assert second == [(torch.bfloat16, False)]
