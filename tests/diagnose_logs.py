"""The logs that both engines of `ddplab diagnose` read: in Python, and in the page "Diagnose a log"."""

import io
from collections.abc import Mapping
from pathlib import Path

from ddplab.diagnose import Diagnosis, Engine, Entry, entries
from ddplab.diagnose.reading import ranks_of, read_text

OWN = Path(__file__).parent / "kit" / "diagnose"
KNOWN = entries(OWN / "entries")  # few, so that a test about ranking does not depend on the book's
LOGS = [(path.name, path.read_bytes()) for path in sorted((OWN / "logs").iterdir())]
BOOK = entries()
SAMPLES = [(f"{name}.log", sample.encode()) for name, entry in BOOK.items() for sample in entry.samples]
# A cause, and below it what each member of a family prints because of it.
CAUSE = "ddp-unused-parameter"
FOLLOWED = [
    (f"{name}.log", f"{BOOK[CAUSE].samples[0]}\n{entry.samples[0]}\n".encode())
    for name, entry in BOOK.items()
    if entry.family
]


def answers(known: Mapping[str, Entry], *files: tuple[str, bytes]) -> list[Diagnosis]:
    """What the engine in Python answers to the files, read as one job's."""
    engine = Engine(known)
    for (name, data), rank in zip(files, ranks_of([name for name, _ in files]), strict=True):
        engine.start(name, rank)
        for text in read_text(io.BufferedReader(io.BytesIO(data)), name):
            engine.feed(text)
    return engine.finish()
