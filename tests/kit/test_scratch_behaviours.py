"""Each behaviour that PyTorch's tests check, with torch's DDP and with the one from scratch."""

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddplab.apparatus.parity.behaviors import BEHAVIOURS, observe_all
from ddplab.apparatus.parity.observe import Local, cell
from ddplab.scratch import DDP


def test_what_is_meant_to_differ_differs():
    """The others, which agree or are refused, are claims: tests/claims/test_scratch_behaviours_claims.py."""
    meant = {title: behaviour.differs for title, behaviour in BEHAVIOURS.items() if behaviour.differs}
    seen = observe_all(list(meant), TorchDDP, DDP)
    assert {title: tuple(map(cell, both)) for title, both in seen.items()} == meant


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
