"""What the log reader knows beside the entries: limits, word lists, patterns and texts, from TOML files.

The page "Diagnose a log" embeds the same files, so that only the control flow exists in two languages.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ValueError: it is not TOML, or not utf-8.
    """
    content: dict[str, Any] = _toml.loads(path.read_text("utf-8"))
    return content


TABLES = [Path(__file__).with_name(f"{name}.toml") for name in ("tables", "facts", "nothing")]
tables = {key: value for path in TABLES for key, value in read_toml(path).items()}
limits = SimpleNamespace(**tables["limits"])
words = SimpleNamespace(**tables["words"])
marks = SimpleNamespace(**tables["marks"])
why = SimpleNamespace(**tables["why"])
patterns = SimpleNamespace(**{name: re.compile(source, re.ASCII) for name, source in tables["patterns"].items()})
prefixes = [(one["kind"], re.compile(one["pattern"], re.ASCII)) for one in tables["prefixes"]]
any_prefix = re.compile("|".join(f"(?:{one['pattern']})" for one in tables["prefixes"]), re.ASCII)
signals = {one["number"]: SimpleNamespace(**one) for one in tables["signals"]}
packed = [(bytes.fromhex(one["magic"]), one.get("at", 0), one["what"], one["todo"]) for one in tables["packed"]]
answers: dict[str, dict[str, str]] = tables["answers"]
facts = [(one["kind"], one["needle"], re.compile(one["pattern"], re.ASCII)) for one in tables["facts"]]
says = SimpleNamespace(**tables["says"])
suspects = SimpleNamespace(**tables["suspects"])
nothing: dict[str, dict[str, Any]] = tables["nothing"]
general: dict[str, str] = tables["general"]
ends = [(one["end"], re.compile(one["pattern"], re.ASCII), one["collect"]) for one in tables["ends"]]
errors = [
    (re.compile(one["pattern"], re.ASCII), one["what"], one["next"], one.get("at_end", False))
    for one in tables["errors"]
]
