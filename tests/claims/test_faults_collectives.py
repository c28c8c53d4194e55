"""The fault lab, collectives and groups: what every rank says, and the run after the fix."""

import os
import re
import signal
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from patience import launch, patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.runtime.needs import ON_CPU
from tools import PATIENCE_S

BROKEN = re.compile("Connection (closed|reset) by peer")
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def gloo(timeout_s=PATIENCE_S):
    """A group whose texts and timeouts are gloo's; all ranks are connected before anyone leaves or fails."""
    group = patient_group()
    shorten(group, timeout_s)
    return group


def hows(endings):
    return [e.how for e in endings]


@proves("fault-shapes-differ")
def test_tensors_of_different_size_end_the_rank_with_the_smaller_one():
    """It aborts, its peer only loses the connection; under DETAIL both raise and name both sizes."""

    def worker(sizes):
        dist.all_reduce(torch.ones(sizes[dist.get_rank()]), group=gloo())

    def both(sizes):
        return postmortem(worker, 2, sizes), postmortem(worker, 2, sizes, env=DETAIL)

    cases = (([20, 10], 1), ([10, 20], 0))
    runs = side_by_side(*(partial(both, sizes) for sizes, _ in cases))
    for (sizes, smaller), (endings, detailed) in zip(cases, runs, strict=True):
        assert endings[smaller].how == "died"
        assert "SIGABRT" in endings[smaller].error
        assert "op.preamble.length <= op.nbytes" in endings[smaller].printed
        assert BROKEN.search(endings[1 - smaller].error)
        for e in detailed:
            mine, other = sizes[e.rank], sizes[1 - e.rank]
            assert e.error.endswith(f"Tensor shapes: {mine}vs {other}")


@proves("fault-dtypes-differ")
def test_two_dtypes_of_equal_size_are_added_without_an_error():
    """float16 and bfloat16, in an all-reduce and as two halves of a DDP model; DETAIL names the dtypes."""
    dtypes = [torch.float16, torch.bfloat16]

    def reduce():
        ones = torch.ones(4).to(dtypes[dist.get_rank()])
        dist.all_reduce(ones, group=gloo())
        return ones.tolist()

    def wrap():
        layer = nn.Linear(2, 1, bias=False).to(dtypes[dist.get_rank()])
        nn.init.ones_(layer.weight)
        DDP(layer, process_group=gloo())
        return layer.weight.flatten().tolist()

    for worker, right in ((reduce, [2.0] * 4), (wrap, [1.0] * 2)):
        endings = postmortem(worker, 2)
        assert hows(endings) == ["returned"] * 2
        assert endings[0].value != endings[1].value
        assert [e.value for e in endings] != [right] * 2
    for e, text in zip(postmortem(reduce, 2, env=DETAIL), ("Halfvs BFloat16", "BFloat16vs Half"), strict=True):
        assert e.error.endswith(f"Tensor dtypes: {text}")


@proves("fault-swapped-collectives")
def test_swapped_all_reduces_are_silent_if_the_shapes_are_equal():
    """One rank calls in another order: each sum mixes the two; with other shapes an error, and DETAIL names it."""

    def worker(sizes, swap):
        tensors = [torch.full([sizes[0]], 1.0), torch.full([sizes[1]], 100.0)]
        group = gloo()
        for tensor in tensors if dist.get_rank() or not swap else reversed(tensors):
            dist.all_reduce(tensor, group=group)
        return [tensor[0].item() for tensor in tensors]

    for ranks in (2, 3):
        mixed = ranks - 1 + 100.0
        for env in ({}, DETAIL):
            results = [e.value for e in postmortem(worker, ranks, [5, 5], True, env=env)]
            assert results[1:] == [[mixed, 100.0 * ranks - 99.0]] * (ranks - 1)
            assert results[0] == [100.0 * ranks - 99.0, mixed]
        assert launch(worker, ranks, [5, 5], False) == [[1.0 * ranks, 100.0 * ranks]] * ranks
    assert set(hows(postmortem(worker, 2, [100, 1], True))) == {"died", "raised"}
    for e in postmortem(worker, 2, [100, 1], True, env=DETAIL):
        assert "Collectives differ in the following aspects" in e.error


