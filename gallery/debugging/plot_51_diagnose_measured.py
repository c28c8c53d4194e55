"""
How often is the first answer right?
====================================

``ddplab diagnose`` ranks its answers, and most readers look at the first: how often is it the right one?
This lab counts it on logs of failed jobs in public repositories, and then tries the tool on faults of our own.
It serves :ref:`debugging-tools`.

:Level: evidence, 15 minutes
"""

# %%
# What was counted
# ----------------
# :measured:`diagnose-measured.logs` pieces of output of failed PyTorch jobs from public GitHub repositories: Slurm outputs, ``nohup.out`` and other log files, and tracebacks posted in Markdown files.
# Their texts belong to others and are not shipped.
# ``public_logs.json``, beside this script, keeps facts: repository, path, commit, lines, what happened in one sentence of ours, the right first answer (``label``; ``also`` are as right), and what the tool answered.
#
# *Split.* Before labeling: by the last bit of the sha256 of ``owner/name:path``, so all pieces of one file are in one half.
# The seen half was for improving the tool.
# The unseen half was first diagnosed by a tool that was frozen before, and that count is the one that says something about logs of others.
# Whoever improved the tool had read no text of that half, but had seen how often each label word occurs in it.
# The tool has changed since, and its misses in that half were known then; ``frozen`` keeps the frozen tool's answer where today's is another one.
#
# *Labels.* One author read extracts of the logs and wrote down what happened, in a list of plain words, without running the tool and without its patterns.
# Another table, written from the entries' titles alone, turned these words into the entries' ids.
# For an ordinary exception of the program, the exception's type has to be right, too.
#
# To repeat it, clone the repositories, save ``git show COMMIT:PATH | sed -n 'A,Bp'`` (all of it where ``lines`` is ``all``) under the entry's ``name``, and set ``DDPLAB_PUBLIC_LOGS`` to that folder.
# The lab then diagnoses the texts and rewrites the answers before it counts.
# With them it keeps a hash of what decides an answer: the engine's code and tables, and of the error entries what it reads, not their texts.
# Where this hash is no longer that of the tool, the lab says so.

import os
import signal
import traceback
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import record
from ddplab.apparatus.postmortem import postmortem
from ddplab.apparatus.public_logs import by_frozen, count, load, right, wilson
from ddplab.diagnose import diagnose

facts = load(os.environ.get("DDPLAB_PUBLIC_LOGS", ""))
logs, stale = facts["logs"], facts["stale"]

# %%
# The count
# ---------

KINDS = {
    "launch, network, NCCL, Slurm": ("exit", "gloo", "nccl", "slurm", "store", "torchrun"),
    "DDP, torch, CUDA": ("amp", "checkpoint", "cuda", "data", "ddp", "dist", "memory"),
    "ordinary exceptions": ("python",),
}


def row(name, *options, of=logs):
    cells = [count(of, half, *options) for half in ("seen", "unseen")]
    print(f"{name:32}", *(f"{a:4} of {b:2}" for a, b in cells))
    return cells


print(f"{'':32}  seen      unseen")
bars = [(name, *row(name, False, areas)) for name, areas in KINDS.items()]
bars.append(("all", *row("all, labels as written")))
row("all, labels corrected", True)
row("all, by the frozen tool", of=by_frozen(logs))
print("seen before the tool was improved:", facts["seen_right_before_fixes"])
if stale:
    print("stale: the tool has changed since these answers were given")
assert sum(b for _, (_, b), _ in bars[:-1]) == bars[-1][1][1]

# %%
# Where today's tool is wrong on the unseen half, ``*`` where the label was wrong (below).

for log in logs:
    if log["half"] == "unseen" and not right(log):
        label = log.get("exception", log["label"])
        print(f"{'*' if right(log, True) else ' '} {label}, answered: {log['answer']}")
        print(f"    {log['repository']} {log['path']}")

# %%
# The sample, and Wilson's 95 % intervals of the frozen tool's share, which show how little a few dozen logs prove.

names = Counter(log["repository"] for log in logs)
seen, unseen = ({x["repository"] for x in logs if x["half"] == h} for h in ("seen", "unseen"))
record(logs=len(logs), repositories=len(names), in_both=len(seen & unseen), stale=int(stale))
record(from_four=sum(many for _, many in names.most_common(4)))
for half in ("seen", "unseen"):
    (now, of), (frozen, _) = count(logs, half), count(by_frozen(logs), half)
    corrected, _ = count(by_frozen(logs), half, True)
    low, high = wilson(frozen, of)
    record(
        **{
            half: of,
            f"{half}_right": now,
            f"{half}_frozen": frozen,
            f"{half}_corrected": corrected,
        }
    )
    record("%", **{f"precision_{half}": round(100 * frozen / of)})
    record("%", **{f"{half}_low": round(100 * low), f"{half}_high": round(100 * high)})
