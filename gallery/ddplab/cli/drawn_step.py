"""A step drawn with characters."""

from __future__ import annotations

import shutil

from ..model.step import Step
from .text import short


def timeline(step: Step, accumulation: int) -> list[str]:
    """Draw the step, one character per slice of time: what goes on at the middle of the slice."""
    width = max(20, min(shutil.get_terminal_size((80, 24)).columns, 100) - 12)
    forward_s, backward_s = step.forward_s / accumulation, step.backward_s / accumulation
    computed_s = step.forward_s + step.backward_s
    compute, link = [], []
    for column in range(width):
        now = (column + 0.5) / width * step.step_s
        if now < computed_s:
            compute.append("F" if now % (forward_s + backward_s) < forward_s else "B")
        else:
            compute.append("O" if step.optimizer_s and now >= step.step_s - step.optimizer_s else ".")
        carried = next((t for t in step.timeline if t.start_s <= now < t.end_s), None)
        link.append(" " if carried is None else "0123456789abcdefghijklmnopqrstuvwxyz"[carried.bucket % 36])
    end = f"{short(step.step_s * 1e3)} ms"
    waits = ", . waits for the link" if "." in compute else ""
    return [
        f"  compute |{''.join(compute)}|",
        f"  link    |{''.join(link)}|",
        f"           0{end.rjust(width - 1)}",
        f"  F forward, B backward{waits}{', O optimizer' if 'O' in compute else ''}; on the link: the bucket's number",
    ]
