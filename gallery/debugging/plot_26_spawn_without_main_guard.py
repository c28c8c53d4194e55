"""
``mp.spawn`` without a main guard
=================================

``mp.spawn(train, nprocs=2)`` as the last line of a file, without ``if __name__ == "__main__":`` above it.
A spawned process is a fresh Python that imports your file to find ``train``, and so reaches ``mp.spawn`` itself.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-spawn-without-main-guard
"""

# %%
# Three programs: without the guard, with it and a function that a fresh Python cannot find, and the right one.

import subprocess
import sys
import tempfile
from pathlib import Path

NO_GUARD = """
import torch.multiprocessing as mp

def train(rank):
    print(f"rank {rank} trains", flush=True)

print("reading the data set", flush=True)
mp.spawn(train, nprocs=2)
"""
LOCAL = """
import torch.multiprocessing as mp

def main():
    def train(rank):
        print(f"rank {rank} trains", flush=True)

    mp.spawn(train, nprocs=2)

if __name__ == "__main__":
    main()
"""
RIGHT = """
import torch.multiprocessing as mp

print("read as", __name__, flush=True)

def train(rank):
    print(f"rank {rank} trains", flush=True)

if __name__ == "__main__":
    print("reading the data set", flush=True)
    mp.spawn(train, nprocs=2)
"""

# %%
# ``mp.spawn`` needs a file, so each program is written to one.
# All three run at once; shown are the lines that each printed itself and the first line of every error.


def start(path, text):
    path.write_text(text)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, path], **pipes)


TELLING = ("rank ", "reading", "RuntimeError", "An attempt", "AttributeError", "torch.multi")
programs = {"no_guard": NO_GUARD, "local": LOCAL, "right": RIGHT}
printed, texts = {}, {}
with tempfile.TemporaryDirectory() as folder:
    running = {
        name: start(Path(folder, f"{name}.py"), text) for name, text in programs.items()
    }
    try:
        for name, process in running.items():
            texts[name] = process.communicate(timeout=600)[0]
            lines = [line.strip() for line in texts[name].splitlines()]
            printed[name] = sorted(line for line in lines if line.startswith(TELLING))
            print(f"{name}.py ends with exit code {process.returncode}")
            print("".join(f"    {line}\n" for line in printed[name]), end="")
            assert process.returncode == (name != "right")
    finally:
        for process in running.values():
            process.kill()

# Children print at once, so their lines may run together.
refused = texts["no_guard"].count("An attempt has been made to start a new process")
assert refused >= 1
assert texts["no_guard"].count("reading the data set") == 1 + refused
assert not any("trains" in line for line in printed["no_guard"] + printed["local"])
assert texts["right"].count("read as __mp_main__") == 2  # each child imports the file
assert "can't pickle local object" in printed["local"][0].lower()
assert printed["right"] == ["rank 0 trains", "rank 1 trains", "reading the data set"]

# %%
# Without the guard no rank ever trains: each child runs the whole file, reads the data set again, and fails at ``mp.spawn``.
# The parent sees only that a child ended, with ``ProcessExitedException``; the reason is above, in the child's text.
# The local function fails earlier, in the parent: it is sent by name, and a name inside ``main`` cannot be imported.
#
# The fix
# -------
# Keep functions at the top level of the file, and everything that starts something below ``if __name__ == "__main__":``.
# Or start the file with torchrun, which needs neither.
#
# How to recognize it
# -------------------
# ``An attempt has been made to start a new process before …`` appears once per child, and what the file prints at its top appears again each time.
# The same text comes from a ``DataLoader`` with workers in an unguarded file, where workers are not forked: on macOS and Windows, and on Linux from Python 3.14 on.
# ``Can't pickle`` or ``Can't get attribute``: the function is local, or was defined in a notebook.
