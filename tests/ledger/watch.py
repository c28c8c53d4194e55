"""What a test reads of the project, and which programs it starts: seen as it runs, by an audit hook of this process.

Each is a short text: a file (``handbook/index.md``), its titles only (``handbook/index.md#``), the names in a folder
(``handbook/run/``), all below one (``gallery/ddplab/**``), what a program reaches (``gallery/recipes/train.py!``), or
all that git knows (``git``).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
_KIT = ("gallery/ddplab/**",)
_BOOK = (*_KIT, "handbook/_ext/**", "handbook/_static/**", "handbook/_templates/**", "conf.py")
_PROGRAMS = {  # names on a command line -> what stands behind them; Python is always taken to use the kit
    re.compile(r"sphinx\S*|make|downloads\.py"): _BOOK,
    re.compile(r"python[\d.]*|torchrun|ddplab|accelerate|pytest|sh|bash|srun|sbatch"): _KIT,
    re.compile(r"recipe"): ("gallery/recipes/**",),
    re.compile(r"grade"): ("gallery/exercises/**",),
    re.compile(r"edition"): ("gallery/editions/**",),
    re.compile(r"git"): ("git",),
}
_BUILT = re.compile(r"_build/(html|pdf|epub|slides|anki|editions|live)/")
# What is no input: installed packages, caches, and what a run itself leaves.
_NOT_OURS = re.compile(r"(\.git|\.venv[^/]*|_build|runs|tests/ledger/passes)(/|$)|(.*/)?(__pycache__|\.\w+_cache)(/|$)")
# Who opens modules to import them, to show their lines, or to make a key: what is imported is followed in the source.
_FOLLOWED = re.compile(
    r"importlib|linecache\.py|tokenize\.py|inspect\.py|assertion/rewrite\.py|recording/(reach|keys)\.py"
)
_TITLES = re.compile(r"ddplab/grading/exercises\.py")  # who opens pages to find the title of a section

_sinks: list[set[str]] = []  # of the test and the fixtures that run now; the last one takes what is seen


@contextlib.contextmanager
def seen() -> Iterator[set[str]]:
    """What is read and started inside of the block, but for what an inner block takes."""
    found: set[str] = set()
    _sinks.append(found)
    try:
        yield found
    finally:
        _sinks.pop()


def note(found: set[str]) -> None:
    """Add what another process saw, which did the same for all."""
    if _sinks:
        _sinks[-1] |= found


def note_url(url: str) -> None:
    """Add a file that a browser has opened by itself."""
    if _sinks and url.startswith("file:") and (name := _name(unquote(urlsplit(url).path))):
        _sinks[-1].add(name)


def install() -> None:
    """Begin to see; it cannot be undone."""
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _sinks:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = (mode is not None and set(mode) & set("wax+")) or (flags & (os.O_WRONLY | os.O_RDWR) and mode is None)
        if not writes and (name := _name(path)) and not (name.endswith(".py") and _is_followed()):
            _sinks[-1].add(f"{name}#" if name.endswith(".md") and _is_called_from(_TITLES) else name)
    elif event in ("os.scandir", "os.listdir"):
        if (name := _name(arguments[0] or ".", folder=True)) is not None and not _is_followed():
            _sinks[-1].add(f"{name}/")
    elif event == "subprocess.Popen":
        _sinks[-1].update(_started(arguments[1], os.path.abspath(os.fsdecode(arguments[2] or "."))))


def _name(path: object, *, folder: bool = False) -> str | None:
    """A file or folder of the project that counts, relative to its root."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    whole = os.path.abspath(os.fsdecode(path))
    if not whole.startswith(f"{ROOT}{os.sep}"):
        return None
    name = whole[len(str(ROOT)) + 1 :]
    return name if counts(name) and (folder or os.path.isfile(whole)) else None


def counts(name: str) -> bool:
    """Whether a file or folder is of the project, or built from it."""
    ours = _BUILT.match(f"{name}/") or not _NOT_OURS.match(name)
    return bool(ours) and not name.endswith((".pyc", ".lock"))


def _is_followed() -> bool:
    return _is_called_from(_FOLLOWED, "_digest")


def _is_called_from(files: re.Pattern[str], function: str = "") -> bool:
    frame = sys._getframe(2)
    for _ in range(16):  # pathlib has some between
        if files.search(frame.f_code.co_filename) or frame.f_code.co_name == function:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _started(command: Any, folder: str) -> Iterator[str]:
    """What a program that is started in a folder depends on: ours behind it, and the files of ours that it is given."""
    words = [command] if isinstance(command, str | bytes | os.PathLike) else list(command)
    line = " ".join(os.fsdecode(word) for word in words if isinstance(word, str | bytes | os.PathLike))
    names = {os.path.basename(word) for word in line.split()}
    if "git" in names and " -- " in line:  # it is asked of these paths only
        asked = [_name(os.path.join(folder, word), folder=True) for word in line.partition(" -- ")[2].split()]
        yield from (f"{name}/**" if (ROOT / name).is_dir() else name for name in asked if name)
        return
    for pattern, behind in _PROGRAMS.items():
        of_ours = behind != ("git",) or Path(folder).is_relative_to(ROOT)
        if of_ours and any(pattern.fullmatch(name) for name in names):
            yield from behind
    for word in line.split():
        name = _name(os.path.join(folder, word.rpartition("=")[2].partition("::")[0]))
        if name and (ROOT / name).is_file():
            yield f"{name}!" if name.endswith(".py") else name
