"""The fault lab, launch, processes, data and files: what every rank says when one of them is in trouble."""

import datetime
import multiprocessing
import os
import re
import runpy
import signal
import socket
import sys
import threading
import time
from functools import partial

import torch
import torch.distributed as dist
from patience import launch, postmortem
from proof import proves, side_by_side
from torch.utils.data import DataLoader, Dataset

from tools import PATIENCE_S, free_port


def ends(worker, nproc, *args, init=True, env=None):
    """How each rank of a run ends in which a rank that is done leaves."""
    return postmortem(worker, nproc, *args, init=init, env=env, leave=True)


def python(program):
    """How Python runs a file, and what it prints; it is forked, and need not import torch again."""

    def run():
        multiprocessing.current_process().daemon = False  # as ranks below ``launch`` are, and may have no children
        runpy.run_path(program, run_name="__main__")

    (ending,) = postmortem(run, 1, init=False)
    return ending


def torchrun(folder, text, *options, env=None):
    """What torchrun and two ranks of a program print; torchrun itself is forked, and need not import torch again."""
    folder.mkdir()
    (folder / "program.py").write_text(text)

    def agent():
        from torch.distributed.run import main

        os.chdir(folder)
        main(["--standalone", "--nproc-per-node=2", *options, "program.py"])

    env = {"PYTHONUNBUFFERED": "", "TMPDIR": str(folder), **(env or {})}
    (ending,) = postmortem(agent, 1, init=False, env=env)
    assert ending.how == "raised"
    assert ending.error.startswith("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")
    return ending.printed + ending.error


kept = []


def enter(folder, **options):
    """Once all ranks are here, join the group, which will not succeed; return why.

    From here to the store each rank has a few steps, and some seconds for them.
    """
    (folder / os.environ["LOCAL_RANK"]).touch()
    while len(list(folder.iterdir())) < int(os.environ["LOCAL_WORLD_SIZE"]):
        time.sleep(0.01)
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5), **options)
    except (dist.DistError, ValueError) as error:
        kept.append(error)  # and with it rank 0's store, until the others have said why, too
        return str(error)


def entered(join, folder, ranks, *args):
    """What each rank of ``join(folder, *args)`` says; a rank that is done stays."""
    folder.mkdir()
    endings = postmortem(join, ranks, folder, *args, init=False)
    assert {e.how for e in endings} == {"returned"}
    return [e.value for e in endings]


# -- the start --------------------------------------------------------------------------------------


@proves("fault-port-taken")
def test_the_new_rank_1_joins_the_rank_0_that_was_left(tmp_path):
    """A rank 0 of an earlier run waits at the port: the new rank 0 is refused, the new rank 1 computes with the old."""

    def last_run():
        dist.init_process_group("gloo")
        total = torch.tensor(100)
        dist.all_reduce(total)
        return total.item()

    def train():
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        while socket.socket().connect_ex(place):  # until rank 0 of the last run waits
            time.sleep(0.05)
        while os.environ["RANK"] == "1" and not refused_already.exists():  # or the last run would be over
            time.sleep(0.05)
        try:
            dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE_S))
        except dist.DistNetworkError:
            refused_already.touch()
            raise
        total = torch.tensor(1)
        dist.all_reduce(total)
        return total.item()

    refused_already = tmp_path / "refused"
    port = {"MASTER_PORT": str(free_port())}
    (leftover,), (refused, joined) = side_by_side(
        lambda: ends(last_run, 1, init=False, env={**port, "WORLD_SIZE": "2"}),
        lambda: ends(train, 2, init=False, env=port),
    )
    assert refused.how == "raised"
    assert "EADDRINUSE" in refused.error
    assert joined.value == leftover.value == 101


@proves("fault-missing-variables")
def test_only_the_rank_that_lacks_a_variable_names_it(tmp_path):
    """One rank of three lacks a variable: it says so; the others wait for the store or for rank 0 until the timeout."""

    def join(folder, name):
        if os.environ["RANK"] == "2":
            os.environ[name] = ""
        return enter(folder)

    names = ("RANK", "MASTER_ADDR")
    runs = side_by_side(*(partial(entered, join, tmp_path / name, 3, name) for name in names))
    for name, (zero, one, lacks) in zip(names, runs, strict=True):
        assert f"environment variable {name} expected, but not set" in lacks
        assert "2/3 clients joined" in zero
        assert "wait timeout" in one
        assert name not in zero + one


@proves("fault-world-size-too-large")
def test_the_others_name_rank_0_when_another_rank_is_missing(tmp_path):
    """One rank of three or four is missing: rank 0 has a count, all others wait for the key of rank 0."""

    def join(folder, ranks, missing):
        if int(os.environ["RANK"]) == missing:
            return "missing"
        os.environ["LOCAL_WORLD_SIZE"] = str(ranks - 1)
        return enter(folder)

    cases = ((3, 2), (4, 1))
    runs = side_by_side(*(partial(entered, join, tmp_path / str(case[0]), case[0], *case) for case in cases))
    for (ranks, missing), errors in zip(cases, runs, strict=True):
        assert f"{ranks - 1}/{ranks} clients joined" in errors[0]
        others = [error for rank, error in enumerate(errors) if rank not in (0, missing)]
        assert all(re.search(r"wait timeout after 5000ms, keys: \S+/0$", error) for error in others)


