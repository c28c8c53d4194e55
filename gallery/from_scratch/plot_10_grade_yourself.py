"""
Grade yourself
==============

You wrote ``sync_gradients``, and it runs. Is it right, and if not, which idea behind it is wrong?
``ddplab grade`` runs a file on real ranks, check by check, and explains what it sees.
This lab submits three attempts at the first exercise.

It serves :ref:`from-scratch-exercises`.

A grader checks what every rank holds against the one right answer, and each mistake leaves its own wrong number.
Keep in mind: a program that runs on two ranks has shown nothing about three.

:Level: core, 8 minutes
"""

# %%
# What you type is ``ddplab grade sync-gradients my_file.py``.
# ``hand_in`` writes an attempt to that file and types the command; it returns the exit code.

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = """\
import torch
import torch.distributed as dist

def sync_gradients(module):
"""


def hand_in(body):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "my_file.py").write_text(HEAD + body)
        command = [sys.executable, "-m", "ddplab", "grade", "sync-gradients", "my_file.py"]
        width = {**os.environ, "COLUMNS": "80"}
        done = subprocess.run(command, cwd=folder, env=width, capture_output=True, text=True)
    print(done.stdout + done.stderr)
    return done.returncode


# %%
# The first attempt
# -----------------
# Most of us write this first: reduce every gradient.

code = hand_in("""\
    for p in module.parameters():
        dist.all_reduce(p.grad)
""")
assert code == 1

# %%
# The second attempt
# ------------------
# It divides, and it skips parameters without a gradient.

code = hand_in("""\
    for p in module.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
""")
assert code == 1

# %%
# The third attempt
# -----------------
# The ranks first agree on which gradients exist anywhere; then all of them make the same calls.

code = hand_in("""\
    parameters = [p for p in module.parameters() if p.requires_grad]
    exists = torch.tensor([float(p.grad is not None) for p in parameters])
    exists = exists.to(parameters[0].device)
    dist.all_reduce(exists)
    for p, somewhere in zip(parameters, exists.tolist()):
        if somewhere:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
""")
assert code == 0

# %%
# What to notice
# --------------
# - The message starts from the numbers: the sum, half the mean and rank 0's own gradient are different numbers, and each belongs to one mistake.
# - The second attempt is right as long as every rank uses every parameter, so it can train for months.
#   As soon as one rank takes a different branch, the ranks reduce different tensors.
#   The grader names the first call at which they diverge, not the hang that follows.
# - The first failed check ends the run: later checks usually fail for the same reason.
#
# What this does not mean
# -----------------------
# That a file that passes is fast.
# The checks look at numbers, at calls and at their order, on small models and two or three ranks; no check measures time.
#
# Change it: predict, then run
# ----------------------------
# In the third attempt divide by two: ``p.grad /= 2``.
# Which check is the first to fail?
#
# Expect: that on three ranks, whose message says that the world size is written into the code; the check on two ranks passes, and the assertion on the exit code fails.
#
# Say it aloud
# ------------
# "I test a collective routine on two and on three ranks, with other data on each, and with a parameter that one rank did not use.
# A wrong result names its cause: the sum, half of the mean, one rank's own gradient.
# Stopping at the first failed check gives one clear message, and says nothing about the checks after it."
