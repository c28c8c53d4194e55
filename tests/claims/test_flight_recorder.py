"""What the flight recorder of a rank holds after DDP has worked."""

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch
from ddplab.runtime.torch_private import flight_records


@proves("flight-recorder-sees-all")
def test_the_recorder_lists_what_a_step_issued():
    """It numbers the collectives without a gap; a known broadcast, then one all-reduce per bucket, in launch order."""

    def worker():
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to(device())
        ddp, launched = DistributedDataParallel(model, bucket_cap_mb=0.03), []

        def hook(state, bucket):
            launched.append(("all_reduce", bucket.buffer().numel()))
            return allreduce_hook(None, bucket)

        ddp.register_comm_hook(None, hook)
        for _ in range(2):  # the second forward rebuilds the buckets
            ddp(torch.ones(2, 64, device=device())).sum().backward()
        launched.clear()
        already = len(flight_records())
        dist.broadcast(torch.ones(7, device=device()), src=0)
        ddp(torch.ones(2, 64, device=device())).sum().backward()
        records = flight_records()
        assert [entry.number for entry in records] == list(range(1, len(records) + 1))
        new = [(entry.operation, entry.elements) for entry in records[already:]]
        assert new == [("broadcast", 7), *launched]
        assert len(launched) > 1
        return [entry[:5] for entry in records]

    for ranks in (2, 3, 4):
        logs = launch(worker, ranks)
        assert all(log == logs[0] for log in logs)
