"""What went wrong, by the log of a job: see :func:`diagnose`."""

from .answers import Diagnosis, Evidence, Followed
from .engine import Engine, diagnose
from .entry import Entry, EntryError, entries
from .ranking import Answer

__all__ = ["Answer", "Diagnosis", "Engine", "Entry", "EntryError", "Evidence", "Followed", "diagnose", "entries"]
