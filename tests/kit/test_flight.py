"""Flight-recorder dumps: written by real ranks, read without trust, compared to the place where the ranks diverge."""

import datetime
import json
import os
import pickle
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from ddplab.apparatus.postmortem import postmortem
from ddplab.cli.flight import report_dumps
from ddplab.errors import BadInput
from ddplab.flight import DumpError, compare, compare_lines, dump_when_stuck, read_dumps, without_dump, write_dump
from ddplab.runtime.launcher import LaunchError, launch
from ddplab.runtime.needs import needs
from ddplab.runtime.torch_private import flight_records
from tools import PATIENCE_S

# -- real ranks -------------------------------------------------------------------------------------


def give_up_soon():
    """From now on a collective that waits for another rank ends with an error: what was to succeed has."""
    meeting = dist.distributed_c10d._get_default_store()
    meeting.add("are here", 1)  # a barrier would be in the dumps
    while meeting.add("are here", 0) < dist.get_world_size():
        time.sleep(0.01)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=0.5))


def hang(folder, worker, ranks=3):
    """The dumps of ranks that run ``worker``, and how the ranks ended."""
    needs(torch="2.11")  # the first that records what gloo does
    endings = postmortem(worker, ranks, str(folder), timeout_s=PATIENCE_S)
    return read_dumps(folder), [ending.how for ending in endings]


def test_names_the_rank_that_left_a_collective_out_and_what_it_did_last(tmp_path):
    def worker(folder):
        with dump_when_stuck(folder, 0.5):
            for _ in range(3):
                dist.all_reduce(torch.ones(7))
            give_up_soon()
            if dist.get_rank() != 1:
                dist.all_reduce(torch.ones(3))

    dumps, how = hang(tmp_path, worker)
    assert how == ["raised", "returned", "raised"]
    divergence = compare(dumps)
    assert (divergence.kind, divergence.number, divergence.ranks) == ("missing", 4, (1,))
    gone = divergence.sides[1]
    assert not gone.issued
    assert gone.call is None
    assert gone.last.number == 3
    assert gone.last.inputs == ((7,),)
    assert without_dump(dumps) == ()


def test_a_program_without_fault_does_not_diverge(tmp_path):
    """Every collective that gloo records, some with parts that only the root has, and a group of two."""

    def worker(folder):
        rank, ranks, one = dist.get_rank(), dist.get_world_size(), torch.ones
        two = dist.new_group([0, 1])
        dist.all_reduce(one(2, 3) if rank else one(6))
        dist.broadcast(one(3), 0)
        dist.reduce(one(3), 0)
        dist.all_gather([one(2) for _ in range(ranks)], one(2))
        dist.gather(one(2), [one(2) for _ in range(ranks)] if rank == 0 else None)
        dist.scatter(one(2), [one(2) for _ in range(ranks)] if rank == 0 else None)
        dist.reduce_scatter(one(2), [one(2) for _ in range(ranks)])
        given, taken = list(range(1, ranks + 1)), [rank + 1] * ranks
        dist.all_to_all_single(one(sum(taken)), one(sum(given)), taken, given)
        dist.all_gather_object([None] * ranks, "x" * rank)
        dist.broadcast_object_list([rank], 0)
        if rank == 0:
            dist.send(one(2), 1)
        elif rank == 1:
            dist.recv(one(2), 0)
        if rank < 2:
            dist.all_reduce(one(2), group=two)
        dist.barrier()
        dist.monitored_barrier()
        write_dump(folder)

    dumps, how = hang(tmp_path, worker)
    assert how == ["returned"] * 3
    assert compare(dumps) is None
    assert compare_lines(dumps) is None
    assert dumps[0].members == {"0": (0, 1, 2), "1": (0, 1)}
    assert len(dumps[0].calls) > 15


def test_a_standstill_is_written_while_it_lasts(tmp_path):
    needs(torch="2.11")

    def worker(folder):
        with dump_when_stuck(folder, 0.3):
            dist.all_reduce(torch.ones(7))
            seen = []
            while dist.get_rank() == 1 and seen != ["rank0", "rank1"]:
                time.sleep(0.01)
                seen = sorted(os.listdir(folder))
            dist.all_reduce(torch.ones(3))  # rank 0 stood still in it
            return seen

    assert [ending.value for ending in postmortem(worker, 2, str(tmp_path), timeout_s=PATIENCE_S)] == [
        [],
        ["rank0", "rank1"],
    ]


