"""What familiar errors of torch mean in a training script."""

import contextlib
import traceback
from collections.abc import Iterator
from types import ModuleType

from ddplab.grading.checks import Wrong

# What torch raises when a familiar line is missing, and which line that is.
HINTS = {
    "default process group twice": (
        "This process has a group already: `train_ddp` calls `setup_ddp` once, nothing else does, and `cleanup_ddp` "
        "must end the group.",
        "setup-process-group",
    ),
    "process group has not been initialized": (
        "DDP, samplers and collectives need the group: `setup_ddp` comes first, `cleanup_ddp` last.",
        "setup-process-group",
    ),
    "Process group cannot be None": (
        "There is no group to leave: `setup_ddp` makes it, with `dist.init_process_group`.",
        "setup-process-group",
    ),
    "EADDRINUSE": (
        "Another program listens at that port: let the system choose a free one in `launch_distributed` (bind port "
        "0), and pass it on.",
        "setup-process-group",
    ),
    "expected, but not set": (
        "The variables of torchrun are not set here: give rank, world size and port to `init_process_group` yourself.",
        "setup-process-group",
    ),
    "Invalid rank": (
        "A world size is written into the code; it is an argument, and the group knows it.",
        "setup-samplers",
    ),
    "pickle": (
        "A started process gets its arguments pickled: give it a function of the top level, no lambda and no inner "
        "function.",
        "setup-exercise",
    ),
}


@contextlib.contextmanager
def explained(learner: ModuleType) -> Iterator[None]:
    """Explain what torch says of a familiar mistake."""
    try:
        yield
    except Wrong:
        raise
    except Exception as error:
        for words, (hint, read) in HINTS.items():
            if words.lower() in str(error).lower():
                raise Wrong(f"{what_failed(error, learner)} {hint}", read) from error
        raise


def what_failed(error: BaseException, learner: ModuleType) -> str:
    """What was raised and where, in a line; from a started process its own traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    if "Traceback (most recent call last):" in str(error):
        at = [line.split(",")[1].strip() for line in lines if 'learner.py", line' in line] or ["?"]
        last = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])
        return f"A process that you started ended with {last[:300]}, at {at[-1]}."
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == learner.__file__]
    place = f"line {frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__}: {lines[0][:300]}, at {place}."
