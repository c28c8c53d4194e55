"""What a program in the background leaves when it has ended."""

import subprocess
import sys

from ddplab.apparatus.machines import Program
from tools import PATIENCE_S, wait_until


def test_who_has_read_the_last_line_closes_the_pipe():
    """Left open it is closed by whoever drops the program last, which waits as long as a thread reads."""
    started = []

    def start(command, variables):
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables))
        return started[0]

    program = Program([sys.executable, "-c", "print('said')"], start=start)
    assert program.wait(PATIENCE_S) == 0
    assert wait_until(lambda: started[0].stdout.closed, 30)
    assert program.output == "said\n"