@pytest.mark.parametrize("call", [write_dump, lambda folder: dump_when_stuck(folder).__enter__(), None])
def test_gloo_on_a_torch_that_records_nothing_of_it_is_refused(tmp_path, call):
    """Never an empty dump, nor an empty list. (Where torch records gloo, an older one is pretended.)"""

    def worker(folder):
        if torch.__version__ >= (2, 11):
            torch.__version__ = type(torch.__version__)("2.10.0")
        dist.all_reduce(torch.ones(7))
        flight_records() if call is None else call(folder)

    with pytest.raises(LaunchError, match=r"RuntimeError: torch 2\.\d+\S* keeps no flight record of gloo"):
        launch(worker, 2, tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_needs_a_process_group():
    with pytest.raises(RuntimeError, match="no process group"):
        write_dump("/nowhere")
    with pytest.raises(RuntimeError, match="no process group"), dump_when_stuck("/nowhere"):
        pass
    with pytest.raises(ValueError, match="after_s must be a positive number"), dump_when_stuck("/nowhere", 0):
        pass


# -- dumps made by hand -----------------------------------------------------------------------------


def entry(number, operation="all_reduce", size=4, dtype="Float", group="0", line=10, backend="nccl", **more):
    sizes, dtypes = ([], []) if operation == "barrier" else ([[size]], [dtype])
    return {
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "record_id": number - 1,
        "is_p2p": False,
        "process_group": (group, {"0": "default_pg"}.get(group, "undefined")),
        "profiling_name": f"{backend}:{operation}",
        "input_sizes": sizes,
        "output_sizes": sizes,
        "input_dtypes": dtypes,
        "output_dtypes": dtypes,
        "state": "scheduled",
        "time_created_ns": number * 1000,
        "frames": [
            {"name": "all_reduce", "filename": "/env/site-packages/torch/distributed/distributed_c10d.py", "line": 1},
            {"name": "step", "filename": "/home/me/train.py", "line": line},
        ],
    } | more


def put(folder, rank, entries, groups=None, prefix="nccl_trace_rank_", **more):
    config = {
        name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(ranks)}
        for name, ranks in (groups or {}).items()
    }
    content = {"version": "2.10", "pg_config": config, "entries": entries, "pg_status": {}} | more
    (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"size": 8}, ("sizes",)),
        ({"dtype": "Double"}, ("dtypes",)),
        ({"operation": "barrier"}, ("operation",)),
        ({"size": 8, "dtype": "Half"}, ("sizes", "dtypes")),
    ],
)
def test_what_differs(tmp_path, changed, differs):
    for rank in range(4):
        put(tmp_path, rank, [entry(1), entry(2, **(changed if rank == 3 else {}))])
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.kind, divergence.number, divergence.ranks, divergence.differs) == ("mismatch", 2, (3,), differs)
    assert "ranks 0–2: all_reduce of 4 Float at train.py:10 in step" in str(divergence)


def test_an_overwritten_ring_buffer_is_compared_where_it_overlaps(tmp_path):
    put(tmp_path, 0, [entry(n) for n in range(50, 100)])
    put(tmp_path, 1, [entry(n) for n in range(70, 99)])
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.kind, divergence.number, divergence.ranks) == ("missing", 99, (0, 1))


def test_a_rank_so_far_behind_that_the_others_have_overwritten_its_place(tmp_path):
    put(tmp_path, 0, [entry(n) for n in range(50, 100)])
    put(tmp_path, 1, [entry(n) for n in range(40, 100)])
    put(tmp_path, 2, [entry(n) for n in range(1, 45)])
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.kind, divergence.number, divergence.ranks) == ("missing", 45, (2,))
    assert "rank 0: issued it, but the recorder has overwritten what it was" in str(divergence)
    assert "rank 1: all_reduce" in str(divergence)