@proves("fault-missing-collective")
def test_only_the_rank_that_calls_is_in_trouble():
    """The others skip the all-reduce: while they live it times out, once they ended its connection is closed."""

    def worker(all_call, timeout_s=PATIENCE_S):
        group = gloo(timeout_s)
        if all_call or dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), group=group)

    cases = [(ranks, leave) for ranks in (2, 3) for leave in (False, True)]
    bounds_s = {False: 1.0, True: PATIENCE_S}  # nobody's time is up before the others have left
    runs = side_by_side(
        *(partial(postmortem, worker, ranks, False, bounds_s[leave], leave=leave) for ranks, leave in cases)
    )
    for (ranks, leave), endings in zip(cases, runs, strict=True):
        assert hows(endings) == ["raised"] + ["returned"] * (ranks - 1)
        assert (BROKEN if leave else re.compile("Timed out waiting 1000ms")).search(endings[0].error)
        assert endings[0].where.startswith("all_reduce")
    assert hows(postmortem(worker, 3, True)) == ["returned"] * 3


@proves("fault-uneven-batches")
def test_an_extra_batch_hangs_only_at_the_very_end():
    """Two epochs of 2 and 3 batches: the long rank goes on into its second epoch, and stops when the others have."""

    def worker(batches, epochs):
        rank, seen, group = dist.get_rank(), [], gloo()
        model = DDP(nn.Linear(2, 1).to(device()), process_group=group)
        for epoch in range(epochs):
            for batch in range(batches[rank]):
                if len(seen) == epochs * min(batches):
                    shorten(group, 1.0)  # when the others have done their last epoch
                print(epoch, batch)
                model(torch.ones(1, 2, device=device())).sum().backward()
                seen.append((epoch, batch))
        if len(seen) < epochs * max(batches):
            shorten(group, 1.0)
        return seen

    two, three, even = side_by_side(*(partial(postmortem, worker, len(n), n, 2) for n in ([2, 3], [2, 2, 3], [2] * 3)))
    for ranks, endings in ((2, two), (3, three)):
        assert hows(endings) == ["returned"] * (ranks - 1) + ["raised"]
        assert "Timed out" in endings[-1].error
        assert "backward" in endings[-1].where
        # four steps of the others: its own third of epoch 0 met their first of epoch 1
        assert endings[-1].printed.splitlines() == ["0 0", "0 1", "0 2", "1 0", "1 1"]
    assert hows(even) == ["returned"] * 3


@proves("fault-group-by-members")
def test_the_group_after_a_group_of_members_only_fails_on_all_ranks():
    """The pair works; for the next group its members wait under number 2, the other rank under number 1."""
    members = [1, 2]

    def worker(all_call):
        rank, pair, total = dist.get_rank(), None, torch.ones(1)
        if all_call or rank in members:
            pair = patient_group(members)
        if rank in members:
            dist.all_reduce(total, group=pair)
        dist.barrier()
        try:
            timeout = timedelta(seconds=PATIENCE_S if all_call else 1)
            everyone = dist.new_group(backend="gloo", timeout=timeout)
        except RuntimeError as error:
            return total.item(), str(error)
        everybody = torch.ones(1)
        dist.all_reduce(everybody, group=everyone)
        return total.item(), everybody.item()

    alone, *pair = [e.value for e in postmortem(worker, 3, False, env=ON_CPU)]  # NCCL makes a group out of a group
    assert [total for total, _ in (alone, *pair)] == [1.0, 2.0, 2.0]
    assert re.search("wait timeout after 1000ms, keys: .*//1//", alone[1])
    assert all(re.search("wait timeout after 1000ms, keys: .*//2//", text) for _, text in pair)
    assert launch(worker, 3, True, env=ON_CPU) == [(1.0, 3.0), (2.0, 3.0), (2.0, 3.0)]


