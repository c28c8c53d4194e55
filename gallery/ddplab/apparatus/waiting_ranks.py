"""A rank that waits and reports which signals it gets: what the lab on the agent's options runs. It needs no torch.

``python waiting_ranks.py FATE EXIT_S FOLDER``: what rank 1 does in its first life ("exit", "KILL" or "stay"; with
", stay" the second life waits, too), the seconds that a rank takes to exit on a signal, and an empty folder.
"""

import os
import signal
import sys
import time


def main(fate: str, exit_s: float, folder: str) -> None:
    """Wait for half a minute at most."""
    rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    agent = os.getppid()
    ready = f"{folder}/{agent}"  # a signal that comes before its handler would end rank 0

    def say(text: str) -> None:
        print(f"rank {rank} in life {life} {text}\n", end="", flush=True)

    def on_signal(number: int, _: object) -> None:
        say(f"got {signal.Signals(number).name}")
        time.sleep(exit_s)
        say("exited by itself")
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_signal)
    say("is there")
    if rank == "0":
        open(ready, "w").close()
    while not os.path.exists(ready):
        time.sleep(0.05)
    if (rank, life) == ("1", "0") and fate.startswith("exit"):
        os._exit(75)
    if (rank, life) == ("1", "0") and fate.startswith("KILL"):
        os.kill(os.getpid(), 9)
    for _ in range(300):
        time.sleep(0.1)
        if os.getppid() != agent:
            say("lost its agent and went on")
            os._exit(0)
        if life == "1" and not fate.endswith("stay"):
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
