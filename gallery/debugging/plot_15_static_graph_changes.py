"""
A static graph that changes
===========================

``this is not compatible with static_graph set to True``, in the middle of a run.
``static_graph=True`` was added because the first steps need nothing else; then a schedule freezes a branch, drops a loss, or a rank meets a batch without a second target.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
"""

# %%
# The broken program
# ------------------
# From the given step on, the auxiliary loss is off (or on): on all ranks, or on rank 1 only.

import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.labs.gaps import flat_gradients, gap
from ddplab.labs.postmortem import postmortem


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.main, self.auxiliary = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, with_auxiliary):
        h = self.trunk(x)
        return self.main(h) + self.auxiliary(h) if with_auxiliary else self.main(h)


def worker(switch, who, options):
    # A gloo group on every machine: the peer's text is gloo's own.
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=10))
    torch.manual_seed(0)
    model = DDP(Model().to(device()), process_group=group, **options)
    x = torch.full((2, 4), 1.0 + dist.get_rank()).to(device())
    gradients = []
    for step in range(1, 6):
        changed = step >= 4 and who in ("all ranks", f"rank {dist.get_rank()}")
        model.zero_grad()
        loss = model(x, (switch == "off") != changed).square().mean()
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
for switch, words in {"off": "then got unused", "on": "then got used"}.items():
    peer, guilty = ends[switch, "rank 1"]
    assert "Connection" in peer.error
    assert "step 4 done" not in peer.printed
    assert words in guilty.error
    assert ("step 4 done" in guilty.printed) == (switch == "off")

# %%
# DDP counted in the first step which parameters get a gradient, and expects the same in all others:
#
# - One that is *missing* leaves its bucket open: the backward of that step returns without an all-reduce, with a local gradient, and the next forward raises.
# - One that is *new* raises in the backward itself.
#
# The fix
# -------
# ``find_unused_parameters=True`` instead, which looks in each step; or keep the graph and multiply the auxiliary loss by 0.
# If the switch happens once and on all ranks, you can also wrap the bare model in a new ``DDP`` at that step (the claim's test does both).

for switch, who in ends:
    endings = postmortem(worker, 2, switch, who, {"find_unused_parameters": True})
    gaps = [gap(at_once) for at_once in zip(*[e.value for e in endings], strict=True)]
    print(f"searching, {switch:3} on {who:9}: all return; largest gap {max(gaps)}")
    assert gaps == [0] * 5

# %%
# How to recognize it
# -------------------
# ``static_graph set to True`` is in the message, which otherwise begins like that of :ref:`fault-unused-parameter`.
# ``then got unused`` is raised in a *forward*, and the cause is one step back; ``then got used`` in a *backward*, and the cause is in this step.
# If only one rank reports it, its data made the difference, and its peers wait in the backward of the step where it happened.
