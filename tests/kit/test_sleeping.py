"""SleepingLayers: real gradients, in reverse order, and not before their time."""

import itertools
import time

import torch

from ddplab.sleeping import SleepingLayers


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
