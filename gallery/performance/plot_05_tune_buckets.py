"""
Ask the machine for its bucket size
===================================

Which ``bucket_cap_mb`` suits your model on your ranks, and would another one be worth the change?
``ddplab tune-buckets`` measures, predicts, measures again, and reports how sure it is.
This lab runs it on a small transformer, over an emulated link.
It serves :ref:`performance-tune`.

The best cap follows from ready times, latency and rate, which a few steps can measure.
What disturbs a round must disturb all caps, so only differences within a round count.

:Level: core, 15 minutes
"""

# %%
# What it needs from you
# ----------------------
# A function that takes nothing and returns the model and one batch.
# The model is not wrapped in DistributedDataParallel: the command does that, once for each cap.
# A third value, if there is one, is a function of model and batch that returns the loss of a step.

PROGRAM = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

def build():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4)
    model = nn.Sequential(nn.Embedding(65, 64), encoder, nn.Linear(64, 65))
    batch = torch.randint(65, (6, 64)), torch.randint(65, (6, 64))

    def loss(model, batch):
        tokens, targets = batch
        return cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    return model, batch, loss
"""

# %%
# The command
# -----------
# On your machine you type ``ddplab tune-buckets train:build``, and it measures the link that is there.
# Here ``--emulate-link`` emulates one of 1.5 ms and 0.15 Gbit/s, so that buckets matter on a single host.
# The answer is JSON; ``as_text`` turns it into the table that you see without ``--json``.

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ddplab import record
from ddplab.cli.tune_buckets import as_text, draw

OPTIONS = ["--ranks", "2", "--emulate-link", "1500,0.15", "--seconds", "12", "--json"]
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "ddplab", "tune-buckets", "train:build", *OPTIONS]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
assert done.returncode == 0, done.stderr
found = json.loads(done.stdout)
print(as_text(found))

default, *others = found["measured"]
assert len(default["bucket_bytes"]) == 1  # less than 1 MiB: DDP's default is one bucket
assert len({tuple(seen["bucket_bytes"]) for seen in others}) == len(others) >= 1
for seen in found["measured"]:
    assert sum(seen["bucket_bytes"]) == found["bytes"]
    assert seen["median_ms"] > found["lower_bound_ms"] / 2

# %%
# How to read it
# --------------
# The line is the cost model with what was measured before the sweep: ready times, latency and rate.
# Marks are medians of steps that took turns, one step of each cap in each round; bars span their middle half.

fig, ax = draw(found)
assert len(ax.lines[2].get_xdata()) == len(found["predicted"]) - 1  # all but the default
assert ax.get_xscale() == "log"

# %%
# What is recommended follows from the differences to the default within each round.
# What disturbs a round disturbs all caps in it, so a busy machine blurs them less than it blurs the medians.

advice = found["recommended"]
ratios = [seen["predicted_ms"] / seen["median_ms"] for seen in found["measured"]]
errors = [100 * abs(ratio - 1) for ratio in ratios]
record(verdict=advice["verdict"], rounds=advice["rounds"], caps=len(found["measured"]))
record("ms", gain=advice["gain_ms"], default=default["median_ms"])
record("MiB", best=advice["best_bucket_cap_mb"])
record("%", worst_error=max(errors))
print(f"verdict: {advice['verdict']}")
print(f"largest error of a prediction: {max(errors):.1f} %")

# %%
# What to notice
# --------------
# * The predicted column was there before the sweep began, and it decided what the sweep tries.
# * ``default`` is a row of its own: DDP without ``bucket_cap_mb`` has a first bucket of 1 MiB, then 25.
# * The verdict is *clear* only if the whole 99 % interval of the difference is above zero, and 1 % is gained.
#
# What this does not mean
# -----------------------
# A step here is forward and backward; the optimizer adds the same time to every row.
# The advice is for these ranks, this model and this batch: ask again after you change one of them.
#
# Change it: predict, then run
# ----------------------------
# Take ``"50,10"`` for the link: 50 µs and 10 Gbit/s.
# What is the verdict?
#
# Expect: within noise, so the default stays.
#
# Say it aloud
# ------------
# "I measure when gradients are ready and what the link costs, predict every cap, and time the promising ones in turns with the default.
# I change the cap only if the whole interval is a gain.
# A larger cap saves latency and starts later; on a fast link the choice hardly shows."