record(seen_before=facts["seen_right_before_fixes"])

# %%
# A bar is the share of right first answers of today's tool, a line its interval.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, name_rows, subplots

fig, ax = subplots(height_in=2.9)
describe(
    fig, "Share of right first answers by kind of failure, seen and unseen, with intervals."
)
for place, (_, *halves) in enumerate(bars):
    for shift, (a, n), color in zip((-0.19, 0.19), halves, (MUTED, ACCENT), strict=True):
        low, high = wilson(a, n)
        ax.barh(place + shift, 100 * a / n, 0.34, color=color, alpha=0.75)
        ax.plot([100 * low, 100 * high], [place + shift] * 2, color=INK, lw=1.2)
        ax.text(102, place + shift, f"{a} of {n}", va="center", size=8)
name_rows(ax, [name for name, *_ in bars])
ax.set(xlim=(0, 100), xlabel="first answer right, % (above: seen, below: unseen)")

# %%
# What it does not say
# --------------------
# - The sample is what people committed by accident or posted, not a sample of failures in general.
#   Four repositories give :measured:`diagnose-measured.from_four` of the :measured:`diagnose-measured.logs` logs, and the watchdog timeouts come mostly from one benchmark.
# - The halves are independent by file, not by repository: :measured:`diagnose-measured.in_both` of the :measured:`diagnose-measured.repositories` repositories are in both.
# - One person's labels, and those of long logs rest on extracts.
#   Some files contain several runs; one was cut out where its limits were clear.
# - Nearly every log here shows its reason, and few are labeled ``unknown``, so this hardly measures how often the tool guesses where it should be silent.
# - Many jobs were not launched by ``torchrun``, and some have only one rank.
#
# These labels turned out to be wrong when the misses were read; the first count keeps them as they were.
#
# - ``Hersoncpp`` (seen): the program did not know an argument; the word list had no word for it.
# - ``corenet``, ``seg_foodv_base_224.out`` (seen): the store names how many ranks came, which has an entry of its own.
# - ``FGDCC``, ``slurm-2611.out`` (unseen): no process group, and the log says why: the port was taken.
# - ``corenet``, ``pretrain5k.out`` (unseen): the message itself lists a second process with most of the GPU's memory.
# - ``mmm`` (unseen): ``Torch not compiled with CUDA enabled`` has an entry; the word list had no word for it.
#
# The remaining misses are the tool's: it took seriously an exception that Python reports as ignored, and it lost an exception in the ``KeyboardInterrupt`` that followed.
# The frozen tool did not know how an old NCCL reports a failed InfiniBand transfer; an entry knows it now.
#
# Faults of our own
# -----------------
# This part runs on every machine: eight faults on two ranks, each rank's output with ``[rank<r>]:`` in front, as torch writes an uncaught exception, one rank after the other.


class Net(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.third = nn.Linear(2, 2) if extra else None

    def forward(self, x, fault):
        h = self.first(x).relu()
        y = h if fault == "unused layer" else self.second(h)
        if fault == "changed in place":
            h += 1
        return y.mean()


def train(fault):
    # A gloo group on every machine: the texts are gloo's.
    second = dist.get_rank() == 1
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=1))
    try:
        if fault == "sizes differ":
            dist.all_reduce(torch.ones(10 if second else 20), group=gloo)
        model = DDP(Net(second and fault == "one layer more"), process_group=gloo)
        for step in range(3):
            if second and step == 2 and fault == "a batch less":
                break
            if second and step == 1 and fault == "own exception":
                raise KeyError("label")
            if second and step == 1 and fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(2, 4), fault).backward()
        if fault == "wrapper's weights":
            Net(False).load_state_dict(model.state_dict())
        dist.barrier(group=gloo)
    except Exception:
        traceback.print_exc()
        raise


EXPECTED = {
    "own exception": ["python-exception"],
    "unused layer": ["ddp-unused-parameter"],
    "changed in place": ["ddp-modified-in-place"],
    "one layer more": ["ddp-parameter-counts-differ"],
    "sizes differ": ["collective-sizes-differ"],
    "a batch less": ["gloo-timeout"],
    "wrapper's weights": ["checkpoint-module-prefix"],
    "killed": ["gloo-connection-closed", "gloo-connection-reset"],
}
for fault, expected in EXPECTED.items():
    endings = postmortem(train, 2, fault)
    log = [f"[rank{e.rank}]: {line}" for e in endings for line in e.printed.splitlines()]
    first = diagnose(log)[0]
    print(f"{fault:18} {first.id}, rank {first.rank}\n{'':18} {first.title}")
    assert first.id in expected, log
record(own_faults=len(EXPECTED))

# %%
# The last answer is not a diagnosis, and cannot be one: a killed rank prints nothing, and its peer learns only that it is gone.
# ``torchrun``'s report has ``exitcode: -9`` for it; with that in the log the first answer is ``exit-killed``.
