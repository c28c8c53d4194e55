"""The fault lab, launch, processes, data and files: what every rank says when one of them is in trouble."""

import datetime
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from proof import proves
from torch.utils.data import DataLoader, Dataset

from ddplab import launch
from ddplab.postmortem import postmortem
from tools import free_port

CLEAN = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}


def ends(worker, nproc, *args, timeout_s=40.0, init=True, env=None):
    """How each rank of a run ends in which a rank that is done leaves."""
    return postmortem(worker, nproc, *args, timeout_s=timeout_s, init=init, env=env, leave=True)


def run(command, **options):
    """What a program printed, and its exit code."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **pipes, **options)
    try:
        return process.communicate(timeout=90)[0], process.returncode
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def torchrun(folder, text, *options, env=None):
    """Run a program under torchrun, as a user would."""
    (folder / "program.py").write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return run(
        [*command, *options, "program.py"],
        cwd=folder,
        env={**CLEAN, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), **(env or {})},
    )


def enter(**options):
    """Join the group, which will not succeed; rank 0, which has the store, stays until the others have spoken."""
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3), **options)
    except (dist.DistError, ValueError):
        time.sleep(2 if options.get("rank", int(os.environ["RANK"] or 9)) == 0 else 0)
        raise


# -- the start --------------------------------------------------------------------------------------


@proves("fault-port-taken")
def test_the_new_rank_1_joins_the_rank_0_that_was_left():
    """A rank 0 of an earlier run waits at the port: the new rank 0 is refused, the new rank 1 computes with the old."""
    last_run = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.tensor(100)\n"
        "dist.all_reduce(total)\n"
        "print(total.item(), flush=True)\n"  # gloo may abort at exit, when its peer has left
    )

    def train():
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
        total = torch.tensor(1)
        dist.all_reduce(total)
        return total.item()

    port = str(free_port())
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with subprocess.Popen([sys.executable, "-c", last_run], env=CLEAN | place, stdout=-1, text=True) as leftover:
        try:
            until = time.monotonic() + 60
            while socket.socket().connect_ex(("127.0.0.1", int(port))) and time.monotonic() < until:
                time.sleep(0.1)
            refused, joined = ends(train, 2, init=False, env={"MASTER_PORT": port})
            assert refused.how == "raised"
            assert "EADDRINUSE" in refused.error
            assert joined.value == int(leftover.stdout.read()) == 101
        finally:
            leftover.kill()


@proves("fault-missing-variables")
def test_only_the_rank_that_lacks_a_variable_names_it():
    """One rank of three lacks a variable: it says so; the others wait for the store or for rank 0 until the timeout."""

    def join(name):
        if os.environ["RANK"] == "2":
            os.environ[name] = ""
        enter()

    for name in ("RANK", "MASTER_ADDR"):
        zero, one, lacks = ends(join, 3, name, init=False)
        assert f"environment variable {name} expected, but not set" in lacks.error
        assert "2/3 clients joined" in zero.error
        assert "wait timeout" in one.error
        assert name not in zero.error + one.error


@proves("fault-world-size-too-large")
def test_the_others_name_rank_0_when_another_rank_is_missing():
    """One rank of three or four is missing: rank 0 has a count, all others wait for the key of rank 0."""

    def join(missing):
        if int(os.environ["RANK"]) != missing:
            enter()

    for ranks, missing in (3, 2), (4, 1):
        endings = ends(join, ranks, missing, init=False)
        assert f"{ranks - 1}/{ranks} clients joined" in endings[0].error
        others = [e for e in endings[1:] if e.rank != missing]
        assert all(re.search(r"wait timeout after 3000ms, keys: \S+/0$", e.error) for e in others)


@proves("fault-duplicate-rank")
def test_all_wait_for_the_rank_that_nobody_has():
    """Ranks 0, 1, 1 of three: no error names rank 1, all name the key of rank 2. Two ranks 0: one is refused."""

    def join(numbers):
        enter(rank=numbers[int(os.environ["RANK"])], world_size=len(numbers))

    for ending in ends(join, 3, [0, 1, 1], init=False):
        assert re.search(r"wait timeout after 3000ms, keys: \S+/2$", ending.error)
    errors = [ending.error for ending in ends(join, 4, [0, 1, 0, 1], init=False)]
    assert sum("EADDRINUSE" in error for error in errors) == 1
    assert sum("3/4 clients joined" in error for error in errors) == 1


@proves("fault-spawn-without-main-guard")
def test_without_the_guard_every_child_runs_the_file(tmp_path):
    """The file's first line runs in the parent and in each child, none of which trains; with the guard both train."""
    text = "import torch.multiprocessing as mp\nprint('reads')\ndef train(rank):\n    print('trains')\n"
    guard = "if __name__ == '__main__':\n    "
    for start, trains in ("mp.spawn(train, nprocs=2)\n", 0), (guard + "mp.spawn(train, nprocs=2)\n", 2):
        (tmp_path / "program.py").write_text(text + start)
        printed, code = run([sys.executable, "-u", tmp_path / "program.py"], env=CLEAN)
        assert (code == 0) == (trains == 2)
        assert printed.count("trains\n") == trains
        refused = printed.count("An attempt has been made to start a new process")
        assert (refused > 0) == (trains == 0)
        assert printed.splitlines().count("reads") == 1 + (refused or 2)  # a child imports the file in any case


