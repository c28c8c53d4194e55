"""What happens when a parameter takes no part in the loss."""

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch


class TwoHeads(nn.Module):
    """A forward uses one of two heads; the parameters of the other one are unused."""

    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b = (nn.Linear(1, 1, bias=False) for _ in range(3))

    def forward(self, x, head):
        return getattr(self, head)(self.trunk(x)).sum()


def run(heads, **options):
    """One step per entry of ``heads``; return where it stopped, and the gradients of each completed step.

    All weights are 1 and rank r's input is r + 1, so that its local gradients are r + 1 too.
    """
    model = DDP(TwoHeads().to(device()), **options)
    for p in model.parameters():
        nn.init.ones_(p)
    x = torch.full((1, 1), dist.get_rank() + 1.0, device=device())
    completed = []
    for step, head in enumerate(heads, start=1):
        model.zero_grad()
        where = f"forward {step}"
        try:
            loss = model(x, head)
            where = f"backward {step}"
            loss.backward()
        except RuntimeError as error:
            return where, str(error), completed
        completed.append([None if p.grad is None else round(p.grad.item(), 4) for p in model.parameters()])
    return "completed", "", completed


@proves("unused-raises-second-forward")
def test_an_unused_parameter_makes_the_second_forward_raise():
    """The first forward and backward return; the error comes from the second forward and names the parameter."""
    for ranks in (2, 3):
        for where, text, completed in launch(lambda: run("aaa"), ranks, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"}):
            assert where == "forward 2"
            assert len(completed) == 1
            assert "parameters that were not used in producing loss" in text
            assert "did not receive grad for rank" in text
            assert "b.weight" in text


@proves("find-unused-completes")
def test_find_unused_parameters_counts_an_unused_parameter_as_zero():
    """Used on one rank only: that rank's gradient divided by the ranks; used on no rank: ``grad`` stays None."""

    def worker():
        own = run(["a" if dist.get_rank() == 0 else "b"] * 3, find_unused_parameters=True)
        return own, run("aba", find_unused_parameters=True)

    for ranks in (2, 3, 4):
        total, rest = sum(range(1, ranks + 1)), sum(range(2, ranks + 1))
        mean, only_first, others = (round(gradient / ranks, 4) for gradient in (total, 1, rest))
        for per_rank, in_turn in launch(worker, ranks):
            assert per_rank == ("completed", "", [[mean, only_first, others]] * 3)
            assert in_turn == ("completed", "", [[mean, mean, None], [mean, None, mean], [mean, mean, None]])


@proves("static-graph-unused")
def test_static_graph_needs_an_unused_set_that_never_changes():
    """The same head in each step: completed, also when ranks differ; heads in turn: the second backward raises."""

    def worker():
        same = run("aaaa", static_graph=True)
        differs = run("ab"[dist.get_rank()] * 4, static_graph=True)
        return same, differs, run("abab", static_graph=True)

    for same, differs, changes in launch(worker, 2):
        assert same == ("completed", "", [[1.5, 1.5, None]] * 4)
        assert differs == ("completed", "", [[1.5, 0.5, 1.0]] * 4)
        assert changes[0] == "backward 2"
        assert "Your training graph has changed" in changes[1]