def test_a_rank_whose_buffer_lost_a_group_is_not_blamed_there(tmp_path):
    groups = {"0": [0, 1], "1": [0, 1]}
    put(tmp_path, 0, [entry(7, group="1"), *(entry(n) for n in range(8, 20))], groups)
    put(tmp_path, 1, [entry(n) for n in range(8, 20)], groups)
    assert compare(read_dumps(tmp_path)) is None


def test_each_group_counts_for_itself_and_members_only(tmp_path):
    groups = {"0": [0, 1, 2], "1": [0, 1]}
    for rank in range(3):
        own = [entry(1, group="1", size=2), entry(2, group="1", size=2)] if rank == 0 else []
        own = [entry(1, group="1", size=2)] if rank == 1 else own
        put(tmp_path, rank, [entry(1), *own], groups)
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.kind, divergence.group, divergence.number) == ("missing", "1", 2)
    assert divergence.absent == (1,)
    assert all(2 not in side.ranks for side in divergence.sides)


def test_different_groups_show_as_one_missing_with_what_the_other_did_instead(tmp_path):
    groups = {"0": [0, 1], "1": [0, 1]}
    put(tmp_path, 0, [entry(1), entry(2)], groups)
    put(tmp_path, 1, [entry(1), entry(1, group="1", time_created_ns=9000, record_id=1)], groups)
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.group, divergence.number) == ("0", 2)
    assert "rank 1: never issued it; the last was 1 of group 1: all_reduce" in str(divergence)


def test_the_first_divergence_in_time_is_the_one_returned(tmp_path):
    late = {"time_created_ns": 99_000}
    put(tmp_path, 0, [entry(1, group="a"), entry(1, group="b", size=5, **late)])
    put(tmp_path, 1, [entry(1, group="a", size=3), entry(1, group="b", size=6, **late)])
    assert compare(read_dumps(tmp_path)).group == "a"


def test_a_swapped_order_is_noted(tmp_path):
    put(tmp_path, 0, [entry(1), entry(2, "broadcast")])
    put(tmp_path, 1, [entry(1, "broadcast"), entry(2)])
    put(tmp_path, 2, [entry(1), entry(2, "broadcast")])
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.kind, divergence.number, divergence.ranks) == ("mismatch", 1, (1,))
    assert "the order is swapped" in divergence.notes[0]


def test_a_collective_left_out_shifts_what_follows(tmp_path):
    sizes = [1, 2, 3, 4, 5]
    put(tmp_path, 0, [entry(n, size=s) for n, s in enumerate(sizes, 1)])
    put(tmp_path, 1, [entry(n, size=s) for n, s in enumerate(sizes, 1)])
    put(tmp_path, 2, [entry(n, size=s) for n, s in enumerate([1, 3, 4, 5], 1)])
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.number, divergence.ranks) == (2, (2,))
    assert divergence.notes == ("rank 2 issued as 2 what ranks 0, 1 issued as 3: something is missing before",)


def test_ranks_without_a_dump_are_named(tmp_path, capsys):
    for rank in (0, 2):
        put(tmp_path, rank, [entry(1)], {"0": [0, 1, 2, 3]})
    assert without_dump(read_dumps(tmp_path)) == (1, 3)
    report_dumps(tmp_path)
    assert "No dump of ranks 1, 3" in capsys.readouterr().out


def test_dumps_without_a_collective_show_nothing_and_say_why(tmp_path, capsys):
    """As gloo's are before torch 2.11."""
    for rank in range(2):
        put(tmp_path, rank, [], {"0": [0, 1]})
    report_dumps(tmp_path)
    printed = capsys.readouterr().out
    assert "nothing to compare" in printed
    assert "do not diverge" not in printed


def test_messages_and_coalesced_collectives(tmp_path):
    sent = entry(1, "send 0->1", is_p2p=True)
    put(tmp_path, 0, [sent, entry(1, size=3), entry(1, size=4), entry(2)])
    put(tmp_path, 1, [entry(1, size=3), entry(1, size=4), entry(2)])
    assert compare(read_dumps(tmp_path)) is None


def test_says_what_did_not_complete_where_the_backend_knows(tmp_path, capsys):
    for rank in range(2):
        put(tmp_path, rank, [entry(1, state="completed"), entry(2, state="started" if rank else "scheduled")])
    report_dumps(tmp_path)
    assert "rank 1: the first that did not complete is 2: all_reduce" in capsys.readouterr().out