# -- processes --------------------------------------------------------------------------------------

RAISES = """
import os
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@RECORD
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("this is the reason")
    dist.init_process_group("gloo")

main()
"""


@proves("fault-error-under-torchrun")
def test_the_report_has_the_reason_only_with_record(tmp_path):
    """Rank 1 raises: both reports blame it and give -15 for the other; the reason is in that with @record only."""
    for text, has_reason in (RAISES.replace("@RECORD", ""), False), (RAISES.replace("@RECORD", "@record"), True):
        printed, code = torchrun(tmp_path, text)
        assert code == 1
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
        "    time.sleep(60)\n"
        "while not os.path.exists('printed'):\n"
        "    time.sleep(0.05)\n"
        "os.unlink('printed')\n"
        "sys.exit(1)\n"
    )
    other_python = ["--no-python", sys.executable]
    for options, env, there in (
        ([], {}, True),
        (other_python, {}, False),
        (other_python, {"PYTHONUNBUFFERED": "1"}, True),
    ):
        printed, code = torchrun(tmp_path, text, *options, env=env)
        assert code == 1
        assert ("rank 0 is at step 3" in printed) == there


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
    import multiprocessing

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

    for number, word in (signal.SIGKILL, "Killed"), (signal.SIGBUS, "Bus error"):
        peer, owner = ends(train, 2, number)
        assert re.search(rf"DataLoader worker .*(is killed by signal: {word}|exited unexpectedly)", owner.error)
        assert re.search(r"Connection (closed|reset) by peer", peer.error)
        assert "DataLoader" not in peer.error


@proves("fault-fork-with-threads")
def test_a_lock_that_a_thread_holds_stays_locked_in_the_forked_worker():
    """The worker is forked while a thread has the lock, which it then releases: that rank hangs in its loader."""

    def train(thread):
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
        batches = iter(fork_loader(read))
        if thread == "last":
            start_thread()
        finish.set()
        for batch in batches:
            dist.all_reduce(batch)
        return "done"

    assert launch(train, 2, "last") == ["done", "done"]
    peer, owner = ends(train, 2, "first", timeout_s=8)
    assert [peer.how, owner.how] == ["hung", "hung"]
    assert peer.where.startswith("all_reduce")
    assert owner.where.startswith("__next__")


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

    zero, (during, after) = launch(look, 2, str(tmp_path / "plain.pt"), False)
    assert "PytorchStreamReader failed reading zip archive" in during
    assert zero == after == 2
    zero, (during, after) = launch(look, 2, str(tmp_path / "atomic.pt"), True)
    assert [during, after, zero] == [1, 2, 2]


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
