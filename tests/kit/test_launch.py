"""launch: results, lanes, time bounds, blame, and nothing left behind."""

import datetime
import gc
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
import torch.distributed as dist

from ddplab import LaunchError, launch, record

HERE = "value from the test module"


def left_over() -> list[psutil.Process]:
    """Every process below the fork server, once what was killed has been reaped."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    deadline = time.monotonic() + 5
    while (found := psutil.Process(server).children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_results_come_back_in_rank_order_and_the_group_is_ready():
    def worker(base):
        total = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(total)
        return base + dist.get_rank(), total.item()

    assert launch(worker, 3, 10) == [(10, 3.0), (11, 3.0), (12, 3.0)]


def test_worker_travels_with_what_it_needs_from_its_module():
    assert launch(lambda: (HERE, os.environ["LOCAL_RANK"]), 2) == [(HERE, "0"), (HERE, "1")]


def test_prints_one_lane_per_rank(capfd):
    def worker():
        print("first")
        os.write(2, b"second, past Python\n")

    launch(worker, 2)
    assert capfd.readouterr().out == "".join(f"rank {r} │ first\nrank {r} │ second, past Python\n" for r in (0, 1))


@pytest.mark.parametrize("nproc", [0, -1, 1.5, "2", True])
def test_refuses_a_number_of_ranks_that_is_none(nproc):
    with pytest.raises(ValueError, match=r"nproc must be a whole number of ranks, at least 1; got"):
        launch(lambda: None, nproc)


def test_refuses_a_time_bound_that_is_none():
    with pytest.raises(ValueError, match="timeout_s must be a positive number"):
        launch(lambda: None, 2, timeout_s=0)


def test_raises_with_the_traceback_of_the_rank_that_failed_first():
    def worker():
        if dist.get_rank() == 1:
            raise KeyError("the cause")
        dist.barrier()

    with pytest.raises(LaunchError, match="rank 1 of 3 failed first") as caught:
        launch(worker, 3)
    assert 'raise KeyError("the cause")' in str(caught.value)
    assert caught.value.rank == 1
    assert not left_over()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os._exit(3), "exited with code 3"),
        (lambda: os.abort(), "was killed by SIGABRT"),
    ],
)
def test_blames_the_rank_that_died_not_the_one_that_lost_its_connection(how, said):
    def worker():
        if dist.get_rank() == 1:
            print("last words", flush=True)
            how()
        dist.all_reduce(torch.ones(1))

    with pytest.raises(LaunchError, match=f"rank 1 {said} before its worker returned") as caught:
        launch(worker, 2)
    assert "last words" in str(caught.value)
    assert not left_over()


def test_a_hang_ends_at_the_time_bound_and_says_where_each_rank_is():
    def worker():
        patient = dist.new_group(timeout=datetime.timedelta(minutes=1))  # on a busy machine the bound comes late
        if dist.get_rank() == 0:
            dist.barrier(patient)
        else:
            time.sleep(60)

    start = time.monotonic()
    with pytest.raises(LaunchError, match="rank 0, 1 of 2 still ran after 4 s") as caught:
        launch(worker, 2, timeout_s=4)  # in less a busy machine may not come to the worker
    assert time.monotonic() - start < 20
    assert "in barrier" in str(caught.value)
    assert "rank 1 hangs here" in str(caught.value)
    assert not left_over()


def test_a_stopped_rank_and_what_it_started_are_killed():
    def worker():
        if dist.get_rank() == 1:
            subprocess.Popen(["sleep", "4321"])
            os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(LaunchError):
        launch(worker, 2, timeout_s=2)
    assert not left_over()
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4321"]]


def test_nothing_outlives_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            from ddplab import launch

            def worker(folder):
                open(f"{folder}/{os.getpid()}.{os.getppid()}.pid", "w").close()
                time.sleep(300)

            launch(worker, 2, os.path.dirname(__file__))
            """
        )
    )
    with subprocess.Popen([sys.executable, str(script)]) as parent:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = {int(pid) for path in tmp_path.glob("*.pid") for pid in path.stem.split(".")}
        assert len(pids) == 3, "two ranks and their fork server"
        parent.kill()
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in pids if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in alive if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_init_false_leaves_the_process_group_to_the_worker():
    def worker():
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        return dist.get_world_size()

    assert launch(worker, 2, init=False) == [2, 2]


