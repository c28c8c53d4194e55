"""What happens when a parameter takes no part in the loss."""

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from patience import launch, patient_group, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device


class TwoHeads(nn.Module):
    """A forward uses the heads that it is given; the parameters of the others are unused."""

    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b = (nn.Linear(1, 1, bias=False) for _ in range(3))

    def forward(self, x, heads):
        return sum(getattr(self, head)(self.trunk(x)).sum() for head in heads)


@proves("unused-found-by-the-next-armed-forward")
def test_forwards_without_gradients_do_not_count():
    """n: a micro-batch under no_sync; g: a forward without gradients; s: a step. Head b is never used."""

    def worker(moments):
        model, x = DDP(TwoHeads().to(device())), torch.ones(1, 1, device=device())
        for number, moment in enumerate(moments, start=1):
            try:
                if moment == "g":
                    with torch.no_grad():
                        model(x, "a")
                    continue
                with model.no_sync() if moment == "n" else contextlib.nullcontext():
                    model(x, "a").backward()
            except RuntimeError as error:
                return number if "Expected to have finished reduction" in str(error) else str(error)
        return "nothing raised"

    for moments, raised in {"ss": 2, "sn": 2, "nnnsn": 5, "sgs": 3, "sggn": 4}.items():
        for ranks in (2, 3):
            assert launch(worker, ranks, moments) == [raised] * ranks, moments
    assert launch(worker, 2, "nnn") == ["nothing raised"] * 2  # without a step that synchronizes nothing is found


@proves("unused-accumulated-is-reduced")
def test_what_a_parameter_accumulated_is_reduced_with_the_step_that_leaves_it_out():
    """Head b takes part under no_sync and not in the last micro-batch; its gradient is the mean all the same."""

    def worker():
        model = DDP(TwoHeads().to(device()), find_unused_parameters=True)
        for p in model.parameters():
            nn.init.ones_(p)
        x = torch.full((1, 1), dist.get_rank() + 1.0, device=device())
        with model.no_sync():
            model(x, "ab").backward()
        model(x, "a").backward()
        return model.module.b.weight.grad.item()

    for ranks in (2, 3):
        assert launch(worker, ranks) == [sum(range(1, ranks + 1)) / ranks] * ranks


@proves("no-parameter-used")
def test_the_peers_of_a_rank_that_uses_no_parameter_wait_for_it():
    """Rank 1's forward passes its input by; a parameter times zero repairs it, where the graph is searched."""

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False)

        def forward(self, x, skips, repaired):
            if not skips:
                return self.layer(x)
            return x + 0 * self.layer.weight if repaired else 2 * x

    def worker(options, repaired, until):
        group = patient_group()  # gloo on every machine: its timeout raises, NCCL's would end the process
        model = DDP(Gate().to(device()), process_group=group, **options)
        x, completed = torch.ones(1, 1, device=device(), requires_grad=True), 0
        try:
            for step in range(3):
                if step == until:
                    shorten(group, 1)
                model(x, dist.get_rank() == 1, repaired).sum().backward()
                completed += 1
        except RuntimeError:
            pass
        return completed

    search, static = {"find_unused_parameters": True}, {"static_graph": True}
    cases = (  # options, repaired, steps that the others complete
        ({}, False, 0),
        (search, False, 0),
        (static, False, 1),
        (search, True, 3),
    )
    for ranks in (2, 3):
        runs = side_by_side(*(partial(launch, worker, ranks, *case, quiet=True) for case in cases))
        for (*case, completed), found in zip(cases, runs, strict=True):
            assert found == [3 if rank == 1 else completed for rank in range(ranks)], case
