"""How the DDP from scratch behaves where a training loop is not a clean one, beside torch's."""

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddplab import device, launch
from ddplab.scratch import DDP


@proves("scratch-two-forwards")
def test_two_forwards_then_two_backwards_are_both_averaged():
    """Rank r's gradients are r + 1 and 2(r + 1): torch's class averages the first only, the one from scratch both."""

    def worker(cls):
        model = cls(nn.Linear(1, 1, bias=False).to(device()))
        x = torch.full((1, 1), dist.get_rank() + 1.0, device=device())
        first, second = model(x).sum(), model(2 * x).sum()
        first.backward()
        second.backward()
        return model.module.weight.grad.item()

    assert launch(worker, 2, TorchDDP) == [1.5 + 2, 1.5 + 4]
    assert launch(worker, 2, DDP) == [1.5 + 3, 1.5 + 3]


class TwoHeads(nn.Module):
    """Two layers, of which a forward uses one."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        return self.used(x).sum()


@proves("scratch-unused-raises-at-once")
def test_an_unused_parameter_raises_in_the_first_backward():
    """The backward that lacks a gradient raises and names the parameter; torch's class lets one step go through."""

    def worker(cls):
        model = cls(TwoHeads().to(device()))
        try:
            for step in (1, 2):
                where = f"forward {step}"
                loss = model(torch.ones(1, 2, device=device()))
                where = f"backward {step}"
                loss.backward()
        except RuntimeError as error:
            return where, "unused.weight" in str(error)

    for ranks in (2, 3):
        assert launch(worker, ranks, DDP) == [("backward 1", True)] * ranks
        assert [where for where, _ in launch(worker, ranks, TorchDDP)] == ["forward 2"] * ranks
