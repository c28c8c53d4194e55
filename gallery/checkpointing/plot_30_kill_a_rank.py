"""
Kill a rank under torchrun
==========================

One of two ranks gets SIGKILL in the middle of a run that may restart once.
Which processes end, which come back under which number, and which steps are lost?
It serves :ref:`checkpointing-elastic`; the agent's options are in :doc:`/labs/checkpointing/plot_33_agent_options`.

torchrun restarts the group, not the rank: if one process ends, all are ended and started anew.
Every restart repeats the steps since the last checkpoint.

:Level: core, 15 minutes
:Proves: ckpt-killed-rank-restarts-all
"""

import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

from ddplab import record
from ddplab.apparatus import elastic_training
from ddplab.apparatus.machines import loopback, torchrun

# %%
# The program
# -----------
# It saves after every fourth step, and resumes from the newest checkpoint.
# Before its first restart, rank 1 kills itself after the given step; 0 is never.
#
# .. literalinclude:: /../gallery/ddplab/apparatus/elastic_training.py
#    :language: python
#    :start-at: def build

FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # each life meets in a new store


def train(fatal_step):
    with tempfile.TemporaryDirectory() as folder, loopback(1) as hosts:
        arguments = [folder, "12", "4", str(fatal_step), "0"]
        options = ["--nproc-per-node=2", "--max-restarts=1", "--no-python", "python"]
        program = [*options, elastic_training.__file__, *arguments]
        (agent,) = torchrun(hosts, *program, port=0, env=FRESH)
        assert agent.wait(120) == 0, agent.output
        return agent.lines


with ThreadPoolExecutor(2) as pool:
    lines, undisturbed = pool.map(train, (7, 0))

# %%
# What happened
# -------------
# ``agent`` is torchrun. Of the steps between two events of a rank, only the last one is shown.

EVENT = re.compile(
    r"(?P<rank>rank \d) of 2 │ (?P<text>.*)"
    r"|\[(?P<failed>rank\d)\]: RuntimeError: .*(?P<error>Connection \w+ by peer)"
    r"|.*(?P<agent>failed \(exitcode: \S+\) local_rank: \d|Sending process \d+ .*)"
)
events = []  # (seconds, who, text)
for at_s, line in lines:
    if match := EVENT.match(line):
        who = match["rank"] or (match["failed"] or "agent ").replace("rank", "rank ")
        text = match["text"] or match["error"] or match["agent"]
        events.append((at_s - lines[0][0], who, text))
for number, (at_s, who, text) in enumerate(events):
    following = next((text for _, one, text in events[number + 1 :] if one == who), "")
    if not (text.startswith("step") and following.startswith(("step", "saved"))):
        print(f"{at_s:5.1f} s  {who:6} │ {text.split(', loss')[0]}")

# %%
# Some steps were trained twice, and nothing in the curve shows it.


def curve(rank, lines):
    output = "\n".join(line for _, line in lines)
    steps = re.findall(rf"{rank} of 2 │ step (\d+), loss (\S+)", output)
    return [(int(step), loss) for step, loss in steps]


for rank in ("rank 0", "rank 1"):
    steps = [step for step, _ in curve(rank, lines)]
    twice = sorted({step for step in steps if steps.count(step) > 1})
    same = set(curve(rank, lines)) == set(curve(rank, undisturbed))
    print(
        f"{rank}: {len(steps)} steps for 12, twice {twice}; same losses, bit for bit: {same}"
    )
    assert same
    assert twice in ([5, 6], [5, 6, 7])  # the last line of rank 1 may be lost with it

starts = [(at_s, who, text.split(",")[0]) for at_s, who, text in events if "begins" in text]
back_s = [at_s for at_s, _, text in starts if text == "restart count 1"]
died_s = max(at_s for at_s, who, _ in events if who == "rank 1" and at_s < min(back_s))
record(twice=len(twice))
record("s", pause=max(back_s) - died_s)
expected = [(f"rank {rank}", f"restart count {life}") for rank in (0, 1) for life in (0, 1)]
assert sorted((who, text) for _, who, text in starts) == expected
assert len({re.search(r"pid \d+", text)[0] for *_, text in events if "begins" in text}) == 4

# %%
# What to notice
# --------------
#
# - A restart concerns *all* ranks: the healthy one is stopped too, and both come back under their old numbers, as new processes.
# - :measured:`kill-a-rank.twice:.0f` steps were trained twice, those since the last checkpoint: fewer than there are between two saves.
# - The losses do not show where the interruption was, because everything that a step depends on was saved, or follows from the number of the step.
# - On gloo the surviving rank often reports ``Connection closed`` or ``reset``. That is the consequence; ``exitcode: -9`` names the cause.
#
# What this does not mean
# -----------------------
#
# That a restart takes :measured:`kill-a-rank.pause:.0f` on your cluster: this model is tiny, and nearly all of the pause is the start of Python and torch.
# Nor that a survivor fails at once on NCCL: there it hangs until its agent ends it (not run).
# Nor that it always works with the store that torchrun shares by default: see :doc:`/labs/setup/plot_14_elastic_stale`.
#
# Change it: predict, then run
# ----------------------------
# Save after every step: ``"12", "1"`` in place of ``"12", "4"``.
# Which steps are trained twice?
#
# Expect: none, since rank 1 is killed after its save; the assertion that expects some fails.
#
# Say it aloud
# ------------
# "When a rank dies, the agent ends all ranks and starts them again under their old numbers.
# They repeat what came after the last checkpoint; if all state was saved, the losses show nothing.
# Saving more often repeats less, and stops the training more often."
