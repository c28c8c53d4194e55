"""
The agent's options, as seen
============================

``--max-restarts``, ``--monitor-interval``, ``--shutdown-timeout`` and ``--signals-to-handle`` control what torchrun does when something ends.
Seven small runs show what each does.
It serves :ref:`checkpointing-elastic`.

The agent looks at its ranks at intervals, and any exit code but 0 of one ends the life of all.
A signal to the agent ends its ranks only if the agent handles it.

:Level: deep, 15 minutes
:Proves: ckpt-any-exit-code-restarts ckpt-shutdown-timeout-on-signal-only
"""

import os
import re
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

from ddplab import record
from ddplab.apparatus import waiting_ranks
from ddplab.apparatus.machines import loopback, torchrun
from ddplab.runtime.needs import needs

needs(torch="2.13")  # torchrun of 2.11 has no --shutdown-timeout

# %%
# The ranks
# ---------
# What the agent does has nothing to do with training, so these ranks need no torch.
# They wait, report which signals they get, and take a given number of seconds to exit.
#
# .. literalinclude:: /../gallery/ddplab/apparatus/waiting_ranks.py
#    :language: python
#    :pyobject: main

PROGRAM = "--no-python", "python", waiting_ranks.__file__

# %%
# The runs
# --------
# Each has two ranks and one agent. Rank 1 may end in its first life, and the agent may get a signal once all are there.

CASES = [  # rank 1 in life 0; signal to the agent; options; seconds a rank needs to exit
    ("KILL", None, ["--max-restarts=0"], 0),
    ("KILL", None, ["--max-restarts=1"], 0),
    ("exit 75", None, ["--max-restarts=1"], 0),
    ("KILL", None, ["--max-restarts=1", "--monitor-interval=3"], 0),
    ("KILL, stay", signal.SIGTERM, ["--max-restarts=1", "--shutdown-timeout=1"], 4),
    ("stay", signal.SIGUSR1, [], 0),
    ("stay", signal.SIGUSR1, ["--signals-to-handle=SIGTERM,SIGUSR1"], 0),
]


def watch(case):
    fate, sign, options, exit_s = case
    life = int(fate != "stay")
    with loopback(1) as hosts, tempfile.TemporaryDirectory() as folder:
        program = [*PROGRAM, fate, str(exit_s), folder]
        (agent,) = torchrun(hosts, "--nproc-per-node=2", *options, *program, port=0)
        if sign:
            for rank in (0, 1):
                agent.wait_for(f"rank {rank} in life {life} is there", 60)
            os.kill(agent.pid, sign)
        return agent.wait(60), agent.lines


def summary(case, code, lines):
    fate, sign, options, _ = case
    pattern = re.compile(r"rank (\d) in life (\d) (.*)")
    printed = [(at_s, *m.groups()) for at_s, line in lines if (m := pattern.match(line))]
    starts = [(life, rank, at_s) for at_s, rank, life, text in printed if text == "is there"]
    began = {life: at_s for life, _, at_s in sorted(starts)}
    assert sorted((life, rank) for life, rank, _ in starts) == [
        (x, y) for x in began for y in "01"
    ]
    of_0 = [(life, text) for _, rank, life, text in printed if rank == "0"]
    received = {life: [text for one, text in of_0 if one == life][1:] for life in began}
    causes = [f"rank 1: {fate.split(',')[0]}"] if fate != "stay" else []
    causes += [f"agent: {sign.name}"] if sign else []
    print(f"{', then '.join(causes)};  {' '.join(options) or 'no option'}")
    pause_s = max(began.values()) - min(began.values())
    lives = f"2 lives, {pause_s:.1f} s apart" if len(began) == 2 else "1 life"
    texts = [f"in life {life} {', '.join(some)}" for life, some in received.items() if some]
    print(f"    exit code {code}; {lives}; rank 0 {'; '.join(texts)}")
    return code, len(began), pause_s, received


with ThreadPoolExecutor(3) as pool:
    ends = list(pool.map(watch, CASES))
seen = [summary(case, *end) for case, end in zip(CASES, ends, strict=True)]

codes, lives, pauses_s, received = zip(*seen, strict=True)
assert codes == (1, 0, 0, 0, 1, -signal.SIGUSR1, 1)
assert lives == (1, 2, 2, 2, 2, 1, 1)
assert pauses_s[3] > 2
assert received[4] == {"0": ["got SIGTERM", "exited by itself"], "1": ["got SIGTERM"]}
assert received[5]["0"] == ["lost its agent and went on"]
assert "got SIGUSR1" in received[6]["0"]
record("s", slow=pauses_s[3], quick=pauses_s[1])

# %%
# What to notice
# --------------
#
# - Without ``--max-restarts`` there is no second life (``run.py`` has 0 as its default).
#   With it, *any* exit code but 0 starts one, including the 75 with which a program may report that it has saved and stopped.
# - ``--monitor-interval`` is how often the agent looks: with 3 s between two looks, the pause was :measured:`agent-options.slow:.1f`, with the default of 0.1 s :measured:`agent-options.quick:.1f`.
# - ``--shutdown-timeout`` applies when the agent itself gets a signal to stop: rank 0 needs 4 s to exit, and was killed after one.
#   It does not apply to a restart; there, the ranks have 30 s (``LocalElasticAgent._stop_workers`` calls ``_shutdown`` without it, torch 2.13).
# - A signal that the agent does not handle ends only the agent, and its ranks go on: they have a session of their own, and nothing notifies them.
#
# What this does not mean
# -----------------------
#
# That a rank may take long to exit. At a restart all others wait for it.
#
# Change it: predict, then run
# ----------------------------
# Set ``--shutdown-timeout=6``; rank 0 needs 4 s to exit.
# How does its second life end?
#
# Expect: by itself; the assertion that it is killed fails.
#
# Say it aloud
# ------------
# "``--max-restarts`` counts further lives, ``--monitor-interval`` is how often the agent looks, ``--shutdown-timeout`` how long ranks may take when it has to stop.
# A longer timeout lets a rank finish its save, and holds back a machine that has to go."
