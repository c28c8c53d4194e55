"""What the page "Diagnose a log" needs of the entries and tables, as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .answers import page_of
from .entry import Entry
from .tables import tables

_SHOWN = ("id", "title", "role", "family", "cause", "fix", "collect", "explains")


def page_data(known: Mapping[str, Entry]) -> dict[str, Any]:
    """The tables, and the entries without what only the index shows."""
    shown = [
        {key: getattr(entry, key) for key in _SHOWN}
        | {"page": page_of(entry.id)}
        | {"matches": [[m.needle, m.regex.pattern if m.regex else "", m.nearby, m.weight] for m in entry.matches]}
        for entry in known.values()
    ]
    return {"entries": shown, "tables": tables}