def test_variables_reach_torch_although_the_fork_server_imported_it_before():
    def worker():
        return dist.get_debug_level().name

    assert launch(worker, 2, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"}) == ["INFO", "INFO"]
    assert launch(worker, 2) == ["OFF", "OFF"]


def test_ranks_have_the_threads_that_torchrun_would_give_them(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    worker = lambda: (os.environ["OMP_NUM_THREADS"], torch.get_num_threads())  # noqa: E731
    assert launch(worker, 2) == [("1", 1), ("1", 1)]
    assert launch(worker, 1, env={"OMP_NUM_THREADS": "3"}) == [("3", 3)]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert launch(worker, 2) == [("2", 2), ("2", 2)]


@pytest.mark.parametrize(("taken", "said"), [(signal.SIGUSR1, "in worker"), (signal.SIGUSR2, "has taken SIGUSR2")])
def test_a_hang_is_shown_although_the_worker_takes_signals(taken, said):
    def worker(taken):
        signal.signal(taken, lambda number, frame: None)
        time.sleep(60)

    with pytest.raises(LaunchError, match=said):
        launch(worker, 1, taken, timeout_s=4)


def test_ctrl_c_ends_what_was_started_however_early_it_comes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import signal, threading
            from ddplab import launch, launcher

            class Early(launcher._Rank):
                def __init__(self, *args):
                    super().__init__(*args)
                    signal.raise_signal(signal.SIGINT)  # started, and known to nobody yet
                    Early.last = self

            launcher._Rank = Early
            try:
                launch(lambda: __import__("time").sleep(300), 2)
            except KeyboardInterrupt:
                print("ended with", Early.last.process.exitcode)
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("ended with -9\n", "")


def test_a_result_that_cannot_be_sent_is_named():
    with pytest.raises(LaunchError, match="returned a value that cannot be sent"):
        launch(lambda: sys._getframe(), 1)


def test_large_results_arrive_whole():
    assert [t.sum().item() for t in launch(lambda: torch.ones(4_000_000), 2)] == [4e6, 4e6]


def test_record_belongs_to_the_script_not_to_a_rank():
    with pytest.raises(LaunchError, match="was called inside a rank"):
        launch(lambda: record(unit="ms", gap=1.0), 1)


def test_a_script_runs_alone(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from ddplab import launch\ndef worker():\n    return 7\nprint(launch(worker, 2))\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[7, 7]\n"), done.stderr


@pytest.mark.timeout(3600)
def test_many_launches_never_flake_and_leave_nothing():
    """Set LAUNCHES=1000 (make torture) for the full size."""

    def worker():
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    launch(worker, 2, quiet=True)
    gc.collect()  # it may hold files of earlier tests
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(int(os.environ.get("LAUNCHES", "40"))):
        assert launch(worker, 2, quiet=True) == [2.0, 2.0]
    assert not left_over()
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_launches_run_side_by_side_in_threads():
    """Each hears how its own ranks ended; the fork server outlives the thread that was the first to need it."""

    def worker(number):
        dist.barrier()
        if number % 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    def started_in_a_thread(number):
        try:
            return launch(worker, 2, number, quiet=True)
        except LaunchError as error:
            return error.rank, "was killed by SIGKILL" in str(error)

    multiprocessing.forkserver._forkserver._stop()
    for _ in range(2):  # in new threads, when those that began have ended
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(started_in_a_thread, range(4))) == [[0, 0], (1, True), [2, 2], (1, True)]
    assert not left_over()
