"""Watch what code does to a folder, and tell what a kill or a power cut would leave of it at each moment.

The folder is a real one. It is compared with what it was before each call of a C function, which is what every
operation on files ends in: what is there at that moment is what a killed process leaves. ``os.fsync`` tells what has
reached the disk, and so what a power cut leaves. Nothing here depends on how Python's files are written.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Files = dict[str, "bytes | str | None"]  # by path in the folder; str: the target of a link, None: a folder

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "mmap.__new__")
_IN_MEMORY = (str, bytes, bytearray, memoryview, list, tuple, dict, set, type)  # whose methods touch no file
_active: list[DiskWatch] = []
_hooked: list[bool] = []  # whether this process has the audit hook, which cannot be removed


def read_files(folder: Path) -> Files:
    """Return what ``folder`` holds, folders first, then the oldest first."""
    files: Files = {}
    for path in sorted(folder.rglob("*"), key=lambda p: (not p.is_dir(), p.lstat().st_mtime_ns, str(p))):
        files[str(path.relative_to(folder))] = _content(path, path.lstat().st_mode)
    return files


def write_files(files: Files, folder: Path) -> None:
    """Make ``folder`` hold these files and nothing else, each newer than the one before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in sorted(files.items(), key=lambda item: item[1] is not None):
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.mkdir() if content is None else path.symlink_to(content)
    age([folder / name for name in files])


def age(paths: Sequence[Path]) -> None:
    """Make files old, the first the oldest, so that a coarse clock cannot mix up their order."""
    for number, path in enumerate(paths):
        os.utime(path, (10**9 + number, 10**9 + number), follow_symlinks=False)


