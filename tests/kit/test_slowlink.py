"""SlowLink: the real sum, never early, one after the other; what is wrong is said, and nothing is left behind."""

import gc
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.apparatus.postmortem import postmortem
from ddplab.runtime.slowlink import SlowLink
from tools import PATIENCE_S

NAN, INF = float("nan"), float("inf")
QUICK = (1e-4, 1e9)  # latency and rate where time does not matter


def threads():
    return {thread for thread in threading.enumerate() if thread.name == "slow link"}


def network(seed=0, width=24, layers=5):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device())


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, least in (("latency_s", -1e-9), ("bytes_per_s", 0)) for value in (least, -5.0, NAN, INF)],
)
def test_a_bad_latency_or_rate_is_named(name, value):
    before = threads()
    with pytest.raises(ValueError, match=f"{name} .*{value!r}"):
        SlowLink(**{"latency_s": 0, "bytes_per_s": 1e9, name: value})
    assert threads() <= before


def test_a_bad_value_between_steps_changes_nothing():
    link = SlowLink(*QUICK)
    with pytest.raises(ValueError, match="0"):
        link.bytes_per_s = 0
    assert link.bytes_per_s == QUICK[1]
    link.latency_s, link.bytes_per_s = 0.5, 1e3
    assert link.seconds(2000) == 2.5


def test_the_link_and_its_thread_end_together():
    before, link = threads(), SlowLink(*QUICK)
    (thread,) = threads() - before
    del link
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_all_reduce_gives_the_sum_in_place_and_not_before_its_time():
    def worker():
        link, tensor = SlowLink(0.02, 1e5), torch.full((500,), float(dist.get_rank() + 1)).to(device())
        began = time.perf_counter()
        result = link.all_reduce(tensor).wait()
        took = time.perf_counter() - began
        (transfer,) = link.log
        return took, transfer, result.cpu(), result.data_ptr() == tensor.data_ptr()

    for took, transfer, result, in_place in launch(worker, 3):
        assert took > 0.04  # 20 ms of latency, and 2000 bytes at 100 kB/s
        assert transfer.nbytes == 2000
        assert transfer.done_s - transfer.launched_s >= 0.04
        assert torch.equal(result, torch.full((500,), 6.0))
        assert in_place


def test_transfers_are_delivered_when_the_link_is_gone():
    def worker():
        futures = [SlowLink(0.01, 1e9).all_reduce(torch.ones(3).to(device())) for _ in range(3)]
        return [future.wait().tolist() for future in futures]

    assert launch(worker, 2) == [[[2.0] * 3] * 3] * 2


def test_a_peer_that_comes_late_delays_its_transfer_and_those_behind_it(tmp_path):
    def worker(is_sent):
        link = SlowLink(1e-4, 1e9)
        while dist.get_rank() == 1 and not is_sent.exists():
            time.sleep(0.01)
        launched = time.perf_counter()  # one clock for all ranks: they share a machine
        futures = [link.all_reduce(torch.ones(8)) for _ in range(2)]
        is_sent.touch()
        for future in futures:
            future.wait()
        return launched, [transfer.done_s for transfer in link.log]

    (first, done), (second, _) = launch(worker, 2, tmp_path / "sent", env={"CUDA_VISIBLE_DEVICES": ""})
    assert first < second < done[0] < done[1]


def test_an_error_of_the_all_reduce_comes_out_of_the_future_and_of_backward():
    """Rank 1 leaves; rank 0 hears so from the link, in words that name the connection."""

    def worker(by_ddp):
        ddp, link = DDP(network()), SlowLink(*QUICK)
        ddp.register_comm_hook(link, SlowLink.hook)
        batch = torch.ones(3, 24)
        ddp(batch).sum().backward()
        dist.barrier()
        if dist.get_rank() == 1:
            return
        if by_ddp:
            ddp(batch).sum().backward()
        else:
            link.all_reduce(torch.ones(8)).wait()

    for by_ddp in (False, True):
        ended = postmortem(worker, 2, by_ddp, leave=True, timeout_s=PATIENCE_S, env={"CUDA_VISIBLE_DEVICES": ""})
        assert [ending.how for ending in ended] == ["raised", "returned"]
        assert "peer" in ended[0].error