def test_json_is_one_object_with_the_same_verdict(tmp_path, capsys):
    put(tmp_path, 0, [entry(1)])
    put(tmp_path, 1, [entry(1, size=5)])
    report_dumps(tmp_path)
    text = capsys.readouterr().out
    assert report_dumps(tmp_path, as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] + "\n" == text
    assert answer["divergence"]["ranks"] == [0, 1]
    assert answer["divergence"]["sides"][1]["call"]["inputs"] == [[5]]


# -- files that are no dumps --------------------------------------------------------------------------


def dump_bytes(**more):
    return pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [entry(1)]} | more, protocol=2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"not a pickle at all", "it is not a pickle"),
        (b"\x80\x02" + bytes(range(256)), "damaged or cut off|more than plain data"),
        (dump_bytes()[:-40], "damaged or cut off"),
        (dump_bytes()[:3], "damaged or cut off"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "it is damaged"),
        (pickle.dumps([1, 2]), "it has no version"),
        (dump_bytes(version="3.0"), "its format is version '3.0', and this reads version 2"),
        (dump_bytes(version=2), "its format is version 'int'"),
        (pickle.dumps({"version": "2.10"}), "it has no entries"),
        (dump_bytes(entries=[{}]), "unknown form"),
        (dump_bytes(entries=[entry(1, input_sizes=7)]), "unknown form"),
        (dump_bytes(entries=[entry(1, profiling_name=None)]), "unknown form"),
        (dump_bytes(pg_config={"0": 1}), "unknown form"),
    ],
)
def test_one_line_names_the_file_that_is_no_dump(tmp_path, content, why):
    put(tmp_path, 0, [entry(1)])
    bad = tmp_path / "nccl_trace_rank_1"
    bad.write_bytes(content)
    with pytest.raises(DumpError, match=why) as caught:
        read_dumps(tmp_path)
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput):
        report_dumps(tmp_path)


class Evil:
    """A pickle that would create a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    (tmp_path / "rank0").write_bytes(pickle.dumps({"version": "2.10", "entries": [Evil(str(mark))]}, protocol))
    with pytest.raises(DumpError, match=r"more than plain data|it is not a pickle"):
        read_dumps(tmp_path)
    assert not mark.exists()


def test_which_files_are_dumps(tmp_path):
    with pytest.raises(DumpError, match="does not exist"):
        read_dumps(tmp_path / "nowhere" / "at-all")
    with pytest.raises(DumpError, match=r"there is no folder .*nowhere, and no file .*nowhere0"):
        read_dumps(tmp_path / "nowhere")
    with pytest.raises(DumpError, match="holds no dump"):
        read_dumps(tmp_path)
    (tmp_path / "log.txt").write_text("passed over")
    (tmp_path / ".rank0.123.part").write_text("passed over")
    (tmp_path / "checkpoint7").mkdir()
    put(tmp_path, 0, [entry(1)], prefix="run_a_")
    put(tmp_path, 12, [entry(1)], prefix="run_a_")
    assert [dump.rank for dump in read_dumps(tmp_path)] == [0, 12]
    assert [dump.rank for dump in read_dumps(tmp_path / "run_a_")] == [0, 12]
    with pytest.raises(DumpError, match="is a file"):
        read_dumps(tmp_path / "log.txt")
    put(tmp_path, 0, [entry(1)], prefix="run_b_")
    with pytest.raises(DumpError, match="two dumps of rank 0, run_a_0 and run_b_0"):
        read_dumps(tmp_path)


def test_reading_needs_no_torch(tmp_path):
    put(tmp_path, 0, [entry(1)])
    put(tmp_path, 1, [entry(1, size=5)])
    code = f"""
import sys
sys.modules["torch"] = None  # importing it now fails
sys.path.insert(0, {str(os.path.dirname(os.path.dirname(sys.modules["ddplab"].__file__)))!r})
import types
package = types.ModuleType("ddplab")
package.__path__ = [sys.path[0] + "/ddplab"]
sys.modules["ddplab"] = package
import ddplab.cli.flight
from ddplab.flight import compare, read_dumps
print(compare(read_dumps({str(tmp_path)!r})).ranks)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "(0, 1)\n"
