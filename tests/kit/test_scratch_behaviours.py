"""Each behaviour that PyTorch's tests check, with torch's DDP and with the one from scratch."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddplab.parity.cases import BEHAVIOURS, observe_all
from ddplab.parity.observe import Local, cell, same
from ddplab.scratch import DDP


@pytest.fixture(scope="module")
def seen():
    """What two ranks saw of every behaviour, by title: of torch's class, then of the one from scratch."""
    return observe_all(BEHAVIOURS, TorchDDP, DDP)


@pytest.mark.parametrize("title", BEHAVIOURS)
def test_behaviour_at_two_ranks(title, seen):
    """The same bits or the same failing call; or a refusal that names the feature; or the difference that is meant."""
    behaviour, (of_torch, of_scratch) = BEHAVIOURS[title], seen[title]
    messages = [s.error for s in of_torch + of_scratch if s.error]
    if behaviour.differs is not None:
        assert (cell(of_torch), cell(of_scratch)) == behaviour.differs, messages
    elif behaviour.refused:
        assert not cell(of_torch).startswith("!"), messages
        assert all(behaviour.refused in s.error for s in of_scratch), messages
    else:
        assert same(of_torch, of_scratch), (cell(of_torch), cell(of_scratch), messages)


def test_behaviours_at_three_ranks():
    """Three addends may round differently in differently packed buckets; all else is as at two ranks."""
    titles = [title for title, b in BEHAVIOURS.items() if not b.alone and not b.refused and not b.differs]
    for title, (of_torch, of_scratch) in observe_all(titles, TorchDDP, DDP, ranks=3).items():
        assert cell(of_torch) == cell(of_scratch), title
        rtol = 2e-2 if "fp16" in title or "float16" in title else 1e-4
        assert all(close(a.values, b.values, rtol) for a, b in zip(of_torch, of_scratch, strict=True)), title


def close(a, b, rtol):
    """Return whether two nested values are equal but for rounding."""
    if isinstance(a, torch.Tensor):
        return torch.allclose(a, b, rtol=rtol, atol=rtol / 10)
    if isinstance(a, Local):
        return close(a.values, b.values, rtol)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(close(x, y, rtol) for x, y in zip(a, b, strict=True))
    return a == b