@proves("fault-duplicate-rank")
def test_all_wait_for_the_rank_that_nobody_has(tmp_path):
    """Ranks 0, 1, 1 of three: no error names rank 1, all name the key of rank 2. Two ranks 0: one is refused."""

    def join(folder, numbers):
        return enter(folder, rank=numbers[int(os.environ["RANK"])], world_size=len(numbers))

    twice_1, twice_0 = side_by_side(
        lambda: entered(join, tmp_path / "1", 3, [0, 1, 1]),
        lambda: entered(join, tmp_path / "0", 4, [0, 1, 0, 1]),
    )
    for error in twice_1:
        assert re.search(r"wait timeout after 5000ms, keys: \S+/2$", error)
    assert sum("EADDRINUSE" in error for error in twice_0) == 1
    assert sum("3/4 clients joined" in error for error in twice_0) == 1


@proves("fault-spawn-without-main-guard")
def test_without_the_guard_every_child_runs_the_file(tmp_path):
    """The file's first line runs in the parent and in each child, none of which trains; with the guard both train."""
    text = "import torch.multiprocessing as mp\nprint('reads')\ndef train(rank):\n    print('trains')\n"
    call, guard = "mp.spawn(train, nprocs=2)\n", "if __name__ == '__main__':\n    "
    (tmp_path / "without.py").write_text(text + call)
    (tmp_path / "with.py").write_text(text + guard + call)
    without, guarded = side_by_side(*(partial(python, tmp_path / f"{name}.py") for name in ("without", "with")))
    refused = without.printed.count("An attempt has been made to start a new process")
    assert without.how == "raised"
    assert refused > 0
    assert "trains" not in without.printed
    # Children print at once, so their lines may run together.
    assert len(re.findall(r"\breads", without.printed)) == 1 + refused
    assert guarded.how == "returned"
    assert len(re.findall(r"\btrains", guarded.printed)) == 2
    assert len(re.findall(r"\breads", guarded.printed)) == 1 + 2  # a child imports the file in any case


# -- processes --------------------------------------------------------------------------------------

RAISES = f"""
import os, time

def main():
    if os.environ["RANK"] == "1":
        raise ValueError("this is the reason")
    time.sleep({PATIENCE_S})

if os.environ["RANK"] == os.environ.get("WITH_RECORD"):
    from torch.distributed.elastic.multiprocessing.errors import record

    main = record(main)
main()
"""


@proves("fault-error-under-torchrun")
def test_the_report_has_the_reason_only_with_record(tmp_path):
    """Rank 1 raises: both reports blame it and give -15 for the other; the reason is in that with @record only."""
    plain, recorded = side_by_side(
        lambda: torchrun(tmp_path / "plain", RAISES),
        lambda: torchrun(tmp_path / "recorded", RAISES, env={"WITH_RECORD": "1"}),
    )
    for printed, has_reason in ((plain, False), (recorded, True)):
        assert "ValueError: this is the reason" in printed
        report, root = printed[printed.index(" FAILED\n") :].split("Root Cause")
        assert re.search(r"rank +: 0 .*\n +exitcode +: -15", report)
        assert re.search(r"rank +: 1 .*\n +exitcode +: 1 ", root)
        assert ("ValueError: this is the reason" in root) == has_reason


@proves("fault-lost-output")
def test_what_rank_0_printed_is_lost_when_it_is_ended(tmp_path):
    """Rank 1 fails after rank 0 has printed: the line is there under torchrun's own Python, which has -u, or with the
    variable; with another Python it is lost.
    """
    text = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    print('rank 0 is at step 3')\n"
        "    open('printed', 'w').close()\n"
        f"    time.sleep({PATIENCE_S})\n"
        "while not os.path.exists('printed'):\n"
        "    time.sleep(0.05)\n"
        "sys.exit(1)\n"
    )
    other_python = ["--no-python", sys.executable]
    own, other, unbuffered = side_by_side(
        lambda: torchrun(tmp_path / "own", text),
        lambda: torchrun(tmp_path / "other", text, *other_python),
        lambda: torchrun(tmp_path / "unbuffered", text, *other_python, env={"PYTHONUNBUFFERED": "1"}),
    )
    assert "rank 0 is at step 3" in own
    assert "rank 0 is at step 3" not in other
    assert "rank 0 is at step 3" in unbuffered


# -- data and files ---------------------------------------------------------------------------------


class Samples(Dataset):
    """Sixteen samples; ``read`` is called with each number first."""

    def __init__(self, read):
        self.read = read

    def __len__(self):
        return 16

    def __getitem__(self, i):
        self.read(i)
        return torch.full((1,), float(i))


