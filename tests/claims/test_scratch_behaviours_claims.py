"""How the DDP from scratch behaves where a training loop is not a clean one, beside torch's."""

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddplab import device, launch
from ddplab.labs.parity import cases
from ddplab.labs.parity.cases import BEHAVIOURS, observe_all
from ddplab.labs.parity.observe import same
from ddplab.scratch import DDP
from tools import PATIENCE_S


@pytest.fixture
def patient(monkeypatch):
    """Seventy behaviours in one launch take longer on a busy machine than the lab allows them."""
    monkeypatch.setattr(cases, "launch", lambda *args, **options: launch(*args, **{**options, "timeout_s": PATIENCE_S}))


@proves("scratch-behaves-like-torch")
def test_supported_behaviours_agree_bit_for_bit(patient):
    """Cases of PyTorch's own tests, two ranks: equal bits in all that is left behind, or an error in the same call."""
    supported = [title for title, row in BEHAVIOURS.items() if not row.refused and not row.differs]
    assert len(supported) > 60
    for title, (of_torch, of_scratch) in observe_all(supported, TorchDDP, DDP).items():
        assert same(of_torch, of_scratch), title


@proves("scratch-refuses-clearly")
def test_what_it_cannot_do_raises_an_error_that_names_it(patient):
    """Join, sparse gradients, copies and the like: torch's class does them, this one raises on every rank."""
    refused = [title for title, row in BEHAVIOURS.items() if row.refused]
    for title, (of_torch, of_scratch) in observe_all(refused, TorchDDP, DDP).items():
        assert not any(seen.error for seen in of_torch), title
        assert all(BEHAVIOURS[title].refused in seen.error for seen in of_scratch), title


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
