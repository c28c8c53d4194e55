"""Writes ``tests/kit/diagnose/messages.toml``: the messages that a user can meet, and how many others there are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from scope import apart

OUT = Path(__file__).parents[1] / "kit" / "diagnose" / "messages.toml"
HEAD = """\
# What torch, NCCL and gloo can say to a user of DDP, by the file that says it: kind, releases, text.
# {} stands for what only a run knows.
# The texts are of PyTorch (BSD-3-Clause), NCCL (BSD-3-Clause; Apache-2.0 in the newest) and gloo (BSD-3-Clause).
# Made by tests/messages/collect.py from their sources and libraries; tests/kit/test_diagnose_messages.py reads it.
"""


def write(found: dict[str, dict[tuple[str, str, str], set[str]]]) -> None:
    """Write the list; ``found`` is by project: (file, kind, text) → versions."""
    lines, others = [HEAD], Counter[str]()
    lines.append("[releases]")
    for project, messages in found.items():
        lines.append(f"{project} = {json.dumps(_short(set().union(*messages.values())))}")
    for project, messages in found.items():
        lines.append(f"\n[{project}]")
        by_file: dict[str, list[str]] = {}
        for (file, kind, text), versions in sorted(messages.items()):
            if reason := apart(file, kind, text):
                others[reason] += 1
                continue
            releases = _short(versions)
            span = releases[0] if len(releases) == 1 else f"{releases[0]}-{releases[-1]}"
            row = json.dumps([kind, span, text], ensure_ascii=False)
            by_file.setdefault(file, []).append(f"  {row},")
        for file, rows in by_file.items():
            lines += [f'"{file}" = [', *rows, "]"]
    lines.append("\n[apart]  # how many messages of the same files are not in the list, and why")
    lines += [f"{json.dumps(reason)} = {count}" for reason, count in sorted(others.items())]
    OUT.write_text("\n".join(lines) + "\n")


def _short(versions: set[str]) -> list[str]:
    ordered = sorted(versions, key=lambda one: [int(part) for part in one.split(".")])
    return list(dict.fromkeys(".".join(one.split(".")[:2]) for one in ordered))