def fork_loader(read, **options):
    """A loader with one forked worker; ranks below ``launch`` are daemons, which may have none."""
    multiprocessing.current_process().daemon = False
    return DataLoader(Samples(read), 4, num_workers=1, multiprocessing_context="fork", **options)


@proves("fault-data-worker-dies")
def test_only_the_rank_of_the_worker_names_it():
    """A worker of rank 1 is killed: rank 1's loader says so, rank 0 sees a closed connection."""

    def train(number):
        def read(i):
            if dist.get_rank() == 1:
                time.sleep(0.5)  # the rank waits for its batch by then
                os.kill(os.getpid(), number)

        dist.barrier()
        try:
            for batch in fork_loader(read):
                dist.all_reduce(batch)
        except RuntimeError as error:
            raise RuntimeError(f"{error} / {error.__cause__} / {error.__context__}") from None

    signals = ((signal.SIGKILL, "Killed"), (signal.SIGBUS, "Bus error"))
    runs = side_by_side(*(partial(ends, train, 2, number) for number, _ in signals))
    for (_, word), (peer, owner) in zip(signals, runs, strict=True):
        assert re.search(rf"DataLoader worker .*(is killed by signal: {word}|exited unexpectedly)", owner.error)
        assert re.search(r"Connection (closed|reset) by peer", peer.error)
        assert "DataLoader" not in peer.error


@proves("fault-fork-with-threads")
def test_a_lock_that_a_thread_holds_stays_locked_in_the_forked_worker():
    """The worker is forked while a thread has the lock, which it then releases: that rank hangs in its loader."""

    def train(thread, **options):
        lock, works, finish = threading.Lock(), threading.Event(), threading.Event()

        def work():
            with lock:
                works.set()
                finish.wait()

        def read(i):
            with lock:
                pass

        def start_thread():
            if dist.get_rank() == 1:
                threading.Thread(target=work, daemon=True).start()
                works.wait()

        if thread == "first":
            start_thread()
        batches = iter(fork_loader(read, **(options if dist.get_rank() == 1 else {})))
        if thread == "last":
            start_thread()
        finish.set()
        for batch in batches:
            dist.all_reduce(batch)
        return "done"

    done, (peer, owner) = side_by_side(
        lambda: launch(train, 2, "last"),
        lambda: ends(lambda: train("first", timeout=2), 2),  # without a timeout it waits for ever
    )
    assert done == ["done", "done"]
    assert "DataLoader timed out after 2 seconds" in owner.error
    assert owner.where.startswith("__next__")
    assert re.search(r"Connection (closed|reset) by peer", peer.error)
    assert peer.where.startswith("all_reduce")


@proves("fault-checkpoint-half-written")
def test_a_replaced_file_is_whole_at_any_moment(tmp_path):
    """Rank 1 loads while rank 0 writes a second time: in place it fails, with os.replace it gets the step before."""

    def look(path, atomic):
        if dist.get_rank() == 0:
            torch.save({"step": 1, "weights": torch.zeros(100_000)}, path)
            size = os.path.getsize(path)
        dist.barrier()
        if dist.get_rank() == 0:
            place = f"{path}.tmp" if atomic else path
            torch.save({"step": 2, "weights": torch.zeros(100_000)}, place)
            whole = open(place, "rb").read()  # noqa: SIM115
            with open(place, "wb") as file:
                file.write(whole[: size // 2])
                file.flush()
                dist.barrier()
                dist.barrier()
                file.write(whole[size // 2 :])
            if atomic:
                os.replace(place, path)
            dist.barrier()
            return torch.load(path)["step"]
        dist.barrier()
        try:
            during = torch.load(path)["step"]
        except RuntimeError as error:
            during = str(error)
        dist.barrier()
        dist.barrier()
        return during, torch.load(path)["step"]

    (plain, (during, after)), atomic = side_by_side(
        lambda: launch(look, 2, str(tmp_path / "plain.pt"), False),
        lambda: launch(look, 2, str(tmp_path / "atomic.pt"), True),
    )
    assert "PytorchStreamReader failed reading zip archive" in during
    assert plain == after == 2
    assert atomic == [2, (1, 2)]


@proves("fault-weights-only-refuses")
def test_safe_globals_belong_to_a_process(tmp_path):
    """Rank 0 allows a class and loads; rank 1 has the same file and is refused; plain types need no permission."""
    import argparse

    path = tmp_path / "old.pt"
    torch.save({"args": argparse.Namespace(lr=0.1)}, path)
    torch.save({"args": {"lr": 0.1}}, tmp_path / "new.pt")

    def load(path):
        if dist.get_rank() == 0:
            torch.serialization.add_safe_globals([argparse.Namespace])
        try:
            return type(torch.load(path)["args"]).__name__
        except Exception as error:
            return str(error)

    allowed, refused = launch(load, 2, path)
    assert allowed == "Namespace"
    assert "Weights only load failed" in refused
    assert "argparse.Namespace" in refused
    assert launch(load, 2, tmp_path / "new.pt") == ["dict", "dict"]
