"""How long the builds of the book take here, one after the other, in a copy of what is committed: `make bench`.

Our own share is the time of a first build divided by that of plain Sphinx on the same pages (tests/plain/conf.py).
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Build each form, and print its seconds as soon as it is there."""
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as folder:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        chapter = Path(folder, "handbook", "idea.md")

        def edit() -> None:
            chapter.write_text(chapter.read_text(encoding="utf-8") + "\nOne more sentence.\n", encoding="utf-8")

        def seconds(*command: str) -> float:
            environment = {**os.environ, "PYTHONPATH": str(Path(folder, "gallery"))}  # the kit of the copy
            began_s = time.monotonic()
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
            return time.monotonic() - began_s

        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first build")
        times = {}
        for name, target, before in (
            ("html, from nothing", "html", None),
            ("html, nothing changed", "html", None),
            ("html, one chapter edited", "html", edit),
            ("pdf, with html there", "pdf", None),
            ("epub, with html there", "epub", None),
            ("slides, with html there", "slides", None),
            ("flashcards, with html there", "anki", None),
        ):
            if before:
                before()
            times[name] = seconds("make", target, f"PY={sys.executable}")  # the environment of this checkout
            print(f"{name:28}{times[name]:7.1f} s", flush=True)
        print(
            f"{'all of them, from nothing':28}{sum(times.values()) - sum(list(times.values())[1:3]):7.1f} s", flush=True
        )
        ours, plain = [times["html, from nothing"]], []
        for _ in range(3):
            for kept in ("_build", "handbook/labs"):
                shutil.rmtree(Path(folder, kept))
            plain.append(
                seconds(sys.executable, *"-m sphinx -c tests/plain -j auto -b html handbook _build/html".split())
            )
            for kept in ("_build", "handbook/labs"):
                shutil.rmtree(Path(folder, kept))
            ours.append(seconds("make", "html", f"PY={sys.executable}"))
        share = statistics.median(ours) / statistics.median(plain)
        print(f"{'plain Sphinx, html':28}{statistics.median(plain):7.1f} s: our share is {share:.2f}")


if __name__ == "__main__":
    main()
