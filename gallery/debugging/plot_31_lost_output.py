"""
The log ends before the program did
===================================

The last line in rank 0's log is step 120; it was at step 140 when the job died.
What a Python program prints to a file or a pipe waits in a buffer, and a process that is killed by a signal does not flush it.
When one rank fails, the launcher ends the others with a signal, rank 0 included.
It serves :ref:`faults`.

:Level: evidence, 5 minutes
:Proves: fault-lost-output
"""

# %%
# A program that prints four lines, and then raises, exits, or is ended by a signal from a launcher, from the kernel, or from a failed check in C++.
# Its output goes to a pipe, as under Slurm, in a container, or behind ``| tee log``.

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import os, signal, sys
for step in range(4):
    print("step", step, **{"flush": True} if "flush" in sys.argv else {})
end = sys.argv[1]
if end == "raise":
    raise ValueError("no more data")
if end == "os._exit":
    os._exit(1)
os.kill(os.getpid(), getattr(signal, end))
"""

ENDS = ["raise", "os._exit", "SIGTERM", "SIGKILL", "SIGABRT"]


PYTHON = [sys.executable, "-c", PROGRAM]


def steps_in_log(end, *options, start=PYTHON, **env):
    ran = subprocess.run(
        [*start, end, *options],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return ran.stdout.count("step"), ran.returncode


clean = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
log = {end: steps_in_log(end) for end in ENDS}
for end, (steps, code) in log.items():
    print(f"{end:9} {steps} of 4 lines, exit code {code:3}")
assert [steps for steps, _ in log.values()] == [4, 0, 0, 0, 0]

# %%
# Only the exception ends Python in a way that flushes the buffer.
# Standard error is not buffered like that, so the traceback of the rank that failed is there, and seems to come before anything was printed.

for name, fixed in (
    ("PYTHONUNBUFFERED=1", [steps_in_log(end, PYTHONUNBUFFERED="1")[0] for end in ENDS]),
    ("print(…, flush=True)", [steps_in_log(end, "flush")[0] for end in ENDS]),
):
    print(f"{name:21} {fixed} of 4 lines")
    assert fixed == [4] * len(ENDS)

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "train.py").write_text(PROGRAM)
    for options, steps in (([], 4), (["--no-python", sys.executable], 0)):
        torchrun = [*TORCHRUN, *options, f"{folder}/train.py"]
        assert steps_in_log("SIGTERM", start=torchrun, TMPDIR=folder)[0] == steps

# %%
# The fix
# -------
# ``export PYTHONUNBUFFERED=1`` where the job starts, or ``flush=True`` in the one ``print`` that shows the step, or ``logging``, which writes to standard error.
# ``torchrun train.py`` starts Python with ``-u``, which is the same; ``torchrun --no-python``, ``srun python``, ``mp.spawn`` and a shell do not.
#
# How to recognize it
# -------------------
# Ranks' logs end at different steps, in the middle of a line, or a rank has an exit code and no output at all.
# The exit code is negative (torchrun, ``mp.spawn``) or 128 plus the number (a shell): a signal.
# Do not look for the fault at the last printed step; compare with the other ranks' standard error, or with what the flight recorder has.
