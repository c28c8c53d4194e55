"""
The rank that failed first, as JSON
===================================

``torchrun`` ends with a table of failures, and in place of the reason it prints *To enable traceback see* a page.
One decorator and one variable put the first rank's exception into a file that a script or a person can read.
It serves :ref:`debugging-tools`.

torchrun sees how a process ended; why, only the process knows.
``@record`` carries the exception out in a file, so it works only for a process that lives to write it.

:Level: core, 15 minutes
:Proves: tool-error-file
"""

# %%
# Rank 1 cannot find its data; rank 0 waits.
# The program runs twice under ``torchrun``: as it is, and with ``@record`` around ``main``.

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """\
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

def load_shard(rank):
    if rank == 1:
        raise FileNotFoundError(f"no shard {rank} in /data")

def main():
    load_shard(int(os.environ["RANK"]))
    time.sleep(60)

(record(main) if "record" in sys.argv else main)()
"""

folder = tempfile.TemporaryDirectory()
here = Path(folder.name)
(here / "train.py").write_text(PROGRAM)


def torchrun(*arguments):
    error_file = here / f"error{len(arguments)}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", f"--log-dir={here / 'logs'}", "train.py", *arguments]
    environment = {
        **os.environ,
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        "OMP_NUM_THREADS": "1",
    }
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=here, env=environment, **options), error_file


(plain, plain_file), (recorded, recorded_file) = torchrun(), torchrun("record")
outputs = [run.communicate(timeout=600)[0] for run in (plain, recorded)]
assert plain.returncode == recorded.returncode == 1


def root_cause(output):
    lines = output[output.index("Root Cause") :].splitlines()
    wanted = ("  rank", "  exitcode", "  traceback", "FileNotFoundError")
    return [
        line.strip()
        for line in lines
        if line.startswith(wanted) or line.strip().startswith(wanted[3])
    ]


# %%
# The end of the table that torchrun prints.

for name, output in zip(("as it is", "with @record"), outputs, strict=True):
    print(name, *(f"  {line}" for line in root_cause(output)), sep="\n")
assert ["To enable traceback see" in output for output in outputs] == [True, False]
assert not plain_file.exists()

# %%
# ``TORCHELASTIC_ERROR_FILE``, set for torchrun itself, receives the first failure.
# Each rank's own file is ``attempt_N/LOCAL_RANK/error.json`` below ``--log-dir``.

error = json.loads(recorded_file.read_text())["message"]
print(error["message"])
print(sorted(error["extraInfo"]), "errorCode", error["errorCode"])
where = [
    line.strip()
    for line in error["extraInfo"]["py_callstack"].splitlines()
    if "train.py" in line
]
print(where[-1].replace(folder.name + "/", ""))
own = sorted(
    str(path.relative_to(here / "logs")) for path in (here / "logs").rglob("error.json")
)
print("below --log-dir:", *(path.split("/", 1)[1] for path in own))
assert error["message"] == "FileNotFoundError: no shard 1 in /data"
assert "load_shard" in where[-1]
folder.cleanup()

# %%
# When to reach for it
# --------------------
# Always: ``@record`` costs nothing until a rank raises.
# Without it the exception is only in that rank's own output, among that of all others; ``--tee 3`` with ``--log-dir`` keeps each rank's output in a separate file.
#
# What it does not show
# ---------------------
# A rank that is killed, by the out-of-memory killer or by a crash in C++, writes no file: torchrun's table has its signal.
# A rank that hangs raises nothing, until a timeout does.
#
# Change it: predict, then run
# ----------------------------
# Replace the ``raise`` by ``os.kill(os.getpid(), 9)``.
# What does ``@record`` add now?
#
# Expect: nothing; both tables show exit code -9 and SIGKILL, and the assertion on the missing traceback fails.
#
# Say it aloud
# ------------
# "I put ``@record`` on ``main``, so that torchrun's table has the exception of the rank that failed first, and a file has it as JSON.
# A rank that is killed writes no file, so for it I read the exit code.
# It costs a line, and covers only what raises."
