"""Communication hooks, and loops of unequal length under join."""

import pytest
import torch
import torch.distributed as dist
from patience import launch, patient_group, shorten
from proof import proves, side_by_side
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import LaunchError, device
from ddplab.runtime.torch_private import ddp_facts


@proves("comm-hook-per-bucket")
def test_a_comm_hook_is_called_once_per_bucket_and_decides_the_gradient():
    """As many calls as DDP says it has buckets; a hook that answers sevens leaves sevens in every gradient."""

    def worker():
        calls = []

        def sevens(state, bucket):
            calls.append(bucket.index())
            return allreduce_hook(None, bucket).then(lambda future: future.value().fill_(7.0))

        model = DDP(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to(device()), bucket_cap_mb=0.02)
        model.register_comm_hook(None, sevens)
        for _ in range(4):
            calls.clear()
            model(torch.ones(2, 64, device=device())).sum().backward()
        rebuilt = ddp_facts(model)["rebuilt_bucket_sizes"].split(",")
        return calls, len(rebuilt), all((p.grad == 7).all().item() for p in model.parameters())

    for calls, buckets, only_sevens in launch(worker, 2):
        assert buckets > 1
        assert calls == list(range(buckets))
        assert only_sevens


@proves("comm-hook-signature")
def test_the_second_argument_of_a_comm_hook_must_be_named_bucket():
    """Another name is a bare ``KeyError: 'bucket'`` at registration; another return annotation a ValueError."""

    def renamed(state, grad_bucket):
        return allreduce_hook(None, grad_bucket)

    def annotated(state, bucket) -> torch.Tensor:
        return allreduce_hook(None, bucket)

    def right(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return allreduce_hook(None, bucket)

    def worker(hook):
        DDP(nn.Linear(2, 2).to(device())).register_comm_hook(None, hook)

    launch(worker, 2, right)
    with pytest.raises(LaunchError, match="KeyError: 'bucket'"):
        launch(worker, 2, renamed)
    with pytest.raises(LaunchError, match="ValueError: Communication hook: return annotation"):
        launch(worker, 2, annotated)


@proves("join-uneven-inputs")
def test_join_lets_ranks_have_different_numbers_of_batches():
    """Rank r has r + 1 batches. Without join the last rank times out; with it all end, with the last one's model."""

    def worker(join):
        group = patient_group()
        model = DDP(nn.Linear(1, 1, bias=False).to(device()), process_group=group)
        nn.init.ones_(model.module.weight)
        optimizer, trained = torch.optim.SGD(model.parameters(), lr=0.1), 0
        with model.join(enable=join):
            for _ in range(1 + dist.get_rank()):
                optimizer.zero_grad()
                try:
                    model(torch.ones(1, 1, device=device())).sum().backward()
                except RuntimeError as error:
                    return trained, "Timed out" in str(error)
                optimizer.step()
                trained += 1
                if trained == 1 and not join:
                    shorten(group, 1)  # rank 0 has no second batch
            own = model.module.weight.item()
        return trained, own, model.module.weight.item()

    (_, without), *joined = side_by_side(
        lambda: launch(worker, 2, False),
        lambda: launch(worker, 2, True),
        lambda: launch(worker, 3, True),
    )
    assert without == (1, True)
    for results in joined:
        assert [trained for trained, _, _ in results] == list(range(1, len(results) + 1))
        assert len({own for _, own, _ in results}) == len(
            results
        )  # until they leave the block, early ranks stay behind
        assert {final for _, _, final in results} == {results[-1][1]}
