"""`ddplab diagnose` on the output of real ranks that fail in known ways."""

import traceback
from functools import partial
from itertools import chain, zip_longest

import torch
import torch.distributed as dist
from patience import patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.diagnose import diagnose


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))

    def forward(self, x, used):
        for layer in self.layers[:used]:
            x = layer(x).relu()
        if used is None:
            return x.mean()
        y = x.square().mean()
        if used == 2:
            x += 1
        return y


def train(fault):
    last = dist.get_rank() == dist.get_world_size() - 1
    gloo = patient_group()
    try:
        layers = 3 if last and fault == "ddp-parameter-counts-differ" else 2
        model = DDP(Net(layers), process_group=gloo)
        used = {"ddp-unused-parameter": 1, "ddp-modified-in-place": 2}.get(fault)
        for step in range(3):
            if step == 2 and fault == "gloo-timeout":
                shorten(gloo, 1)
                if last:
                    break
            if last and step == 1 and fault == "python-exception":
                raise KeyError("label")
            model(torch.ones(2, 4), used).backward()
        if fault == "checkpoint-module-prefix":
            Net(2).load_state_dict(model.state_dict())
        dist.barrier(group=gloo)
    except Exception:
        traceback.print_exc()
        raise


FAULTS = [
    "python-exception",
    "ddp-unused-parameter",
    "ddp-modified-in-place",
    "ddp-parameter-counts-differ",
    "checkpoint-module-prefix",
    "gloo-timeout",
]


@proves("diagnose-own-faults")
def test_the_first_answer_names_the_fault_whichever_rank_speaks_first():
    """Six faults on two and three ranks; the ranks' lines one rank after the other, the other way round, and mixed."""
    cases = [(fault, 3 if fault in ("python-exception", "gloo-timeout") else 2) for fault in FAULTS]
    runs = side_by_side(*(partial(postmortem, train, ranks, fault) for fault, ranks in cases))
    for (fault, ranks), endings in zip(cases, runs, strict=True):
        assert {e.how for e in endings} == {"raised"}
        said = [[f"[rank{e.rank}]: {line}" for line in e.printed.splitlines()] for e in endings]
        mixed = [line for lines in zip_longest(*said) for line in lines if line is not None]
        for log in (list(chain(*said)), list(chain(*said[::-1])), mixed):
            first = diagnose(log)[0]
            assert first.id == fault, "\n".join(log)
            if fault == "python-exception":
                assert first.rank == ranks - 1
                assert "KeyError: 'label'" in first.title
