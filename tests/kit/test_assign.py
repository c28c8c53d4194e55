"""ddplab.buckets.assign against torch's own assignment; no ranks needed."""

import random

import pytest
import torch

from ddplab.buckets import assign
from ddplab.runtime.torch_private import torch_assign


def sizes_of(tensors):
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


def test_random_sizes_and_kinds():
    draw = random.Random(0)
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.int8]
    for _ in range(300):
        kinds = [draw.choice(dtypes[: draw.randint(1, 4)]) for _ in range(draw.randint(1, 60))]
        tensors = [torch.empty(draw.choice([0, 1, 7, draw.randint(1, 5000)]), dtype=kind) for kind in kinds]
        first_cap, cap = draw.randint(1, 20_000), draw.randint(1, 20_000)
        assert assign(sizes_of(tensors), cap, first_cap, kinds) == torch_assign(tensors, [first_cap, cap])


def test_a_bucket_closes_on_reaching_its_cap():
    assert assign([4, 4, 4, 4, 4], cap_bytes=8, first_cap_bytes=4) == [[0], [1, 2], [3, 4]]
    assert assign([3, 9, 1], cap_bytes=8, first_cap_bytes=4) == [[0, 1], [2]]  # 12 bytes under a cap of 4
    assert assign([], cap_bytes=8, first_cap_bytes=4) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 0, 1), "cap_bytes must be a positive number of bytes; got 0"),
        (([1], 1, -5), "first_cap_bytes must be a positive number of bytes; got -5"),
        (([1, -2], 1, 1), r"sizes\[1\] must not be negative; got -2"),
        (([1, 2], 1, 1, ["float32"]), "one entry per size; got 1 for 2 sizes"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        assign(*arguments)
