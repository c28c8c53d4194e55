"""The recorder sees the calls of a rank, and makes a missing wait show."""

from pathlib import Path

import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.grading.calls import Call, Recorder, first_difference, read_log


def test_calls_are_seen_in_order_and_kept_in_the_log(tmp_path):
    def worker(folder):
        real = dist.all_reduce
        with Recorder(Path(folder) / f"{dist.get_rank()}.calls") as recorder:
            dist.broadcast(torch.zeros(3), src=0)
            work = dist.all_reduce(torch.ones(2, dtype=torch.float64), async_op=True)
            recorder.note("between")
            work.wait()
            dist.barrier()
        assert dist.all_reduce is real
        return [str(call) for call in recorder.calls], recorder.events

    (calls, events), other = launch(worker, 2, str(tmp_path))
    assert (calls, events) == other
    assert calls == ["broadcast of 3 float32 elements", "all_reduce of 2 float64 elements", "barrier"]
    assert events == [
        ("launch", 0), ("wait", 0), ("launch", 1), ("note", "between"), ("wait", 1), ("launch", 2), ("wait", 2),
    ]  # fmt: skip
    logged, ended = read_log(tmp_path / "1.calls")
    assert ([str(call) for call in logged], ended) == (calls, True)


def test_before_the_wait_a_tensor_holds_what_it_held(tmp_path):
    def worker(folder):
        with Recorder(Path(folder) / f"{dist.get_rank()}.calls") as recorder:
            tensors = [torch.ones(1) for _ in range(5)]
            dist.all_reduce(tensors[0])
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[1:]]
            dist.barrier()  # now all of them have certainly landed
            before = [tensor.item() for tensor in tensors]
            works[0].wait()
            works[1].get_future().wait()
            while not works[2].is_completed():
                pass
        return before, [tensor.item() for tensor in tensors], [call.waited for call in recorder.calls]

    for before, after, waited in launch(worker, 2, str(tmp_path)):
        assert before == [2, 1, 1, 1, 1]
        assert after == [2, 2, 2, 2, 1]
        assert waited == [True, True, True, True, False, True]


def call(operation, elements=1):
    return Call(operation, elements, "float32", asynchronous=False, waited=True)


def test_the_first_difference_between_ranks():
    a, b = call("all_reduce", 2), call("all_reduce", 3)
    assert first_difference([[a, a], [a, b]]) == 1
    assert first_difference([[a, a], [a]]) is None
    assert first_difference([[], [a]]) is None
    assert first_difference([[call("send"), a], [call("recv"), b]]) is None, "messages differ by their nature"


def test_a_log_that_breaks_off_is_read_as_far_as_it_goes(tmp_path):
    assert read_log(tmp_path / "absent") == ([], False)
    (tmp_path / "log").write_text(
        '{"operation": "barrier", "elements": 0, "dtype": "", "asynchronous": false, "waited": true}\n{"op'
    )
    calls, ended = read_log(tmp_path / "log")
    assert ([str(call) for call in calls], ended) == (["barrier"], False)
