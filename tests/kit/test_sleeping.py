"""Models that sleep: real gradients, in reverse order, and not before their time."""

import itertools
import time

import torch
from torch import nn

from ddplab.apparatus.sleeping import SleepingLayers, paced


def test_layers_keep_their_time_and_give_gradients_of_ones():
    model, ready = SleepingLayers(4, 64, forward_s=3e-3, backward_s=5e-3), []
    for weight in model.weights:
        weight.register_post_accumulate_grad_hook(lambda weight: ready.append((time.perf_counter(), id(weight))))
    for _ in range(2):
        model.zero_grad()
        ready.clear()
        begin = time.perf_counter()
        loss = model(torch.ones(1)).sum()
        middle = time.perf_counter()
        loss.backward()
        assert middle - begin >= 4 * 3e-3
        assert all(at >= begin + 4 * 3e-3 + (i + 1) * 5e-3 for i, (at, _) in enumerate(ready))
        assert [which for _, which in ready] == [id(weight) for weight in reversed(model.weights)]
        assert all(a <= b for (a, _), (b, _) in itertools.pairwise(ready))
        assert all(torch.equal(weight.grad, torch.ones(16)) for weight in model.weights)
    assert loss.item() == 1.0


def test_a_paced_model_computes_what_it_did_and_takes_its_time():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 10)), torch.randn(4, 30)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    ready = {}
    for name, p in paced(model, forward_s=6e-3, backward_s=12e-3).named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: ready.update({name: time.perf_counter()}))
    size = sum(p.numel() for p in model.parameters())
    for _ in range(2):
        model.zero_grad()
        begin = time.perf_counter()
        loss = model(x).sum()
        middle = time.perf_counter()
        loss.backward()
        assert middle - begin >= 6e-3
        assert all(map(torch.equal, (p.grad for p in model.parameters()), expected))
        assert ready["2.weight"] - begin >= 6e-3 + 12e-3 * 300 / size  # its own share, the last layer's
        assert max(ready.values()) - begin >= 6e-3 + 12e-3
