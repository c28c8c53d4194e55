"""launch: results, lanes, time bounds, blame, and nothing left behind."""

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
import torch.distributed as dist

from bounds import time_is_up_when
from ddplab import LaunchError, launch, record
from ddplab.runtime import ranks
from tools import PATIENCE_S, ended, wait_until

HERE = "value from the test module"


def left_over() -> list[psutil.Process]:
    """Every process below the fork server that is not reaped in time: what was killed takes a moment."""
    server = fork_server()
    wait_until(lambda: not server.children(recursive=True))
    return server.children(recursive=True)


def fork_server() -> psutil.Process:
    """The fork server of this process; there is one once a launch was made."""
    return next(child for child in psutil.Process().children() if "multiprocessing.forkserver" in str(child.cmdline()))


@pytest.mark.core
def test_results_come_back_in_rank_order_and_the_group_is_ready():
    def worker(base):
        total = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(total)
        return base + dist.get_rank(), total.item()

    assert launch(worker, 3, 10) == [(10, 3.0), (11, 3.0), (12, 3.0)]


def test_worker_travels_with_what_it_needs_from_its_module():
    assert launch(lambda: (HERE, os.environ["LOCAL_RANK"]), 2) == [(HERE, "0"), (HERE, "1")]


def test_a_traceback_names_the_file_also_with_a_cloudpickle_that_leaves_it_out(monkeypatch):
    """As 3.1.3 does; it is not the one that is pinned here."""
    reduce = ranks.cloudpickle.cloudpickle._code_reduce

    def without(code):
        make, arguments, *more = reduce(code)
        return make, tuple("<dynamic-code>" if one == __file__ else one for one in arguments), *more

    monkeypatch.setitem(ranks.cloudpickle.Pickler.dispatch_table, type(without.__code__), without)
    with pytest.raises(LaunchError, match=re.escape(f'File "{__file__}", line')):
        launch(lambda: {}["missing"], 1, init=False)


def test_what_a_worker_leaves_is_not_collected_at_its_end():
    """The destructor of a process group can wait for a peer that has gone: the rank would hang once it is done."""

    class Group:
        def __init__(self):
            self.itself = self

        def __del__(self):
            os._exit(9)

    def worker():
        gc.collect()
        Group()
        gc.set_threshold(1)
        return "done"

    assert launch(worker, 1) == ["done"]


@pytest.mark.core
def test_prints_one_lane_per_rank(capfd):
    def worker():
        print("first")
        os.write(2, b"second, past Python\n")

    launch(worker, 2)
    assert capfd.readouterr().out == "".join(f"rank {r} │ first\nrank {r} │ second, past Python\n" for r in (0, 1))


@pytest.mark.parametrize("nproc", [0, -1, 1.5, "2", True])
def test_refuses_a_number_of_ranks_and_a_time_bound_that_is_none(nproc):
    with pytest.raises(ValueError, match=r"nproc must be a whole number of ranks, at least 1; got"):
        launch(lambda: None, nproc)
    with pytest.raises(ValueError, match="timeout_s must be a positive number"):
        launch(lambda: None, 2, timeout_s=0)


@pytest.mark.core
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
def test_blames_the_rank_that_died_not_the_one_that_lost_its_connection(how, said, monkeypatch):
    def worker():
        if dist.get_rank() == 1:
            print("last words", flush=True)
            how()
        dist.all_reduce(torch.ones(1))

    monkeypatch.setattr(ranks, "GRACE_S", PATIENCE_S)  # both end
    with pytest.raises(LaunchError, match=f"rank 1 {said} before its worker returned") as caught:
        launch(worker, 2)
    assert "last words" in str(caught.value)
    assert not left_over()


def test_blames_rank_0_not_the_one_that_lost_its_store_first(monkeypatch, tmp_path):
    def worker(lost):
        if dist.get_rank() == 1:
            try:
                store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
                dist.barrier()
                store.get("nobody sets it")
            finally:
                lost.touch()
        dist.barrier()  # both have joined
        dist.destroy_process_group()
        gc.collect()  # the store ends with its last name
        while not lost.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(ranks, "GRACE_S", PATIENCE_S)
    with pytest.raises(LaunchError, match="rank 0 was killed by SIGKILL before its worker returned"):
        launch(worker, 2, tmp_path / "lost")


