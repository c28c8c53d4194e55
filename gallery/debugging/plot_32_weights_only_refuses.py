"""
``Weights only load failed``
============================

A checkpoint was written by an older program, or contains its arguments and the best loss besides the weights.
Since torch 2.6 ``torch.load`` accepts only tensors and plain types, and names the first other class that it finds.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-weights-only-refuses
"""

# %%
# The checkpoint contains the program's arguments, a ``Namespace`` with a ``Path`` in it.
# On the second try someone allows both classes, in rank 0's block, where the log is also opened.

import re
import tempfile

from ddplab import launch
from ddplab.apparatus.postmortem import postmortem


def save(path, plain):
    import argparse
    from pathlib import Path

    import torch

    args = argparse.Namespace(lr=0.1, runs=Path("runs"))
    if plain:
        args = {"lr": args.lr, "runs": str(args.runs)}
    torch.save({"model": torch.nn.Linear(2, 2).state_dict(), "args": args}, path)


def resume(path, allowed_on):
    import argparse
    from pathlib import Path

    import torch
    import torch.distributed as dist

    dist.barrier()  # all ranks are there
    if dist.get_rank() in allowed_on:
        torch.serialization.add_safe_globals([argparse.Namespace, type(Path())])
    state = torch.load(path)
    dist.all_reduce(torch.ones(1))  # training continues
    return f"resumes with {' and '.join(state)}"


def telling(ending):
    words = r"Weights only load failed|Connection \w+ by peer|Broken pipe"
    found = re.search(words, ending.error)[0]
    classes = re.search(r"Unsupported global: GLOBAL (\S+)", ending.error)
    return found + (f": {classes[1]}" if classes else "")


folder = tempfile.TemporaryDirectory()
path = f"{folder.name}/last.pt"
save(path, plain=False)
for allowed_on in [], [0]:
    endings = postmortem(resume, 2, path, allowed_on, leave=True)
    print(f"allowed on ranks {allowed_on}")
    print("".join(f"    rank {e.rank}: {telling(e)}\n" for e in endings), end="")
    assert [e.how for e in endings] == ["raised", "raised"]
    assert "argparse.Namespace was not an allowed global by default" in endings[1].error
assert endings[0].lost_peer  # it had loaded

# %%
# The list of allowed classes belongs to a process, and every rank is its own process.
# If only rank 0 has it, rank 0 loads, continues, and the log ends with its error.
#
# The message names one class at a time; torch lists all of them without loading any:


def classes(path):
    import torch

    return torch.serialization.get_unsafe_globals_in_checkpoint(path)


print(*launch(classes, 1, path)[0])

# %%
# Two ways to resume: allow the classes on every rank, or save plain types.

everywhere = launch(resume, 2, path, [0, 1])
save(path, plain=True)
plain = launch(resume, 2, path, [])
folder.cleanup()
print(f"allowed on every rank: {everywhere[1]}\nplain types: {plain[1]}")
assert everywhere == plain == ["resumes with model and args"] * 2

# %%
# The fix
# -------
# Save tensors, numbers, texts, lists and dicts: ``vars(args)``, ``str(path)``, ``float(best)``, ``scheduler.state_dict()``.
# For old files, call ``add_safe_globals`` at the top of the module, on all ranks, or convert each file once.
# ``weights_only=False`` runs whatever code is in the file, on every rank; use it only for files that you wrote.
#
# How to recognize it
# -------------------
# All ranks raise at the same line, at once, before the first step; a broken file gives ``PytorchStreamReader`` instead.
# If some ranks report it and others report a closed connection, the ranks differ in what they allow, or only some of them load.
