"""
A variable that only some ranks have
====================================

``environment variable RANK expected, but not set`` is the first error most people get from DDP: the program was started with ``python`` instead of a launcher.
Then every rank sees it at once.
It is worse when one machine lacks one variable, for example after a forgotten ``export``: most ranks then wait, and report something else.
It serves :ref:`faults`.

:Level: evidence, 5 minutes
:Proves: fault-missing-variables setup-env-needs-four
"""

# %%
# The program, started with ``python`` alone.

import os
import re
import subprocess
import sys

from ddplab import launch
from ddplab.apparatus.postmortem import postmortem, report

PROGRAM = 'import torch.distributed as dist; dist.init_process_group("gloo")'
NEEDED = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]

bare = {name: text for name, text in os.environ.items() if name not in NEEDED}
ran = subprocess.run(
    [sys.executable, "-c", PROGRAM], env=bare, capture_output=True, text=True, timeout=120
)
print(ran.stderr.splitlines()[-1])
assert ran.returncode == 1
assert "environment variable RANK expected, but not set" in ran.stderr

# %%
# Now seven ranks, of which only rank 0 has all four: each of the others lacks one, or has text where a number should be.
# The group's timeout is 1 s instead of 30 minutes.

# An empty variable counts as not set; the last two are typical typing errors.
CHANGES = [{}, *({name: ""} for name in NEEDED), {"RANK": "one"}, {"MASTER_PORT": "29500;"}]


def enter(changes, timeout_s=1):
    import datetime
    import os
    import time

    import torch.distributed as dist

    os.environ.update(changes[int(os.environ["RANK"])])
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    except dist.DistError:
        if os.environ["RANK"] == "0":
            time.sleep(timeout_s)  # it hosts the store; let the others report first
        raise
    return f"{dist.get_rank()} of {dist.get_world_size()}"


waits, *others = postmortem(enter, 7, CHANGES, init=False, leave=True)
for rank, (change, ending) in enumerate(zip(CHANGES[1:], others, strict=True), 1):
    ((name, text),) = change.items()
    message = re.search(r"(?:environment variable|invalid literal).*", ending.error)[0]
    print(f"rank {rank} has {f'{name}={text}':19} and reports: {message}")
    assert f"{name} expected, but not set" in message if not text else text in message
print(report([waits]))
assert "waiting for clients. 1/7 clients joined" in waits.error

# If one of three lacks a variable, two wait: rank 0 counts them, and the other asks for its address.
*others, lacks = postmortem(enter, 3, [{}, {}, {"RANK": ""}], 3, init=False, leave=True)
assert "RANK expected, but not set" in lacks.error
assert "2/3 clients joined" in others[0].error
assert "wait timeout" in others[1].error
for waits in others:
    assert not any(name in waits.error for name in NEEDED)
    assert waits.after_s > lacks.after_s

# %%
# ``env://`` reads the four variables in this order and stops at the first that is missing, so fixing one may reveal the next.
# The rank that lacks one never gets to the store; those that have all of them wait there for it.
#
# A launcher sets all four for every rank, and no other is needed.


def with_these_four_only():
    for other in set(os.environ) - set(NEEDED):
        del os.environ[other]
    return enter([{}] * 2, 60)


found = launch(with_these_four_only, 2, init=False)
print(found)
assert found == ["0 of 2", "1 of 2"]

# %%
# The fix
# -------
# Start the program with ``torchrun --standalone --nproc-per-node=2 train.py``; for one process, ``--nproc-per-node=1``.
# If you start ranks by hand or under ``srun python``, set all four variables in the same place, and print them on every rank before ``init_process_group``.
#
# How to recognize it
# -------------------
# The rank that names a variable is the one to look at, and it is the first to end.
# Under torchrun you do not see this error, because torchrun sets the variables; if you do, the program was not started by the torchrun that you think, or it removes them.
# ``waiting for clients`` alone means that some rank did not come; look in the log of *that* rank for the reason.
