"""What the program that is run first on a new cluster promises, and the reason for its time bounds."""

import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta

from proof import proves
from torch.distributed import TCPStore

from ddplab.recipes import FOLDER
from tools import free_port


@proves("setup-hello-ranks-names-missing")
def test_the_ranks_that_are_there_name_the_one_that_is_not():
    """Two of three ranks: both end with exit code 1, and rank 0 names the third. With all three nobody is named."""

    def run(*ranks):
        env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
        env["CUDA_VISIBLE_DEVICES"] = ""  # three ranks on one GPU would be wrong too
        command = [sys.executable, FOLDER / "hello_ranks.py", "--patience=4", "--mib=1"]
        pipe = {"stdout": subprocess.PIPE, "text": True}
        started = [subprocess.Popen(command, env={**env, "RANK": str(rank)}, **pipe) for rank in ranks]
        tables = [process.communicate(timeout=60)[0] for process in started]
        return tables[0], [process.returncode for process in started]

    table, codes = run(0, 1)
    assert codes == [1, 1]
    assert "2 of 3 are here" in table
    assert "rank 2: not heard of" in table
    table, codes = run(0, 1, 2)
    assert codes == [0, 0, 0]
    assert "not heard of" not in table


@proves("setup-store-client-unbounded")
def test_a_store_client_outlives_its_timeout_at_a_port_of_another_program():
    """With a timeout of one second it still waits after five, until that program hangs up."""
    done = threading.Event()

    def connect(port):
        try:
            TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False)
        except RuntimeError:
            done.set()

    with socket.create_server(("127.0.0.1", 0)) as another:
        threading.Thread(target=connect, args=(another.getsockname()[1],), daemon=True).start()
        caller, _ = another.accept()
        assert not done.wait(5)
        caller.close()
    assert done.wait(20)

    done.clear()
    threading.Thread(target=connect, args=(free_port(),), daemon=True).start()
    assert done.wait(5)  # where nobody listens, the timeout holds
