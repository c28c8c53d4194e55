"""What a log says went wrong: see :func:`diagnose`."""

from .engine import Engine, diagnose
from .entry import Entry, EntryError, entries
from .ranking import Diagnosis, Evidence, Followed

__all__ = ["Diagnosis", "Engine", "Entry", "EntryError", "Evidence", "Followed", "diagnose", "entries"]
