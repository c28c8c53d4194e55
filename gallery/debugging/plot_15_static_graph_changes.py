"""
A static graph that changes
===========================

``this is not compatible with static_graph set to True``, in the middle of a run.
``static_graph=True`` was added because the first steps need nothing else; then a schedule freezes a branch, drops a loss, or a rank meets a batch without a second target.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-static-graph-changes
"""

# %%
# The broken program
# ------------------
# From the given step on, the auxiliary loss is off (or on): on all ranks, or on rank 1 only.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.main, self.auxiliary = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, with_auxiliary, times=1):
        h = self.trunk(x)
        return self.main(h) + times * self.auxiliary(h) if with_auxiliary else self.main(h)


def worker(switch, who, options, fix=""):
    group = gloo_group()  # on every machine: the peer's text is gloo's own
    torch.manual_seed(0)
    net = Model().to(device())
    model = DDP(net, process_group=group, **options)
    x = torch.full((2, 4), 1.0 + dist.get_rank()).to(device())
    gradients = []
    for step in range(1, 6):
        changed = step >= 4 and who in ("all ranks", f"rank {dist.get_rank()}")
        on = (switch == "off") != changed
        if fix == "new wrapper" and step == 4:
            model = DDP(net, process_group=group, **options)
        model.zero_grad()
        loss = (model(x, True, on) if fix == "times 0" else model(x, on)).square().mean()
        print(f"step {step}, backward")
        loss.backward()
        gradients.append(flat_gradients(model))
        print(f"step {step} done; norm of its gradient {gradients[-1].norm():.3f}")
    return gradients


# %%
# What every rank reports
# -----------------------

ends = {}
for switch, who in (("off", "all ranks"), ("off", "rank 1"), ("on", "rank 1")):
    print(f"auxiliary loss {switch} from step 4 on, on {who}:")
    ends[switch, who] = postmortem(worker, 2, switch, who, {"static_graph": True})
    for e in ends[switch, who]:
        assert e.how == "raised"
        text = e.error.replace("\n", " ").split("] ")[-1].split("e.g., ")[-1]
        print(f"  rank {e.rank} │ {e.printed.splitlines()[-1]}")
        print(f"         │ {e.how}: {text.split(' this is')[0].split(' [')[0]}")

steps = [e.printed.splitlines()[-1] for e in ends["off", "all ranks"]]
assert all("step 4 done" in step for step in steps)  # but it was not averaged:
assert steps[0] != steps[1]
assert all("then got unused" in e.error for e in ends["off", "all ranks"])
for switch, words in {"off": "then got unused", "on": "then got used"}.items():
    peer, guilty = ends[switch, "rank 1"]
    assert peer.lost_peer
    assert "backward" in peer.where
    assert peer.printed.splitlines()[-1] == "step 4, backward"
    assert words in guilty.error
    assert ("step 4 done" in guilty.printed) == (switch == "off")
    assert ("backward" in guilty.where) == (switch == "on")

# %%
# DDP counted in the first step which parameters get a gradient, and expects the same in all others:
#
# - One that is *missing* leaves its bucket open: the backward of that step returns without an all-reduce, with a local gradient, and the next forward raises.
# - One that is *new* raises in the backward itself.
#
# The fix
# -------
# ``find_unused_parameters=True`` instead, which looks in each step; or keep the graph and multiply the auxiliary loss by 0.
# If the switch happens once and on all ranks, you can also wrap the bare model in a new ``DDP`` at that step.


def largest_gap(*case):
    endings = postmortem(worker, 2, *case)
    return max(gap(at_once) for at_once in zip(*[e.value for e in endings], strict=True))


for switch, who in ends:
    largest = largest_gap(switch, who, {"find_unused_parameters": True})
    print(f"searching, {switch:3} on {who:9}: all return; largest gap {largest}")
    assert largest == 0
for switch in ("off", "on"):
    assert largest_gap(switch, "rank 1", {"static_graph": True}, "times 0") == 0
    assert largest_gap(switch, "all ranks", {"static_graph": True}, "new wrapper") == 0

# %%
# How to recognize it
# -------------------
# ``static_graph set to True`` is in the message, which otherwise begins like that of :ref:`fault-unused-parameter`.
# ``then got unused`` is raised in a *forward*, and the cause is one step back; ``then got used`` in a *backward*, and the cause is in this step.
# If only one rank reports it, its data made the difference, and its peers wait in the backward of the step where it happened.
