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
        chapter = Path(folder, "handbook", "understand", "idea.md")

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
            ("html, nothing changed since", "html", None),
            ("pdf, with html there", "pdf", None),
            ("epub, with html there", "epub", None),
            ("slides, with html there", "slides", None),
            ("flashcards, with html there", "anki", None),
        ):
            if before:
                before()
            times[name] = seconds("make", target, f"PY={sys.executable}")  # the environment of this checkout
            print(f"{name:28}{times[name]:7.1f} s", flush=True)
        whole = sum(times.values()) - sum(list(times.values())[1:4])
        print(f"{'all of them, from nothing':28}{whole:7.1f} s", flush=True)

        plain = [sys.executable, "-m", "sphinx", "-c", "tests/plain", "-j", "auto", "-b", "html", "handbook", "_build"]
        taken: dict[str, list[float]] = {"plain": [], "ours": []}
        for name, command in [("plain", plain), ("ours", ["make", "html", f"PY={sys.executable}"])] * 3:
            for left in ("_build", "handbook/labs"):
                shutil.rmtree(Path(folder, left))
            taken[name].append(seconds(*command))
        of_sphinx, of_ours = (statistics.median(taken[name]) for name in ("plain", "ours"))
        print(f"{'html by plain Sphinx':28}{of_sphinx:7.1f} s   ours ÷ plain: {of_ours / of_sphinx:.2f}")


if __name__ == "__main__":
    main()
