"""What the debugging tools show of ranks that really hang or fail, and what they do not."""

import datetime
import faulthandler
import json
import os
import re
import signal
import sys
import textwrap
import threading
import time
import traceback
from functools import partial

import torch
import torch.distributed as dist
from patience import patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.flight import compare, compare_lines, dump_when_stuck, read_dumps, write_dump
from ddplab.labs.postmortem import report
from ddplab.runtime.torch_private import flight_dump
from tools import PATIENCE_S


def seconds(s):
    return datetime.timedelta(seconds=s)


@proves("tool-timeout-of-the-group")
def test_a_collective_has_the_timeout_of_its_group_and_a_new_group_that_of_the_backend():
    """Three groups, three timeouts, as the recorder keeps them; cut to 0.5 s, one ends the wait, and is then broken."""

    def worker():
        own, silent = dist.new_group(backend="gloo", timeout=seconds(700)), dist.new_group(backend="gloo")
        one, raised = torch.ones(1), []
        for group in (dist.group.WORLD, silent, own):
            dist.all_reduce(one, group=group)
        timeouts = [entry["timeout_ms"] for entry in flight_dump()["entries"]]
        shorten(own, 0.5)
        if dist.get_rank() == 0:
            for _ in range(2):
                try:
                    dist.all_reduce(one, group=own)
                except RuntimeError as error:
                    raised.append(str(error))
        dist.barrier()
        return timeouts, raised

    endings = postmortem(worker, 2, group_timeout_s=800)
    assert [e.how for e in endings] == ["returned"] * 2, report(endings)
    timeouts, raised = endings[0].value
    assert timeouts == [800_000, 1_800_000, 700_000]
    assert "Timed out waiting 500ms" in raised[0]
    assert len(raised) == 2
    assert "Timed out" not in raised[1]


@proves("tool-debug-detail")
def test_detail_names_both_collectives_on_every_rank_unless_their_fingerprints_are_equal():
    """All ranks name a mismatch in size under DETAIL, none under OFF and INFO; nobody an equal-size swap."""

    def sizes():
        dist.all_reduce(torch.ones(8 if dist.get_rank() == 1 else 4), group=dist.new_group(backend="gloo"))

    def swapped():
        group, loss, accuracy = dist.new_group(backend="gloo"), torch.tensor([10.0]), torch.tensor([0.5])
        for value in (loss, accuracy) if dist.get_rank() else (accuracy, loss):
            dist.all_reduce(value, group=group)
        return loss.item()

    levels = ("OFF", "INFO", "DETAIL")
    runs = side_by_side(*(partial(postmortem, sizes, 2, env={"TORCH_DISTRIBUTED_DEBUG": level}) for level in levels))
    for level, endings in zip(levels, runs, strict=True):
        named = ["TensorShape=[8]" in e.error and "TensorShape=[4]" in e.error for e in endings]
        assert named == [level == "DETAIL"] * 2, report(endings)
    endings = postmortem(swapped, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert [e.value for e in endings] == [10.5, 10.5], report(endings)  # and not 20


@proves("tool-flight-comparator")
def test_the_comparator_names_rank_collective_and_line_of_a_real_hang(tmp_path):
    """One rank skips a DDP step alone: its dump and the others' part at that step, each with the line it stands in."""

    def worker(folder):
        rank, group = dist.get_rank(), patient_group()
        model = DDP(nn.Linear(4, 1), process_group=group)
        with dump_when_stuck(folder, after_s=0.5):
            for step in range(4):
                if step == 2:
                    shorten(group, 2)  # all have done two steps
                dist.broadcast(torch.zeros(1), src=0, group=group)
                loss = model(torch.ones(2, 4)).sum()
                if not (rank == 1 and step == 2):
                    loss.backward()

    endings = postmortem(worker, 3, str(tmp_path))
    assert [e.how for e in endings] == ["raised"] * 3, report(endings)
    divergence = compare(read_dumps(tmp_path))
    assert (divergence.kind, divergence.ranks, divergence.differs) == ("mismatch", (1,), ("operation",))
    others, one = divergence.sides
    assert (others.ranks, others.call.operation, others.call.inputs) == ((0, 2), "all_reduce", ((5,),))
    assert (one.call.operation, one.call.inputs) == ("broadcast", ((1,),))
    lines = [int(re.search(r"test_debugging_tools\.py:(\d+)", side.call.place)[1]) for side in divergence.sides]
    assert lines[0] - lines[1] == 3  # from the broadcast to the backward


@proves("tool-flight-comparator-lines")
def test_the_comparator_shows_a_swap_that_nothing_else_shows(tmp_path):
    """Two equal all-reduces in swapped order raise nothing; the recorded lines differ between the ranks."""

    def worker(folder):
        def loss():
            dist.all_reduce(torch.ones(1))

        def accuracy():
            dist.all_reduce(torch.ones(1))

        for call in (loss, accuracy) if dist.get_rank() else (accuracy, loss):
            call()
        write_dump(folder)

    endings = postmortem(worker, 3, str(tmp_path))
    assert [e.how for e in endings] == ["returned"] * 3, report(endings)
    dumps = read_dumps(tmp_path)
    assert compare(dumps) is None
    divergence = compare_lines(dumps)
    assert (divergence.number, divergence.ranks) == (1, (0,))


@proves("tool-analyser-needs-members")
def test_torchs_analyser_fails_on_gloos_dump_as_it_is_and_reads_it_with_the_members_added(tmp_path):
    """The same hang, dumped twice: as torch writes it the analyser raises KeyError, with members it names the rank."""

    def analyse(folder):
        def analyser():
            from torch.distributed.flight_recorder.fr_trace import main

            main([str(folder), "--prefix", "rank"])

        return postmortem(analyser, 1, init=False)

    def worker(raw, full):
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(3), async_op=True)
        with open(f"{raw}/rank{dist.get_rank()}", "wb") as file:
            file.write(torch._C._distributed_c10d._dump_fr_trace())
        write_dump(full)

    folders = [tmp_path / "raw", tmp_path / "full"]
    folders[0].mkdir()
    endings = postmortem(worker, 2, *map(str, folders))
    assert [e.how for e in endings] == ["returned"] * 2, report(endings)
    (as_it_is,), (with_members,) = side_by_side(*(partial(analyse, folder) for folder in folders))
    assert as_it_is.how == "raised"
    assert as_it_is.error.startswith("KeyError")
    assert with_members.how == "returned"
    assert "missing ranks: {1}" in with_members.printed


