"""The logs that both engines of `ddplab diagnose` read: in Python, and in the page "Diagnose a log"."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

from ddplab.diagnose import Diagnosis, Engine, Entry, entries
from ddplab.diagnose.ranking import Answer
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


def _json(**fields: object) -> str:
    return json.dumps(fields)


_TIME = "2026-11-21T10:00:00.123456789Z"
FORMS = {  # what carries logs, and a line of it
    "docker": lambda line: _json(log=line + "\n", stream="stderr", time=_TIME),
    "json logger": lambda line: _json(timestamp=_TIME, level="error", logger="train", message=line),
    "json field": lambda line: _json(jsonPayload={"message": line}, severity="ERROR"),
    "containerd": lambda line: f"{_TIME} stderr F {line}",
    "stern": lambda line: f"job-worker-0 pytorch {line}",
    "kubectl": lambda line: f"[pod/job-worker-0/torch] {line}",
    "pdsh": lambda line: f"worker-3: {line}",
    "ray": lambda line: f"(RayTrainWorker pid=4021, ip=10.0.0.5) {line}",
    "logging": lambda line: f"2026-11-21 10:00:00,123 ERROR train: {line}",
    "quoted": lambda line: f"> {line}",
    "all at once": lambda line: f"> {_TIME} stderr F " + _json(log=_json(message="ERROR:train:" + line)),
}


def cut(text: str, columns: int) -> str:
    """The lines as a terminal breaks them."""
    lines = text.splitlines()
    return "\n".join(line[at : at + columns] for line in lines for at in range(0, max(len(line), 1), columns))


_USER = dict(LOGS)["user.log"].decode()
WRAPPED = [
    (f"{name}.log", "\n".join(form(line) for line in _USER.splitlines()).encode()) for name, form in FORMS.items()
]
WRAPPED += [(f"{columns} columns.log", cut(_USER, columns).encode()) for columns in (80, 100, 132)]


def answers(known: Mapping[str, Entry], *files: tuple[str, bytes]) -> list[Diagnosis]:
    """The diagnoses of the engine in Python."""
    return answer(known, *files).diagnoses


def answer(known: Mapping[str, Entry], *files: tuple[str, bytes]) -> Answer:
    """What the engine in Python answers to the files, read as one job's."""
    engine = Engine(known)
    for (name, data), rank in zip(files, ranks_of([name for name, _ in files]), strict=True):
        engine.start(name, rank)
        for text in read_text(io.BufferedReader(io.BytesIO(data)), name):
            engine.feed(text)
    return engine.answer()