def test_a_hang_ends_at_the_time_bound_and_says_where_each_rank_is(tmp_path, monkeypatch):
    """Ranks that hang in every way, at once: in a collective, asleep, stopped, and without the signals of theirs."""

    def worker(folder):
        rank, main = dist.get_rank(), threading.get_ident()

        def tell():
            while not rank and "barrier" not in [f.name for f in traceback.extract_stack(sys._current_frames()[main])]:
                time.sleep(0.01)
            (folder / f"{rank} hangs").touch()

        match rank:
            case 1:
                (folder / "pid").write_text(str(subprocess.Popen(["sleep", "4321"]).pid))
            case 2:
                signal.signal(signal.SIGUSR1, lambda *_: None)
            case 3:
                signal.signal(signal.SIGUSR2, lambda *_: None)
        threading.Thread(target=tell).start()
        if rank == 0:
            dist.barrier()
        while not (folder / f"{rank} hangs").exists():
            time.sleep(0.01)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(4321)

    def all_hang(there):
        stopped = psutil.Process(there[1].process.pid).status() == psutil.STATUS_STOPPED
        return stopped and len(list(tmp_path.glob("* hangs"))) == 5

    time_is_up_when(monkeypatch, all_hang, silent=[3])
    with pytest.raises(LaunchError, match=f"rank 0, 1, 2, 3, 4 of 5 still ran after {PATIENCE_S:g} s") as caught:
        launch(worker, 5, tmp_path, timeout_s=PATIENCE_S)
    where = re.split(r"--- rank \d hangs here ---", str(caught.value))[1:]
    assert "in barrier" in where[0]
    assert "in worker" in where[1], "it was stopped, and is continued to be asked"
    assert "in worker" in where[2], "SIGUSR1 is the worker's own"
    assert "handles SIGUSR2 itself" in where[3]
    assert "in worker" in where[4]
    assert not left_over()
    child = int((tmp_path / "pid").read_text())
    assert ended(child), "what a stopped rank had started is killed, too"


def test_nothing_outlives_a_parent_that_is_killed(tmp_path):
    """A script as a reader starts it: a launch that returns, and one in which the script is killed."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            from ddplab import launch

            def worker(folder):
                open(f"{folder}/{os.getpid()}.{os.getppid()}.pid", "w").close()
                time.sleep(300)

            print(launch(lambda: 7, 2), flush=True)
            launch(worker, 2, os.path.dirname(__file__))
            """
        )
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        try:
            wait_until(lambda: parent.poll() is not None or len(list(tmp_path.glob("*.pid"))) == 2)
        finally:
            parent.kill()
        assert parent.stdout.read() == "[7, 7]\n"
    pids = {int(pid) for path in tmp_path.glob("*.pid") for pid in path.stem.split(".")}
    assert len(pids) == 3, "two ranks and their fork server"
    assert all(map(ended, pids))


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


def test_ctrl_c_leaves_no_rank_behind_however_early_it_comes(capfd):
    """At every moment of a start, also when a rank is there and the launch has not heard of it yet."""
    launch(lambda: None, 2)  # the fork server is there
    for tenth_ms in range(0, 600, 15):
        interrupt = threading.Timer(tenth_ms / 1e4, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            interrupt.start()
            launch(lambda: time.sleep(300), 2)
        assert not left_over()
    assert capfd.readouterr() == ("", "")


def test_a_result_that_cannot_be_sent_is_named():
    with pytest.raises(LaunchError, match="returned a value that cannot be sent"):
        launch(lambda: sys._getframe(), 1)


def test_large_results_arrive_whole():
    assert [t.sum().item() for t in launch(lambda: torch.ones(4_000_000), 2)] == [4e6, 4e6]


def test_record_belongs_to_the_script_not_to_a_rank():
    with pytest.raises(LaunchError, match="was called inside a rank"):
        launch(lambda: record(unit="ms", gap=1.0), 1)


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
    for _ in range(int(os.environ.get("LAUNCHES", "20"))):
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

    server = fork_server()
    server.kill()
    assert ended(server.pid)
    for _ in range(2):  # in new threads, when those that began have ended
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(started_in_a_thread, range(4))) == [[0, 0], (1, True), [2, 2], (1, True)]
    assert not left_over()
