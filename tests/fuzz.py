"""Feed the log reader random pieces of logs, for ten minutes: it must answer, soon, and whatever its pieces are.

    make fuzz SECONDS=600 SEED=7

Each log is put together from the tests' logs, lines made for harm and noise, then carried, cut, repeated and damaged.
A failure prints the seed, and leaves the log in a file. What counts: no exception; the same answer in pieces of another
size; and a time in proportion to the length: twice the log may take three times as long, measured where it is long
enough to tell, as the least of several processor times, since this machine has other work.
"""

import argparse
import io
import random
import sys
import tempfile
import time

from ddplab.diagnose import Engine
from ddplab.diagnose.ranking import Answer
from ddplab.diagnose.reading import read_text
from ddplab.errors import BadInput
from diagnose_logs import BOOK, FORMS, LOGS, SAMPLES, cut

HARM = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in f',
    '{"log":' * 400,
    '{"a":"' + "}" * 3000,
    "a-" * 300 + "1 b ",
    "> " * 400,
    "[rank1]: " * 90,
    "x" * 80,
    "Last error:",
    "Failures:",
    "Root Cause (first observed failure):",
    "\r" * 300,
    "\x1b[" * 300,
    "WorkNCCL(" * 200,
    "(world_size=" * 200,
    "\x1b]0;" + "t" * 2000,
    "error: " * 200,
    " " * 3000 + "Error: x",
    "a." * 1500 + "Error: x",
]
SLOW_S, GROWTH, TURNS = 2.0, 3.0, 3


def make(chance: random.Random) -> bytes:
    """A log."""
    known = [data.decode("utf-8", "replace") for _, data in LOGS + SAMPLES]
    lines: list[str] = []
    for _ in range(chance.randint(1, 12)):
        part = chance.choice([chance.choice(known).splitlines(), [chance.choice(HARM)], noise(chance)])
        form = chance.choice([*FORMS.values(), *[None] * len(FORMS)])
        lines += [form(line) if form else line for line in part] * chance.choice([1, 1, 1, 2, 40])
    if chance.random() < 0.2:
        chance.shuffle(lines)
    text = chance.choice(["\n", "\n", "\n", "\r\n", "\r"]).join(lines)
    text = cut(text, chance.randint(60, 140)) if chance.random() < 0.1 else text
    data = bytearray(text.encode(chance.choice(["utf-8", "utf-8", "utf-8", "utf-16"]), "replace"))
    for _ in range(chance.choice([0, 0, 3, 30])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def noise(chance: random.Random) -> list[str]:
    """Lines of no meaning."""
    signs = "abcERror:[](){}<>|\"' \\/0123456789.,-_\t\x00\x1b\r…é"
    return ["".join(chance.choices(signs, k=chance.randint(0, 200))) for _ in range(chance.randint(1, 60))]


def answer(data: bytes, size: int = 1 << 20) -> Answer | str:
    """The answer to a log that comes in pieces, or why it is refused."""
    engine = Engine(BOOK)
    engine.start("")
    try:
        for text in read_text(io.BufferedReader(io.BytesIO(data)), "log"):
            for at in range(0, len(text), size):
                engine.feed(text[at : at + size])
    except BadInput as problem:
        return str(problem)
    return engine.answer()


def seconds(data: bytes) -> float:
    """Processor time of an answer: the least of some tries."""
    best = float("inf")
    for _ in range(TURNS):
        start = time.process_time()
        answer(data)
        best = min(best, time.process_time() - start)
    return best


def problem(data: bytes, chance: random.Random) -> str:
    """What is wrong with the answer to a log; empty if nothing is."""
    start = time.process_time()
    try:
        whole = answer(data)
        if answer(data, chance.choice([1 << 9, 997, 65536])) != whole:
            return "the answer depends on the size of the pieces"
    except Exception as error:  # any is a fault
        return f"{type(error).__name__}: {error}"
    if time.process_time() - start > SLOW_S:
        repeated = data * max(1, 200_000 // len(data))
        once, twice = seconds(repeated), seconds(repeated * 2)
        if twice > GROWTH * once:
            return f"{once:.1f} s for {len(repeated):,} bytes, {twice:.1f} s for twice as many"
    return ""


def main() -> int:
    """Try logs until the time is up; the exit code says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    end, tried, seed = time.monotonic() + options.seconds, 0, options.seed
    while time.monotonic() < end:
        data = make(random.Random(seed))
        if wrong := problem(data, random.Random(seed)):
            with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".log", delete=False) as kept:
                kept.write(data)
            print(f"seed {seed}: {wrong}\nthe log: {kept.name}\nagain: make fuzz SECONDS=1 SEED={seed}")
            return 1
        tried, seed = tried + 1, seed + 1
    print(f"{tried:,} logs from seed {options.seed} on: all answered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
