"""
A checkpoint that is read while it is written
=============================================

Rank 0 saves, all ranks load, and nothing makes the others wait.
Some find no file, some an empty one, some half of one, and on most days everything works.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-checkpoint-half-written
"""

# %%
# A save takes time, and a reader may come at any moment of it.
# Here rank 0 writes its checkpoint in steps, and rank 1 loads after each.

import tempfile

from ddplab import launch


def read_during(folder):
    import io
    from pathlib import Path

    import torch
    import torch.distributed as dist

    path, buffer, seen = Path(folder, "last.pt"), io.BytesIO(), {}
    torch.save({"weights": torch.zeros(100_000), "step": 7}, buffer)
    content = buffer.getvalue()
    for share in None, 0, 0.05, 0.5, 1:
        if dist.get_rank() == 0 and share is not None:
            path.write_bytes(content[: int(share * len(content))])
        dist.barrier()
        if dist.get_rank() == 1:
            try:
                seen[share] = f"step {torch.load(path)['step']}"
            except Exception as error:
                seen[share] = f"{type(error).__name__}: {error}".replace(folder, "…")
        dist.barrier()
    return seen


with tempfile.TemporaryDirectory() as folder:
    nothing, seen = launch(read_during, 2, folder)
for share, message in seen.items():
    print(f"{'no file' if share is None else f'{share:.0%}':9}rank 1: {message[:76]}")
    print(f"{'':17}{message[76:152]}\n" * (share == 0.5), end="")
no_file, empty, some, half, whole = seen.values()
assert [no_file[:17], empty[:8], whole] == ["FileNotFoundError", "EOFError", "step 7"]
assert "PytorchStreamReader failed reading zip archive: failed finding central" in half
assert some == "OSError: [Errno 22] Invalid argument"  # seen in torch 2.13

# %%
# The index of the file, a zip archive, is at its end, so anything shorter than the whole file is unreadable.
# A piece of more than 4 and up to about 65 KiB gives ``Invalid argument``, any other ``PytorchStreamReader failed`` (torch 2.13).
# If rank 0 is killed in the middle, the file stays like this, and the next start finds it.
#
# With the fix, rank 1 looks while rank 0 writes step 14 over step 7, and again after the barrier.


def read_around(folder):
    import os
    from pathlib import Path

    import torch
    import torch.distributed as dist

    def save(step, half_way=lambda: None):
        with open(f"{path}.tmp", "wb") as file:
            torch.save({"weights": torch.zeros(100_000), "step": step}, file)
            half_way()
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)

    path, seen = Path(folder, "last.pt"), []
    if dist.get_rank() == 0:
        save(7)
        save(14, half_way=lambda: (dist.barrier(), dist.barrier()))
    else:
        dist.barrier()  # step 14 is being written
        seen.append(torch.load(path)["step"])
        dist.barrier()
    dist.barrier()  # no rank loads before rank 0 has saved
    return [*seen, torch.load(path)["step"]]


with tempfile.TemporaryDirectory() as folder:
    steps = launch(read_around, 2, folder)
print(f"rank 1 loads step {steps[1][0]} during the save, and step {steps[1][1]} after it")
assert steps == [[14], [7, 14]]

# %%
# The fix
# -------
# Write to another name in the same folder, ``fsync``, ``os.replace``; then a barrier of all ranks; then load.
#
# How to recognize it
# -------------------
# It fails on ranks other than 0, not in every run, and a second attempt works; or at a restart after a kill, on all ranks, and every attempt fails.
# ``FileNotFoundError`` on one machine only is another fault: the folder is not shared.
