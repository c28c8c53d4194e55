"""What the two labs on failures of NCCL share: a setting, and how they tell what the ranks left."""

from __future__ import annotations

import re
import textwrap

from ..diagnose import Diagnosis
from ..runtime.shared_gpu import ASKED
from .postmortem import Ending

# NCCL is to refuse two ranks on a GPU, also where ranks may share one and where it could let them.
NOT_SHARED = {ASKED: "0", "NCCL_MULTI_RANK_GPU_ENABLE": "0"}


def log_of(endings: list[Ending]) -> list[str]:
    """What the ranks printed and raised, line by line, each behind its rank as torch writes it: ``[rank0]: …``."""
    return [f"[rank{e.rank}]: {line}" for e in endings for line in f"{e.printed}\n{e.error}".splitlines()]


def shown(answer: Diagnosis) -> str:
    """The line that an answer rests on, without how long the watchdog had waited: ranks may share a card."""
    text = re.sub(r"ran for \d+ milliseconds", "ran for … milliseconds", answer.evidence[0].text)
    return textwrap.indent(textwrap.fill(text[:180], 93), "  ")
