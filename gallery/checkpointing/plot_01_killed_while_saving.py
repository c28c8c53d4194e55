"""
Killed while saving
===================

A run is killed at some moment while it saves: what can be loaded afterwards?
This lab writes the same tensors in three ways and sends SIGKILL at random moments.
It serves :ref:`checkpointing-atomic`.

A save is safe if at every moment some complete file has the name that the loader looks for.
A rename keeps this: before it the name means the old file, after it the new one.

:Level: core, 15 minutes
:Proves: ckpt-rename-survives-kills
"""

# %%
# Three ways to write
# -------------------
# The first overwrites the last checkpoint.
# The second writes a draft beside it and renames the draft, which replaces the old file in one step of the file system.
# The third is the manager of this book: it also waits for the disk, keeps two files, and stores a checksum.

import os
import random
import signal
import tempfile
import time
from multiprocessing import RawArray

import torch

from ddplab import launch, record
from ddplab.apparatus.plotting import ACCENT, MUTED, describe, subplots
from ddplab.checkpoint import CheckpointManager

KILLS, NUMBERS = 15, 1_000_000


def in_place(folder, state, step):
    torch.save({**state, "step": step}, f"{folder}/last.pt")


def draft_and_rename(folder, state, step):
    torch.save({**state, "step": step}, f"{folder}/last.pt.draft")
    os.replace(f"{folder}/last.pt.draft", f"{folder}/last.pt")


def manager(folder, state, step):
    CheckpointManager(folder, keep=2).save(state, step)


def last(folder):
    """The step that can be loaded: from the manager's folder, or from the one file."""
    if os.path.exists(f"{folder}/last.pt"):
        return torch.load(f"{folder}/last.pt")["step"]
    return CheckpointManager(folder).load()["step"]


# %%
# The kills
# ---------
# A child saves steps 1, 2, 3 … back to back; once its first save is done, it is killed at some moment of the next ones.
# It reports each step that it has finished, so we know what counts as a loss: anything older than that step.


def save_forever(save, folder, shared):
    try:
        state, step = {"weights": torch.zeros(NUMBERS)}, 1
        while True:
            shared[1] = time.monotonic()
            save(folder, state, step)
            shared[0], shared[2] = step, time.monotonic() - shared[1]
            step += 1
    finally:
        os._exit(1)


def kill_again_and_again(save, kills):
    torch.set_num_threads(1)  # a process with threads must not be forked
    chance, outcomes = random.Random(0), []
    for _ in range(kills):
        shared = RawArray(
            "d", 3
        )  # finished step; when the current save began; how long one took
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if child == 0:
                save_forever(save, folder, shared)
            while shared[0] == 0:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 1.5 * shared[2]))
            killed_at = time.monotonic()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            into_ms, finished = 1e3 * max(killed_at - shared[1], 0), shared[0]
            try:
                found, message = last(folder), ""
            except Exception as error:
                found, message = 0, f"{type(error).__name__}: {error}".replace(folder, "…")
            outcomes.append((into_ms, found >= finished, message))
    return outcomes


outcomes = {}
print(f"{KILLS} kills each, of saves of {NUMBERS * 4 / 2**20:.1f} MiB")
for save in (in_place, draft_and_rename, manager):
    (found,) = launch(kill_again_and_again, 1, save, KILLS, init=False)
    outcomes[save] = found
    lost = [message for _, good, message in found if not good]
    print(f"{save.__name__:17} checkpoints lost: {len(lost):2}   {max(lost, default='')[:60]}")
    record(**{f"lost_{save.__name__}": len(lost)})
record(kills=KILLS)

lost = [sum(not good for _, good, _ in found) for found in outcomes.values()]
assert lost[0] > KILLS / 3
assert lost[1:] == [0, 0]

# %%
# Each kill by how long the save had been under way; a cross is a lost checkpoint, and the first way keeps no other.

# drawing
fig, ax = subplots(height_in=2.0)
describe(fig, "Moments of the kills in three ways to save, and which lost the checkpoint")
for row, found in enumerate(outcomes.values()):
    for good, mark, color in ((True, "o", MUTED), (False, "x", ACCENT)):
        at = [into for into, whole, _ in found if whole == good]
        ax.plot(at, [row] * len(at), mark, color=color, ms=7, mfc="none")
ax.set_yticks(range(3), [save.__name__.replace("_", " ") for save in outcomes])
ax.set(xlabel="ms from the start of the save to the kill", ylim=(2.5, -0.5))

# %%
# What to notice
# --------------
#
# - Saves follow one another without a pause here, so nearly every kill hits one. A run that saves for a second every ten minutes is hit once in six hundred kills.
# - In place, :measured:`killed-while-saving.lost_in_place` of :measured:`killed-while-saving.kills` kills left nothing to load: the save begins by emptying the good file.
# - A rename is enough against kills. Before it the old file is there, after it the new one, and there is no moment in between.
#
# What this does not mean
# -----------------------
#
# That ``fsync`` is useless. What a killed process has written is safe, because the kernel keeps it; a power cut loses it, and no kill can show that (not run).
# Nor that the draft is cleaned up: it stays until somebody removes it, as the manager does at its next save.
#
# Change it: predict, then run
# ----------------------------
# Replace ``os.replace`` by ``shutil.copy``, and import ``shutil``.
# The draft is complete by then; is it enough?
#
# Expect: some kills lose the checkpoint again, since the copy writes into the good file.
#
# Say it aloud
# ------------
# "I write a draft beside the checkpoint and rename it, which replaces the file in one step.
# Wherever a kill falls, a complete file is there.
# That costs the space of two files, and time where it waits for the disk."
