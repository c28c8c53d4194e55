"""What the page "Diagnose a log" needs of the entries, as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .entry import Entry
from .ranking import page_of
from .words import BUILT_IN, NOTHING_KNOWN


def page_data(known: Mapping[str, Entry]) -> dict[str, Any]:
    """Entries without what only the index shows, and the words for what no entry has."""
    return {
        "entries": [
            {
                "id": entry.id,
                "title": entry.title,
                "role": entry.role,
                "cause": entry.cause,
                "fix": entry.fix,
                "collect": entry.collect,
                "page": page_of(entry.id),
                "explains": list(entry.explains),
                "matches": [[m.needle, m.regex.pattern if m.regex else "", m.nearby] for m in entry.matches],
            }
            for entry in known.values()
        ],
        "builtIn": BUILT_IN,
        "nothingKnown": NOTHING_KNOWN,
    }
