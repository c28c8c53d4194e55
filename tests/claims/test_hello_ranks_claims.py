"""What the program that is run first on a new cluster promises, and the reason for its time bounds."""

import socket
import threading
from datetime import timedelta

from proof import proves
from torch.distributed import TCPStore

from ddplab.apparatus.machines import loopback
from ddplab.apparatus.recipes import FOLDER
from ddplab.runtime.needs import a_gpu_each
from tools import PATIENCE_S, free_port


@proves("setup-hello-ranks-names-missing")
def test_the_ranks_that_are_there_name_the_one_that_is_not():
    """Two of three ranks: both end with exit code 1, and rank 0 names the third. With all three nobody is named."""

    def start(patience_s):
        """Each rank with the patience it has, in this order; the programs in the order of ranks."""
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
        meet |= a_gpu_each(3)  # or none: three ranks on one GPU would be wrong too
        started = {}
        for rank, seconds in patience_s.items():
            command = ["python", str(FOLDER / "hello_ranks.py"), f"--patience={seconds}", "--mib=1"]
            started[rank] = host.fork(command, {**meet, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        return [started[rank] for rank in sorted(started)]

    with loopback(1) as (host,):
        two = start({1: PATIENCE_S, 0: 4})  # rank 1 waits for rank 0, and rank 0 decides when it has waited enough
        three = start(dict.fromkeys(range(3), PATIENCE_S))
        assert [program.wait(PATIENCE_S) for program in two] == [1, 1]
        assert [program.wait(PATIENCE_S) for program in three] == [0, 0, 0]
    assert "2 of 3 are here" in two[0].output
    assert "rank 2: no message" in two[0].output
    assert "no message" not in three[0].output


@proves("setup-store-client-unbounded")
def test_a_store_client_outlives_its_timeout_at_a_port_of_another_program():
    """With a timeout of one second it still waits after three, until that program hangs up."""

    def connect(port, done):
        try:
            TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False)
        except RuntimeError:
            done.set()

    taken, free = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as another:
        for port, done in (another.getsockname()[1], taken), (free_port(), free):
            threading.Thread(target=connect, args=(port, done), daemon=True).start()
        caller, _ = another.accept()
        assert free.wait(PATIENCE_S)  # where nobody listens, the timeout holds
        assert not taken.wait(3)
        caller.close()
    assert taken.wait(PATIENCE_S)