@contextlib.contextmanager
def file_limit(nbytes: int | None) -> Iterator[None]:
    """Let no file of this process become longer, as on a full disk: a write takes what fits, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if nbytes is None else nbytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    print(printed.getvalue(), end="")


def _content(path: Path, mode: int) -> bytes | str | None:
    if stat.S_ISDIR(mode):
        return None
    return os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes()


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


@dataclass(frozen=True)
class Op:
    """One operation on the disk."""

    kind: str  # open, create, write, rename, link, remove, fsync
    name: str  # path in the folder; empty: the folder itself
    to: str = ""

    def __str__(self) -> str:  # noqa: D105
        return f"{self.kind} {f'`{self.name}`' if self.name else 'the folder'}{f' to `{self.to}`' if self.to else ''}"


@dataclass(frozen=True)
class Moment:
    """The folder as it may be found if everything ends after so many operations."""

    done: int
    how: str  # killed: "kill", "torn" (within a write); power cut, loses: "bytes", "names", "order" (only new names)
    files: Files


@dataclass(eq=False)
class _Node:
    """A file, link or folder, whatever its name: what it holds, and what has certainly reached the disk."""

    content: bytes | str | None = None
    on_disk: bytes = b""
    entries: dict[str, _Node] = field(default_factory=dict)
    entries_on_disk: dict[str, _Node] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)  # entries, since they last reached the disk

    def sync(self) -> None:
        self.entries_on_disk, self.removed = dict(self.entries), set()
        self.on_disk = self.content if isinstance(self.content, bytes) else b""

    def found(self, how: str) -> Iterator[tuple[str, bytes | str | None]]:
        for name, node in (self.entries_on_disk if how in ("names", "order") else self.entries).items():
            if how != "order" or name not in self.removed:
                yield name, node.on_disk if how != "kill" and isinstance(node.content, bytes) else node.content
                yield from ((f"{name}/{inner}", content) for inner, content in node.found(how))


class DiskWatch:
    """Watches ``folder`` while ``with`` lasts.

    Args:
        folder: what it holds at first has reached the disk.
        fail_at: the number, from 0, of the operation in ``asked`` that fails with an input/output error.
    """

    def __init__(self, folder: Path, fail_at: int = -1) -> None:
        self.folder, self.ops, self.moments = folder.resolve(), list[Op](), list[Moment]()
        self.asked: list[Op] = []  # opened to write, renamed, linked and flushed, also where that failed
        self.outside = self.program = ""  # a file written elsewhere; another program or a memory map that was used
        self.bare_write = False  # `os.write` was called
        self._fail_at, self._root = fail_at, _Node()
        self._nodes, self._seen = {folder.stat().st_ino: self._root}, dict[str, tuple[int, ...]]()
        self._nameless: dict[int, int] = {}  # files without a name: their size at the last fsync
        self._look()
        for node in self._nodes.values():
            node.sync()
        self.ops, self.moments = [], []
        self._done()

    def __enter__(self) -> DiskWatch:  # noqa: D105
        if not _hooked:
            _hooked.append(True)
            sys.addaudithook(lambda event, args: _active[-1]._audit(event, args) if _active else None)
        self._real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "sync") if hasattr(os, name)}
        for name in self._real:
            setattr(os, name, self._sync if name == "sync" else self._fsync)
        _active.append(self)
        sys.setprofile(self._before_call)
        return self

    def __exit__(self, *exception: object) -> None:  # noqa: D105
        sys.setprofile(None)
        _active.remove(self)
        for name, real in self._real.items():
            setattr(os, name, real)
        self._look()

    @property
    def end(self) -> Files:
        """What the folder holds now."""
        return dict(self._root.found("kill"))

    def _before_call(self, frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__module__ != "builtins" and not isinstance(function.__self__, _IN_MEMORY):
            self.bare_write |= function is os.write
            self._look()

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike) and args[2] & _WRITES:
            name, path = self._inside(args[0]), os.fsdecode(args[0])
            if name:
                self._begin(Op("open", name))
            elif name is None and os.path.isabs(path) and not path.startswith("/dev/") and "__pycache__" not in path:
                self.outside = path
        elif event in ("os.rename", "os.link") and args[2:] == (-1, -1):
            names = [self._inside(path) for path in args[:2]]
            if all(names):
                self._begin(Op(event[3:], str(names[0]), str(names[1])))
            elif any(names) and event == "os.rename":  # for all we know, between two file systems
                self.outside = os.fsdecode(args[0] if names[1] else args[1])
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), self.outside)
        elif event in _PROGRAMS:
            self.program = event.removesuffix(".__new__")

    def _inside(self, path: str | bytes | os.PathLike[str]) -> str | None:
        """Return the path in the folder, ``""`` for the folder itself, None for a path elsewhere."""
        whole = Path(os.path.abspath(os.fsdecode(path)))
        whole = whole if whole == self.folder else whole.parent.resolve() / whole.name
        return str(whole.relative_to(self.folder)).strip(".") if whole.is_relative_to(self.folder) else None

    def _begin(self, op: Op) -> None:
        self.asked.append(op)
        if len(self.asked) == self._fail_at + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), op.name)

    # -- what has reached the disk

    def _fsync(self, file: Any) -> None:
        if not isinstance(file, int) and not hasattr(file, "fileno"):
            raise TypeError("argument must be an int, or have a fileno() method.")
        found = os.fstat(file if isinstance(file, int) else file.fileno())
        self._look()
        node = self._nodes.get(found.st_ino)
        if node is None:
            self._nameless[found.st_ino] = found.st_size
            return
        name = next((name for name, (inode, *_) in self._seen.items() if inode == found.st_ino), "")
        self._begin(Op("fsync", name))
        node.sync()
        self._done(Op("fsync", name))

    def _sync(self) -> None:
        self._look()
        for node in self._nodes.values():
            node.sync()
        self._done(Op("sync", ""))

    # -- what is there

    def _scan(self, folder: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(info.st_mode)
                state = (0, 0) if is_folder else (info.st_size, info.st_mtime_ns)
                yield entry.path[len(str(self.folder)) + 1 :], (info.st_ino, info.st_mode, *state)
                if is_folder:
                    yield from self._scan(entry.path)

    def _look(self) -> None:
        """Note what has changed since the last look."""
        with contextlib.suppress(FileNotFoundError):  # removed by another thread meanwhile: see it the next time
            before, now = self._seen, dict(sorted(self._scan(str(self.folder)), key=lambda item: item[1][-1]))
            if before == now:
                return
            changed = [name for name in now if before.get(name) != now[name]]
            contents = {name: _content(self.folder / name, now[name][1]) for name in changed}
            self._seen = now
            self._compare(before, now, contents)

    def _compare(self, before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]], contents: Files) -> None:
        old_names = {inode: name for name, (inode, *_) in before.items()}
        inodes = {inode for inode, *_ in now.values()}
        torn: list[tuple[str, bytes]] = []
        ops = []
        for name, content in contents.items():
            inode = now[name][0]
            node, old_name = self._nodes.get(inode), old_names.get(inode)
            if node is None:
                node = self._nodes[inode] = _Node(content)
                ops.append(Op("create", name))
                if isinstance(content, bytes):
                    node.on_disk = content if self._nameless.get(inode) == len(content) else b""
                    torn += [(name, content[: len(content) // 2])] if content and inode not in self._nameless else []
            elif old_name is not None and before.get(name, (0,))[0] != inode and _parent(old_name) in {"", *now}:
                ops.append(Op("link" if now.get(old_name, (0,))[0] == inode else "rename", old_name, name))
            if isinstance(content, bytes) and isinstance(node.content, bytes) and content != node.content:
                ops.append(Op("write", name))
                appended = content.startswith(node.content)
                cut = (len(node.content) * appended + len(content)) // 2
                torn.append((name, content[:cut] + node.content[cut:]))
            node.content = content
        for name in before.keys() - now.keys():
            if before[name][0] not in inodes:
                ops.append(Op("remove", name))
                self._folder(before, _parent(name)).removed.add(os.path.basename(name))
        for inode in old_names.keys() - inodes:
            self._nodes.pop(inode, None)
        if torn:
            self.moments += [Moment(len(self.ops), "torn", {**self.end, **dict(torn)})]
        for folder in {"", *(name for name, content in now.items() if stat.S_ISDIR(content[1]))}:
            node = self._folder(now, folder)
            inner = {
                name[len(folder) + bool(folder) :]: name for name in now if name.startswith(folder and f"{folder}/")
            }
            entries = {last: self._nodes[now[name][0]] for last, name in inner.items() if "/" not in last}
            node.entries = {last: entries[last] for last in (*node.entries, *entries) if last in entries}
        self._done(*ops)

    def _folder(self, names: dict[str, tuple[int, ...]], folder: str) -> _Node:
        return self._nodes.get(names[folder][0], self._root) if folder else self._root

    def _done(self, *ops: Op) -> None:
        self.ops += ops
        for how in ("kill", "bytes", "names", "order"):
            self.moments.append(Moment(len(self.ops), how, dict(self._root.found(how))))