@proves("tool-stacks-from-inside")
def test_faulthandler_writes_the_stack_of_a_rank_that_waits_and_python_handlers_do_not_run(tmp_path):
    """A rank waits in an all-reduce: faulthandler's dump names the line at once, a handler in Python stays silent."""

    def functions_of(thread):
        frames = traceback.walk_stack(sys._current_frames()[thread.ident])
        return [frame.f_code.co_name for frame, _ in frames]

    def worker(folder):
        rank, group = dist.get_rank(), patient_group()
        stacks, handled = f"{folder}/{rank}.stacks", []

        def mean_loss():
            dist.all_reduce(torch.ones(1), group=group)

        if rank == 0:
            with open(stacks, "w") as file:
                faulthandler.register(signal.SIGUSR2, file=file)
                signal.signal(signal.SIGTERM, lambda *_: handled.append("ran"))

                def poke():
                    while "all_reduce" not in functions_of(threading.main_thread()):
                        time.sleep(0.01)
                    os.kill(os.getpid(), signal.SIGUSR2)
                    while not silent:  # a first signal may come before the wait has begun
                        handled.clear()
                        os.kill(os.getpid(), signal.SIGTERM)
                        time.sleep(0.2)  # a handler that could run would
                        if not handled:
                            silent.append(True)
                    open(f"{folder}/go", "w").close()

                silent = []
                threading.Thread(target=poke).start()
                mean_loss()
                return silent, open(stacks).read()
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.02)
        mean_loss()
        return None

    endings = postmortem(worker, 2, str(tmp_path))
    assert [e.how for e in endings] == ["returned"] * 2, report(endings)
    silent, stack = endings[0].value
    assert silent == [True]
    assert re.search(r"in all_reduce\n(.*\n)*.*in mean_loss\n", stack), stack


@proves("tool-error-file")
def test_only_with_record_the_error_file_has_the_exception_of_the_rank_that_failed(tmp_path):
    """Under torchrun one of two ranks raises: with @record the file names it, without there is no file."""
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(f"""
        import os, sys, time
        def main():
            if os.environ["RANK"] == "1":
                raise FileNotFoundError("no shard 1")
            time.sleep({PATIENCE_S})
        if os.environ["RANK"] == "1" and "record" in sys.argv:
            from torch.distributed.elastic.multiprocessing.errors import record
            main = record(main)
        main()
        """)
    )

    def torchrun(file, *arguments):
        def agent():
            from torch.distributed.run import main

            main(["--standalone", "--nproc-per-node=2", str(program), *arguments])

        (ending,) = postmortem(agent, 1, init=False, env={"TORCHELASTIC_ERROR_FILE": str(file)})
        assert ending.how == "raised"
        return ending

    files = [tmp_path / "without.json", tmp_path / "with.json"]
    without, recorded = side_by_side(lambda: torchrun(files[0]), lambda: torchrun(files[1], "record"))
    assert [file.exists() for file in files] == [False, True]
    assert "To enable traceback see" in without.error
    assert "To enable traceback see" not in recorded.error
    error = json.loads(files[1].read_text())["message"]
    assert error["message"] == "FileNotFoundError: no shard 1"
    assert str(program) in error["extraInfo"]["py_callstack"]
