"""ddplab.buckets.assign against torch's own assignment; no ranks needed."""

import random

import pytest
import torch
from torch import nn

from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB, assign
from ddplab.runtime.torch_private import torch_assign

MODELS = {
    "mlp": lambda: nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]),
    "conv": lambda: nn.Sequential(*[nn.Sequential(nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64)) for _ in range(12)]),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4),
    "one tensor": lambda: nn.Linear(3000, 3000, bias=False),
}
CAPS = [
    (DEFAULT_FIRST_CAP_BYTES, DEFAULT_CAP_BYTES),
    (MIB, MIB),
    (4 * MIB, 4 * MIB),
    (MIB // 10, 3 * MIB),
    (8 * MIB, MIB),
    (1, 1),
    (2**62, 2**62),
]


def sizes_of(tensors):
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("first_cap", "cap"), CAPS)
def test_models_in_both_orders(name, first_cap, cap):
    in_order = list(MODELS[name]().parameters())
    for tensors in (in_order, in_order[::-1]):
        assert assign(sizes_of(tensors), cap, first_cap) == torch_assign(tensors, [first_cap, cap])


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