@proves("fault-killed-rank")
def test_all_but_the_killed_rank_speak_of_a_broken_connection():
    """It dies in the third step, on 2 and 4 ranks, whichever rank it is; the others stand in backward."""

    def worker(killed):
        model = DDP(nn.Linear(2, 1), process_group=gloo())
        for step in range(5):
            if (dist.get_rank(), step) == (killed, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(1, 2)).sum().backward()

    for ranks, killed in ((2, 0), (4, 2)):
        endings = postmortem(worker, ranks, killed)
        dead = endings.pop(killed)
        assert (dead.how, dead.error, dead.printed) == ("died", "was killed by SIGKILL", "")
        for e in endings:
            assert e.how == "raised"
            assert BROKEN.search(e.error)
            assert "backward" in e.where
    assert hows(postmortem(worker, 2, None)) == ["returned"] * 2


@proves("fault-late-rank")
def test_the_punctual_ranks_fail_and_the_late_one_blames_them(tmp_path):
    """Rank 0 enters the barrier after the group's timeout, when the others have failed; a patient group heals it."""

    def worker(failed, timeout_s):
        rank = dist.get_rank()
        group = gloo(timeout_s if rank else PATIENCE_S)
        if rank == 0:
            time.sleep(1.2)
            while failed and len(list(failed.iterdir())) < dist.get_world_size() - 1:
                time.sleep(0.01)
            print("is ready")
        try:
            dist.barrier(group)
        except RuntimeError:
            (failed / str(rank)).touch()
            raise

    def late(ranks):
        failed = tmp_path / str(ranks)
        failed.mkdir()
        return postmortem(worker, ranks, failed, 1.0)

    def patient(ranks):
        return postmortem(worker, ranks, None, PATIENCE_S)

    two, three, *healed = side_by_side(*(partial(run, ranks) for run in (late, patient) for ranks in (2, 3)))
    for last, *punctual in (two, three):
        assert last.printed == "is ready\n"
        assert BROKEN.search(last.error)
        assert all(e.how == "raised" for e in punctual)
        assert any("Timed out waiting 1000ms" in e.error for e in punctual)
    for endings in healed:
        assert hows(endings) == ["returned"] * len(endings)


@proves("fault-source-rank-in-group")
def test_src_is_a_rank_of_the_job_also_in_a_subgroup():
    """A broadcast among ranks 1 and 2: src=0 raises on both, src=1 sends rank 1's number, group_src=1 rank 2's."""

    def worker(source):
        group = dist.new_group([1, 2])
        dist.barrier()
        number = torch.tensor([dist.get_rank()], device=device())
        if dist.get_rank() in (1, 2):
            dist.broadcast(number, **source, group=group)
        return number.item()

    outside, *members = postmortem(worker, 3, {"src": 0})
    assert outside.how == "returned"
    assert all("ValueError: Global rank 0 is not part of group" in e.error for e in members)
    assert launch(worker, 3, {"src": 1}) == [0, 1, 1]
    assert launch(worker, 3, {"group_src": 1}) == [0, 2, 2]


@proves("fault-differing-branches")
def test_a_rank_that_stops_alone_leaves_the_others_in_backward():
    """Rank 1's own loss says stop in step 2; with the mean of the losses all stop in step 3."""
    losses = [[4, 3, 2, 3], [4, 2, 3, 5], [4, 3, 1, 2]]

    def worker(share):
        group = gloo()
        model, best = DDP(nn.Linear(2, 1).to(device()), process_group=group), 9.0
        for step, loss in enumerate(losses[dist.get_rank()]):
            print(step)
            if step == 3 and not share:
                shorten(group, 1.0)  # when rank 1 has stopped
            model(torch.ones(1, 2, device=device())).sum().backward()
            loss = torch.tensor(float(loss))
            if share:
                dist.all_reduce(loss, group=group)
                loss /= dist.get_world_size()
            if loss > best:
                break
            best = min(best, loss.item())
        if step < 3:
            shorten(group, 1.0)
        return step

    endings = postmortem(worker, 3, False)
    assert hows(endings) == ["raised", "returned", "raised"]
    assert endings[1].value == 2
    for e in (endings[0], endings[2]):
        assert e.printed.splitlines()[-1] == "3"
        assert "backward" in e.where
    assert launch(worker, 3, True) == [3, 3, 3]
