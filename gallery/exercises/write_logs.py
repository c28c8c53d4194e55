"""Write the log.txt of each exercise that fixes a program: what its starter prints, and how its ranks end.

    python gallery/exercises/write_logs.py [mend-nan …]

The ranks run the scene of the exercise's grader, in a group whose timeout is short. What torch says
is cut after its first line, and gloo's source lines and ports are left out.
"""

import contextlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from ddplab.apparatus.postmortem import postmortem, report
from ddplab.runtime.launcher import lanes

HERE = Path(__file__).parent


def scene(name: str, folder: str) -> None:
    """In a rank: run the starter as it is, nothing made visible, nothing explained."""
    import inspect
    from types import SimpleNamespace

    from ddplab.grading import training
    from ddplab.grading.checks import load_module

    vars(training).update(
        visible_ddp=lambda: contextlib.nullcontext(training.Reductions()),
        explained=lambda learner: contextlib.nullcontext(),
        slow_saves=lambda recorder, gone: contextlib.nullcontext([]),
    )
    grader: Any = load_module("grader", HERE / name / "grader.py")
    starter = load_module("starter", HERE / name / "starter.py")
    recorder = SimpleNamespace(folder=Path(folder))
    grader.scene(starter, *[recorder][: len(inspect.signature(grader.scene).parameters) - 1])


def log_of(name: str) -> str:
    """Run the exercise's starter on two ranks, and return its log."""
    with tempfile.TemporaryDirectory() as folder:
        endings = postmortem(scene, 2, name, folder, timeout_s=40, group_timeout_s=4)
    for ending in endings:
        if ending.error:
            first = ending.error.splitlines()[0]
            first = re.sub(r"\[/\S+:\d+\] | \[[\d.]+\]:\d+|, and by *$| GLHF.*", "", first)
            ending.error = f"{first} ({ending.where})"
    return f"{lanes([e.printed for e in endings])}\n{report(endings)}\n"


if __name__ == "__main__":
    for exercise in sys.argv[1:] or sorted(path.name for path in HERE.glob("mend-*")):
        (HERE / exercise / "log.txt").write_text(log_of(exercise), encoding="utf-8")
        print(exercise)
