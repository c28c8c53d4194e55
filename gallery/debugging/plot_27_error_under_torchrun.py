"""
One rank raises under torchrun
==============================

When a rank fails, torchrun prints a hundred lines, with ``ChildFailedError`` in the middle and none of it in your file.
Which line is the reason, and where is the traceback?
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-error-under-torchrun
"""

# %%
# Rank 1 of three raises before the group forms; the others wait for it in ``init_process_group``.
# The program runs twice at once, the second time with ``@record`` on its main function.

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import os
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@RECORD
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no learning rate for 3 ranks")
    dist.init_process_group("gloo")

main()
"""


def start(folder, name, text):
    Path(folder, name).write_text(text)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    own = {**os.environ, "TMPDIR": folder}  # torchrun leaves its log folder there
    return subprocess.Popen(
        [*torchrun, "--nproc-per-node=3", name], cwd=folder, env=own, **pipes
    )


with tempfile.TemporaryDirectory() as folder:
    agents = [
        start(folder, "plain.py", PROGRAM.replace("@RECORD\n", "")),
        start(folder, "recorded.py", PROGRAM.replace("@RECORD", "@record")),
    ]
    try:
        plain, recorded = (agent.communicate(timeout=600)[0] for agent in agents)
    finally:
        for agent in agents:
            agent.kill()
assert [agent.returncode for agent in agents] == [1, 1]

# %%
# Without ``@record``, in the order of printing: the rank's own error, what the agent did, and its report.
# Frames, times, process ids and rulers are left out.
SKIP = re.compile(r"\s*(time|host|File|\^+|\S+\(|raise |return |[-=]{9}|Trace|$)")


def show(text, begin):
    for line in text[text.index(begin) :].splitlines():
        line = re.sub(r"^[WE]\d+ .*?\.py:\d+\]", "agent:", line)
        line = line.replace(sys.executable, "python")
        line = re.sub(r" ?\(?\bpid:? \d+\)?", "", line, flags=re.I)
        line = re.sub(r"/\S+(?=/attempt)", "…", line)
        if not SKIP.match(line):
            print(line.rstrip())


show(plain, "ValueError: no learning rate")

# %%
# Read it from the end.
# ``Root Cause (first observed failure)`` names the rank; above it are the others.
# ``exitcode : -15`` is minus the number of a signal: SIGTERM, and the agent itself sent it.
# The agent knows the exit code but not the reason; the traceback went to the terminal, far above the report.
# With ``@record`` the rank writes its traceback to a file, and the report includes it:

show(recorded, "Root Cause")

for printed in (plain, recorded):
    others, root = printed[printed.index(" FAILED\n") :].split("Root Cause")
    assert len(re.findall(r"rank +: [02] .*\n +exitcode +: -15\b", others)) == 2
    assert re.search(r"rank +: 1 .*\n +exitcode +: 1 ", root)
    assert ("ValueError: no learning rate for 3 ranks" in root) == (printed is recorded)

# %%
# The fix
# -------
# Put ``@record`` on the function that does everything, once per program, and raise; do not catch the error and continue.
# For many ranks add ``--log-dir=logs --tee=3``: each rank then has its own files, and lines on the terminal begin with its number.
#
# How to recognize it
# -------------------
# ``ChildFailedError`` is never the cause: it reports that some rank ended with an exit code other than 0.
# A positive code is the rank's own, 1 for an exception; a negative one is a signal: -15 by the agent, -9 by you, the scheduler or the kernel when memory is short, -11 and -6 by a crash in C++.
#
# Root cause means the earliest time in whole seconds, and the lowest rank among equals that were seen together (``get_first_failure`` in ``torch/distributed/elastic/multiprocessing/errors/__init__.py``, torch 2.13).
# Without ``@record`` it is the time when the agent looked, so a rank with ``Connection closed by peer`` may be listed as the root cause.
