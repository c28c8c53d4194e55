"""A program for one device and its DDP form: gallery/recipes/single_device.py and converted_ddp.py."""

import contextlib
import io
import sys
from itertools import chain

import torch
from proof import proves
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from ddplab import launch
from ddplab.labs.recipes import FOLDER
from ddplab.runtime.needs import ON_CPU


def run(name, ranks, path):
    """The losses that rank 0 printed, and the weights that were saved; only rank 0 has printed."""

    def program(text):
        sys.argv = [name, str(path)]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
        return said.getvalue()

    first, *others = launch(program, ranks, (FOLDER / name).read_text(), init=False, env=ON_CPU)
    assert not any(others)
    losses = torch.tensor([float(line.split()[-1]) for line in first.splitlines()])
    return losses, torch.load(path, map_location="cpu")


@proves("conversion-same-losses")
def test_the_converted_program_prints_the_same_losses(tmp_path):
    """One, two and four ranks against one device: four losses and all weights, within rounding."""
    losses, weights = run("single_device.py", 1, tmp_path / "single.pt")
    assert len(losses) == 4
    assert losses[0] > 2 * losses[-1]
    for ranks in (1, 2, 4):
        mine, saved = run("converted_ddp.py", ranks, tmp_path / f"{ranks}.pt")
        torch.testing.assert_close(mine, losses, rtol=0, atol=2e-6)
        torch.testing.assert_close(saved, weights, rtol=1e-4, atol=1e-5)


@proves("conversion-same-batches")
def test_the_ranks_batches_together_are_those_of_one_process():
    """Three epochs of 32 samples in batches of 8, on one, two and four ranks."""

    def batches(ranks, batch):
        torch.manual_seed(torch.distributed.get_rank())  # must not matter
        sampler = DistributedSampler(range(32))
        found = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            found += BatchSampler(sampler, batch // ranks, drop_last=False)
        return found

    order, alone = torch.Generator(), []
    for epoch in range(3):
        order.manual_seed(epoch)
        alone += BatchSampler(RandomSampler(range(32), generator=order), 8, drop_last=False)
    for ranks in (1, 2, 4):
        of_ranks = launch(batches, ranks, ranks, 8)
        together = [sorted(chain(*parts)) for parts in zip(*of_ranks, strict=True)]
        assert together == [sorted(batch) for batch in alone]
