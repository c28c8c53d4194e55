"""Checks of the atomic save: each step that it makes on the disk is seen, and ended there.

`save` runs once, with something in between that sees it open, write, flush, rename and remove. Each
moment is then built again in another folder: as a killed process leaves it, where all that reached
the kernel stays, and as a power cut leaves it, where what was not flushed may be gone. There
`load_latest`, imported anew, has to find a state. Nothing is killed at random, no disk is filled.
"""

import _io
import builtins
import errno
import io
import itertools
import linecache
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ddplab.grading.checks import Wrong, _load, check, expect
from ddplab.grading.witness import Witness

READ = "checkpointing-atomic"
NUMBERS = 8_000  # of 8 random bytes each, which no compression makes smaller
STATE_BYTES = 8 * NUMBERS
O_TMPFILE = getattr(os, "O_TMPFILE", -1)

State = dict[str, Any]


def state_of(step: int) -> State:
    """A state like no other."""
    numbers = torch.Generator().manual_seed(step)
    weight = torch.randint(-(2**62), 2**62, (NUMBERS,), generator=numbers)
    return {"step": step, "model": {"weight": weight, "bias": torch.full((3,), step + 0.5)}}


def is_state(found: Any, step: int) -> bool:
    """Whether that is the state of `step`, to the bit."""
    right = state_of(step)
    try:
        return bool(
            found.keys() == right.keys()
            and found["step"] == step
            and found["model"].keys() == right["model"].keys()
            and all(torch.equal(found["model"][n], t) for n, t in right["model"].items())
        )
    except Exception:
        return False


# -- a disk in memory ------------------------------------------------------------------------------


@dataclass
class File:
    """Its bytes, and those that have reached the disk for certain."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Link:
    """A symbolic link."""

    target: str


@dataclass
class Folder:
    """Its entries, those that have reached the disk for certain, and those removed since then."""

    entries: dict[str, "File | Link | Folder"] = field(default_factory=dict)
    synced: dict[str, "File | Link | Folder"] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def sync(self) -> None:
        """Bring the entries to the disk."""
        self.synced, self.removed = dict(self.entries), set()


@dataclass(frozen=True)
class Op:
    """One step on the disk."""

    kind: str  # open, truncate, write, fsync, rename, link, remove, mkdir, fsync folder, sync
    name: str
    to: str = ""
    nbytes: int = 0

    def __str__(self) -> str:  # noqa: D105
        name = f"`{self.name}`" if self.name else "the folder"
        if self.kind == "write":
            return f"write {self.nbytes} bytes to {name}"
        if self.to:
            return f"{self.kind} {name} to `{self.to}`"
        return f"{self.kind} {name}"


Snapshot = dict[str, bytes | str | None]  # by name; str: a symbolic link, None: a folder


@dataclass(frozen=True)
class Moment:
    """A folder as it may be found, when the world ended after so many operations."""

    done: int
    how: str  # "kill", "torn", "bytes", "names", "order"
    files: Snapshot
    late: tuple[str, ...] = ()  # files whose last bytes had not been flushed


class Disk:
    """The folder as it is after each operation, and as it would be found after each."""

    def __init__(self, folder: Path) -> None:
        self.root, self.ops, self.moments = Folder(), list[Op](), list[Moment]()
        self.inodes: dict[int, File | Folder] = {folder.stat().st_ino: self.root}
        self.paths: dict[int, str] = {}  # the name under which a file was opened, by inode
        for path in sorted(folder.iterdir()):
            self.root.entries[path.name] = self._existing(path)
        for node in self.inodes.values():
            if isinstance(node, Folder):
                node.sync()
        self._see()

    def _existing(self, path: Path) -> File | Link | Folder:
        if path.is_symlink():
            return Link(os.readlink(path))
        if path.is_dir():
            node: File | Folder = Folder({p.name: self._existing(p) for p in path.iterdir()})
        else:
            content = path.read_bytes()
            node = File(bytearray(content), content)
        self.inodes[path.stat().st_ino] = node
        return node

    def at(self, parts: Sequence[str]) -> tuple[Folder, str]:
        """The folder of that path, and the last name in it."""
        node = self.root
        for part in parts[:-1]:
            inner = node.entries[part]
            assert isinstance(inner, Folder)
            node = inner
        return node, parts[-1]

    def note(self, op: Op) -> None:
        """One operation more is done."""
        self.ops.append(op)
        self._see()

    def _see(self) -> None:
        done, late = len(self.ops), tuple(self._late(self.root, ""))
        for how in ("kill", "bytes", "names", "order"):
            self.moments.append(Moment(done, how, dict(self._found(self.root, "", how)), late))
        self.end = self.moments[-4].files  # if nothing comes any more

    def torn(self) -> None:
        """See the folder in the middle of a write."""
        found = dict(self._found(self.root, "", "kill"))
        self.moments.append(Moment(len(self.ops), "torn", found))

    def _late(self, node: Folder, before: str) -> Iterator[str]:
        for name, inner in node.entries.items():
            if isinstance(inner, Folder):
                yield from self._late(inner, f"{before}{name}/")
            elif isinstance(inner, File) and bytes(inner.data) != inner.synced:
                yield before + name

    def _found(
        self, node: Folder, before: str, how: str
    ) -> Iterator[tuple[str, bytes | str | None]]:
        names = node.synced if how in ("names", "order") else node.entries
        for name, inner in names.items():
            if how == "order" and name in node.removed:
                continue
            if isinstance(inner, Folder):
                yield before + name, None
                yield from self._found(inner, f"{before}{name}/", how)
            elif isinstance(inner, Link):
                yield before + name, inner.target
            else:
                yield before + name, bytes(inner.data) if how == "kill" else inner.synced


def age(paths: Sequence[Path]) -> None:
    """Make them old, the first the oldest, so that the times of files are in the order of saves."""
    for number, path in enumerate(paths):
        os.utime(path, (10**9 + number, 10**9 + number), follow_symlinks=False)


def put(files: Snapshot, folder: Path) -> None:
    """Make the folder hold these, and nothing else; the later in order, the newer."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.mkdir()
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
    age([folder / name for name in files])


def taken(folder: Path) -> Snapshot:
    """What the folder holds."""
    found: Snapshot = {}
    for path in sorted(folder.rglob("*"), key=lambda p: (p.lstat().st_mtime_ns, str(p))):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return dict(sorted(found.items(), key=lambda item: item[1] is not None))  # folders first


# -- in between ------------------------------------------------------------------------------------


# fmt: off
SEEN = (  # functions of `os`
    "open", "write", "pwrite", "fsync", "fdatasync", "sync", "replace", "rename", "link", "symlink",
    "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate",
)
# fmt: on


class Between:
    """Sees, and can fail, what Python asks of the disk below `folder`.

    Patched while `with` lasts: what `open` makes, and the functions of `os`. `torch.save` to a path
    writes in C++; it is given a file of Python's, and does the same.
    """

    def __init__(self, folder: Path, fail: Callable[[Op], int | None] = lambda op: None) -> None:
        self.folder, self.disk, self.fail = folder.resolve(), Disk(folder), fail
        self.elsewhere: list[str] = []  # files written in other folders
        self.bare = self.full = False  # `os.write` was used; the disk has taken its last bytes
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> "Between":  # noqa: D105
        for name in SEEN:
            self._patch(os, name, getattr(self, f"_{name}"))
        for module in (builtins, io, _io):
            self._patch(module, "open", self._open_file)
        self._patch(torch, "save", self._torch_save)
        self._patch(shutil, "_USE_CP_SENDFILE", lambda real: False)
        close = vars(tempfile)[
            "_TemporaryFileCloser"
        ].close  # has the real one as a default (Python 3.11)
        if close.__defaults__:
            self._patch(close, "__defaults__", lambda real: (os.unlink,))
        return self

    def __exit__(self, *exception: object) -> None:  # noqa: D105
        while self._undo:
            self._undo.pop()()

    def _patch(self, where: Any, name: str, make: Callable[[Any], Any]) -> None:
        if not hasattr(where, name):
            return
        real = getattr(where, name)
        self._undo.append(lambda: setattr(where, name, real))
        setattr(where, name, make(real))

    # -- names

    def _parts(self, path: Any, dir_fd: int | None = None) -> tuple[str, ...] | None:
        """The path from the folder; None if it is elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        whole = Path(os.path.abspath(text))
        whole = whole.parent.resolve() / whole.name
        if whole == self.folder:
            return ()
        return whole.relative_to(self.folder).parts if whole.is_relative_to(self.folder) else None

    def _begin(self, kind: str, name: str, to: str = "", nbytes: int = 0) -> Op:
        op = Op(kind, name, to, nbytes)
        number = self.fail(op)
        if number:
            raise OSError(number, os.strerror(number), name)
        return op

    # -- files

    def _open(self, real: Any) -> Any:
        def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            parts = self._parts(path, dir_fd)
            if parts is not None and flags & O_TMPFILE == O_TMPFILE:  # a file without a name
                fd = int(real(path, flags, mode, dir_fd=dir_fd))
                self.disk.inodes[os.fstat(fd).st_ino] = File()
                return fd
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if not writes or not parts:
                if writes and parts is None and flags & os.O_CREAT:
                    self.elsewhere.append(os.fsdecode(path))
                return int(real(path, flags, mode, dir_fd=dir_fd))
            name = "/".join(parts)
            op = self._begin("open", name)
            fd = int(real(path, flags, mode, dir_fd=dir_fd))
            node, last = self.disk.at(parts)
            inode, held = os.fstat(fd).st_ino, node.entries.get(last)
            if not isinstance(held, File):
                held = node.entries[last] = File()
                self.disk.inodes[inode] = held
            elif flags & os.O_TRUNC and held.data:
                del held.data[:]
            elif not flags & os.O_CREAT:
                return fd  # nothing has changed
            self.disk.paths[inode] = name
            self.disk.note(op)
            return fd

        return os_open

    def _open_file(self, real: Any) -> Any:
        def open_file(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            mine = set(mode) & set("wax+") and self._is_mine(file)
            if not mine:
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if buffering == 0 and "b" not in mode:
                raise ValueError("can't have unbuffered text I/O")
            raw_mode = mode.replace("b", "").replace("t", "")
            open_it = opener or (lambda path, flags: os.open(path, flags, 0o666))
            raw = Raw(self, file, raw_mode, closefd, None if isinstance(file, int) else open_it)
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
            buffered = io.BufferedRandom if "+" in mode else io.BufferedWriter
            binary = buffered(raw, size)
            if "b" in mode:
                return binary
            return io.TextIOWrapper(binary, encoding, errors, newline, buffering == 1)

        return open_file

    def _is_mine(self, file: Any) -> bool:
        if isinstance(file, int):
            return os.fstat(file).st_ino in self.disk.inodes
        parts = self._parts(file)
        if parts is None:
            self.elsewhere.append(os.fsdecode(file))
        return parts is not None

    def _torch_save(self, real: Any) -> Any:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, str | os.PathLike):
                with builtins.open(f, "wb") as file:
                    real(obj, file, *args, **kwargs)
            else:
                real(obj, f, *args, **kwargs)

        return save

    def _file(self, fd: int) -> tuple[File | Folder | None, str]:
        inode = os.fstat(fd).st_ino
        held = self.disk.inodes.get(inode)
        return held, self._name_of(self.disk.root, held, "") or self.disk.paths.get(inode, "")

    def _name_of(self, node: Folder, held: Any, before: str) -> str:
        for name, inner in node.entries.items():
            if inner is held:
                return before + name
            if isinstance(inner, Folder):
                found = self._name_of(inner, held, f"{before}{name}/")
                if found:
                    return found
        return ""

    def written(self, fd: int, content: Any, real: Callable[[Any], int], at: int = -1) -> int:
        """Write to a file that may be in the folder."""
        held, name = self._file(fd)
        if not isinstance(held, File):
            return real(content)
        content = bytes(content)
        op = Op("write", name, nbytes=len(content))
        number = self.fail(op)
        if number == errno.ENOSPC and len(content) > 1 and not self.full:
            content, self.full = content[: len(content) // 2], True  # it takes what fits
        elif number:
            raise OSError(number, os.strerror(number))
        if at < 0:
            appends = _flags(fd) & os.O_APPEND
            at = len(held.data) if appends else os.lseek(fd, 0, os.SEEK_CUR)
        count = real(content)
        before = bytes(held.data)
        for half in (True, False):
            part = content[: count // 2] if half else content[:count]
            data = bytearray(before.ljust(at, b"\0"))
            data[at : at + len(part)] = part
            held.data = data
            if half:
                self.disk.torn()
        if _flags(fd) & (os.O_SYNC | os.O_DSYNC):
            held.synced = bytes(held.data)
        self.disk.note(op)
        return count

    def _write(self, real: Any) -> Any:
        def write(fd: int, data: Any) -> int:
            self.bare = True
            return self.written(fd, data, lambda part: int(real(fd, part)))

        return write

    def _pwrite(self, real: Any) -> Any:
        def pwrite(fd: int, data: Any, offset: int) -> int:
            self.bare = True
            return self.written(fd, data, lambda part: int(real(fd, part, offset)), offset)

        return pwrite

    def cut(self, held: Any, name: str, size: int) -> None:
        """A file was truncated, or made longer."""
        if isinstance(held, File):
            held.data = bytearray(bytes(held.data[:size]).ljust(size, b"\0"))
            self.disk.note(Op("truncate", name))

    def _ftruncate(self, real: Any) -> Any:
        def ftruncate(fd: int, length: int) -> None:
            real(fd, length)
            self.cut(*self._file(fd), length)

        return ftruncate

    def _truncate(self, real: Any) -> Any:
        def truncate(path: Any, length: int) -> None:
            real(path, length)
            fd = path if isinstance(path, int) else os.open(path, os.O_RDONLY)
            self.cut(*self._file(fd), length)
            if fd != path:
                os.close(fd)

        return truncate

    # -- flushing

    def _fsync(self, real: Any) -> Any:
        def fsync(file: Any) -> None:
            if not isinstance(file, int) and not hasattr(file, "fileno"):
                raise TypeError("argument must be an int, or have a fileno() method.")
            held, name = self._file(file if isinstance(file, int) else file.fileno())
            folder = isinstance(held, Folder)
            op = self._begin("fsync", name) if held else Op("fsync", name)
            if isinstance(held, File):
                held.synced = bytes(held.data)
            elif folder:
                assert isinstance(held, Folder)
                held.sync()
            if held is not None:
                self.disk.note(op)

        return fsync

    _fdatasync = _fsync

    def _sync(self, real: Any) -> Any:
        def sync() -> None:
            for held in self.disk.inodes.values():
                if isinstance(held, File):
                    held.synced = bytes(held.data)
                else:
                    held.sync()
            self.disk.note(Op("sync", ""))

        return sync

    # -- names

    def _move(self, real: Any) -> Any:
        def rename(
            src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            parts = [self._parts(src, src_dir_fd), self._parts(dst, dst_dir_fd)]
            if not all(parts):
                if any(parts):  # across the border: another file system, for all we know
                    self.elsewhere.append(os.fsdecode(src if parts[1] else dst))
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(src))
                real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            source, target = (part or () for part in parts)
            op = self._begin("rename", "/".join(source), "/".join(target))
            real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            (before, name), (after, new) = self.disk.at(source), self.disk.at(target)
            after.entries.pop(new, None)
            after.entries[new] = before.entries.pop(name)
            self.disk.note(op)

        return rename

    _replace = _rename = _move

    def _link(self, real: Any) -> Any:
        def link(src: Any, dst: Any, **options: Any) -> None:
            parts = self._parts(dst, options.get("dst_dir_fd"))
            held = self.disk.inodes.get(os.stat(src, dir_fd=options.get("src_dir_fd")).st_ino)
            if not parts or held is None:
                real(src, dst, **options)
                return
            source = self._name_of(self.disk.root, held, "")
            op = self._begin("link", source or "a file without a name", "/".join(parts))
            real(src, dst, **options)
            node, name = self.disk.at(parts)
            node.entries[name] = held
            self.disk.note(op)

        return link

    def _symlink(self, real: Any) -> Any:
        def symlink(src: Any, dst: Any, directory: bool = False, **options: Any) -> None:
            parts = self._parts(dst, options.get("dir_fd"))
            if not parts:
                real(src, dst, directory, **options)
                return
            op = self._begin("symlink", os.fsdecode(src), "/".join(parts))
            real(src, dst, directory, **options)
            node, name = self.disk.at(parts)
            node.entries[name] = Link(os.fsdecode(src))
            self.disk.note(op)

        return symlink

    def _remove(self, real: Any) -> Any:
        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            parts = self._parts(path, dir_fd)
            real(path, dir_fd=dir_fd)
            if parts:
                node, name = self.disk.at(parts)
                node.entries.pop(name, None)
                node.removed.add(name)
                self.disk.note(Op("remove", "/".join(parts)))

        return unlink

    _unlink = _rmdir = _remove

    def _mkdir(self, real: Any) -> Any:
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            parts = self._parts(path, dir_fd)
            real(path, mode, dir_fd=dir_fd)
            if parts:
                node, name = self.disk.at(parts)
                node.entries[name] = made = Folder()
                self.disk.inodes[os.stat(path, dir_fd=dir_fd).st_ino] = made
                self.disk.note(Op("mkdir", "/".join(parts)))

        return mkdir


class Raw(io.FileIO):
    """A file that says what is written to it, below Python's buffer."""

    def __init__(self, between: Between, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        self.between = between
        super().__init__(file, mode, closefd, opener)

    def write(self, content: Any) -> int:
        """Write, as the kernel sees it."""
        write = super().write
        return self.between.written(self.fileno(), content, lambda part: int(write(part) or 0))

    def truncate(self, size: int | None = None) -> int:
        """Cut."""
        size = super().truncate(size)
        self.between.cut(*self.between._file(self.fileno()), size)
        return size


def _flags(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GETFL)


# -- in the rank -----------------------------------------------------------------------------------


class Bench:
    """A folder, and the learner's two functions, each imported by a process of its own."""

    def __init__(self, learner: ModuleType, witness: Witness) -> None:
        self.file = str(learner.__file__)
        self.text = "".join(linecache.getlines(self.file))
        self.folder, self.found = witness.folder / "checkpoints", witness.folder / "found"
        self.folder.mkdir()
        self.found.mkdir()
        for name in ("fsync", "fdatasync", "sync"):  # it counts that they are called, not the wait
            if hasattr(os, name):
                setattr(os, name, lambda *file: None)
        self.reader = self.anew()

    def anew(self) -> Any:
        """The learner's file as a new process has it; what it keeps in memory is lost."""
        return _load("learner", Path(self.file), self.text)

    def save(self, step: int, keep: int, folder: Path | None = None) -> None:
        """Save the state of that step, some time after the one before."""
        folder = folder or self.folder
        age(sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime_ns))
        self.anew().save(state_of(step), folder, step, keep)

    def seen(self, step: int, keep: int) -> Between:
        """Save, and see what it did."""
        between = Between(self.folder)
        try:
            with between:
                self.save(step, keep)
        finally:
            same_draft(between)
        found = dict(between.disk._found(between.disk.root, "", "kill"))
        held = taken(self.folder)
        expect(
            found == held,
            "The grader could not follow what `save` did on the disk: it saw "
            f"{listed(found)}, and there is {listed(held)}. Use Python's files, `os`, `shutil` or "
            "`pathlib`: no other program, no memory map.",
        )
        return between

    def load(self, folder: Path, steps: Sequence[int | None]) -> str:
        """Why `load_latest` gives none of these steps; empty if it gives one."""
        try:
            found = self.reader.load_latest(folder)
        except Exception as error:
            return f"raised {type(error).__name__}: {first_line(error)}"
        if found is None:
            return "" if None in steps else "returned None"
        if any(step is not None and is_state(found, step) for step in steps):
            return ""
        held = found.get("step") if isinstance(found, dict) else None
        if isinstance(held, int) and is_state(found, held):
            return f"returned the state of step {held}"
        return f"returned what was never saved ({str(found)[:60]!r})"


def first_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    return (str(error).splitlines() or [""])[0][:160]


def listed(files: Snapshot) -> str:
    """`a` (12 bytes) and `b` (0 bytes)."""
    names = [
        f"`{name}`" + (f" ({len(content)} bytes)" if isinstance(content, bytes) else "")
        for name, content in files.items()
    ]
    return ", ".join(names) or "nothing"


def told(ops: Sequence[Op]) -> str:
    """What `save` did, in one sentence; writes that follow each other are one."""
    said: list[str] = []
    for (kind, name), group in itertools.groupby(ops, lambda op: (op.kind, op.name)):
        some = list(group)
        if kind == "write":
            some = [Op(kind, name, nbytes=sum(op.nbytes for op in some))]
        said += map(str, some)
    return f"`save` did: {'; '.join(said)}."


def same_draft(between: Between) -> None:
    """Judge where drafts are."""
    if between.elsewhere:
        raise Wrong(
            f"`save` moves a file from `{Path(between.elsewhere[-1]).parent}`, or writes there. "
            "That may be another file system: a rename then fails with EXDEV, and a move "
            "becomes a copy, which can be cut off. The draft belongs into the folder itself.",
            READ,
        )


# -- 1: saved and loaded ---------------------------------------------------------------------------


@check("What was saved is loaded", ranks=1, judge=lambda seen: None, read=READ)
def plain(learner: ModuleType, witness: Witness) -> None:
    """An empty folder; then steps 8, 9, 10 and 100, of which the newest two stay."""
    bench = Bench(learner, witness)
    problem = bench.load(bench.folder, [None])
    expect(not problem, f"The folder was empty, and `load_latest` {problem}. It is to return None.")
    steps = [8, 9, 10, 100]
    for number, step in enumerate(steps, 1):
        bench.save(step, 2)
        problem = bench.load(bench.folder, [step])
        as_text = sorted(steps[:number], key=str)[-1]
        idea = ""
        if f"step {as_text}" in problem or sorted(steps[:number], key=str)[:-2] == [step]:
            idea = " As text, 10 comes before 8: sort by the number, or write it with zeros before."
        saved = ", ".join(map(str, steps[:number]))
        expect(not problem, f"After steps {saved} were saved `load_latest` {problem}.{idea}")
        held = sum(len(c) for c in taken(bench.folder).values() if isinstance(c, bytes))
        count, right = held // STATE_BYTES, min(number, 2)
        what = "holds older ones, too" if count > right else "has lost one that was to stay"
        expect(
            count == right,
            f"After steps {saved} were saved with `keep=2`, the folder {what}: it has {held} "
            f"bytes, which is {count} states, in {listed(taken(bench.folder))}.",
        )
    bench.save(101, 1)
    problem = bench.load(bench.folder, [101])
    expect(not problem, f"After step 101 was saved with `keep=1` `load_latest` {problem}.")


# -- 2 and 3: the end of the world -----------------------------------------------------------------

SCENES = [((9,), 10, 1), ((), 9, 2), ((8, 9), 10, 2)]  # saved before, saved now, keep


def scenes(bench: Bench) -> Iterator[tuple[Between, int | None, int]]:
    """See one save each; the step before, and the step saved."""
    for before, step, keep in SCENES:
        put({}, bench.folder)
        for old in before:
            bench.save(old, keep)
        yield bench.seen(step, keep), before[-1] if before else None, step


def whole_names(between: Between, step: int) -> None:
    """Judge that no file was ever there in part under the name that it keeps."""
    disk = between.disk
    first, last = disk.moments[0].files, disk.end
    for moment in disk.moments:
        if moment.how not in ("kill", "torn"):
            continue
        for name in last.keys() & moment.files.keys():
            held, end = moment.files[name], last[name]
            if held == end or held == first.get(name, b"-") or end is None:
                continue
            size, full = len(held or ""), len(end)
            raise Wrong(
                f"`{name}` was there with {size} bytes, and has {full} when `save` returns: "
                "whoever looks in between, or after a kill, finds a part under the name of the "
                "whole. Write a draft under another name, and rename it when it is complete. "
                f"{told(disk.ops)}",
                READ,
            )


@check("Killed at any moment", ranks=1, judge=lambda seen: None, read=READ)
def killed(learner: ModuleType, witness: Witness) -> None:
    """Saves into an empty folder, with `keep=1` and with `keep=2`, ended after each operation."""
    bench = Bench(learner, witness)
    for between, old, new in scenes(bench):
        whole_names(between, new)
        end = len(between.disk.ops)
        for moment in between.disk.moments:
            if moment.how not in ("kill", "torn"):
                continue
            allowed = [new] if moment.done == end else [old, new]
            put(moment.files, bench.found)
            problem = bench.load(bench.found, allowed)
            if problem:
                raise Wrong(
                    f"{scene(moment, between, old, new)} {problem}. "
                    f"{why_killed(bench, moment, between, allowed)}".strip(),
                    READ,
                )
            if moment.how == "kill":
                again(bench, moment, between, old, new)


def scene(moment: Moment, between: Between, old: int | None, new: int) -> str:
    """What happened when."""
    ops = between.disk.ops
    before = f"step {old} was saved" if old is not None else "nothing was saved yet"
    what = "Killed" if moment.how in ("kill", "torn") else "The power was cut"
    if moment.how == "torn":
        when = f"in the middle of “{ops[moment.done]}”"
    elif moment.done == len(ops):
        when = "right after `save` had returned"
    else:
        last = f"after “{ops[moment.done - 1]}”" if moment.done else "at once"
        when = f"{last}, before “{ops[moment.done]}”"
    names = listed(moment.files)
    return (
        f"{what} {when} ({before}, step {new} is being saved). The folder then holds {names}, and "
        "`load_latest`"
    )


def why_killed(
    bench: Bench, moment: Moment, between: Between, allowed: Sequence[int | None]
) -> str:
    """What is behind it."""
    first, last = between.disk.moments[0].files, between.disk.end
    drafts = [n for n in moment.files if n not in first and n not in last]
    if drafts:
        put({n: c for n, c in moment.files.items() if n not in drafts}, bench.found)
        if not bench.load(bench.found, allowed):
            return (
                f"It stumbles over the draft `{drafts[0]}`: a killed process cannot clean up. Take "
                "only names that a finished checkpoint has."
            )
    removed = [op for op in between.disk.ops[: moment.done] if op.kind == "remove"]
    if removed:
        return (
            f"`{removed[0].name}` was removed before the new checkpoint was complete: first the "
            "new one comes, then the old one goes."
        )
    return told(between.disk.ops)


def again(bench: Bench, moment: Moment, between: Between, old: int | None, new: int) -> None:
    """Judge that one can save on from there."""
    put(moment.files, bench.found)
    try:
        bench.save(new + 1, 2, bench.found)
        problem = bench.load(bench.found, [new + 1])
    except Exception as error:
        problem = f"was not asked, for `save` raised {type(error).__name__}: {first_line(error)}"
    if problem:
        text = scene(moment, between, old, new).removesuffix(", and `load_latest`")
        raise Wrong(
            f"{text}; the job is started again and saves step {new + 1}, and "
            f"`load_latest` {problem}. What a killed save has left must not stop the next.",
            READ,
        )


@check("The power is cut at any moment", ranks=1, judge=lambda seen: None, read=READ)
def unplugged(learner: ModuleType, witness: Witness) -> None:
    """The same saves; what was not flushed to the disk, bytes or names, is lost, or comes late."""
    bench = Bench(learner, witness)
    for between, old, new in scenes(bench):
        end = len(between.disk.ops)
        for moment in between.disk.moments:
            if moment.how in ("kill", "torn"):
                continue
            allowed = [new] if moment.done == end else [old, new]
            put(moment.files, bench.found)
            problem = bench.load(bench.found, allowed) or in_part(moment, between)
            if problem:
                raise Wrong(
                    f"{scene(moment, between, old, new)} {problem}. {why_lost(moment, between)} "
                    f"{told(between.disk.ops)}",
                    READ,
                )


def in_part(moment: Moment, between: Between) -> str:
    """Which file has its name, and not its bytes."""
    first, last = between.disk.moments[0].files, between.disk.end
    for name in last.keys() & moment.files.keys() if moment.how == "bytes" else ():
        if moment.files[name] not in (last[name], first.get(name)):
            return f"has to pass over `{name}`, which is there in part"
    return ""


def why_lost(moment: Moment, between: Between) -> str:
    """Which flush is missing."""
    ops = between.disk.ops
    if moment.how == "bytes":
        name = moment.late[0] if moment.late else ""
        draft = next((op.name for op in ops if op.to == name), name)
        mine = [op for op in ops if op.name in (name, draft)]
        kinds = [op.kind for op in mine if op.kind in ("write", "fsync")]
        if "fsync" not in kinds:
            return (
                f"`{name}` had its name, and its bytes were still in the kernel's memory: a rename "
                "can reach the disk before what was written. `os.fsync` the draft before it."
            )
        if kinds[-1] == "write":
            return (
                f"`fsync` of `{name}` came before its last bytes: they were in Python's buffer, "
                "which `os.fsync` does not know. `file.flush()` first, or close the file."
            )
        return f"`fsync` of `{name}` came after the rename, the power cut between: first the bytes."
    if moment.how == "order":
        return (
            "The removal of the old one reached the disk, the name of the new one did not: nothing "
            "but `fsync` of the folder puts an order between them."
        )
    return (
        "The names are entries of the folder, and nobody has flushed those: open the folder with "
        "`os.open(folder, os.O_RDONLY)` and `os.fsync` it after the rename."
    )


# -- 4: a disk that fails --------------------------------------------------------------------------

FAILURES = [
    ("write", errno.ENOSPC, "the disk was full"),
    ("write", errno.EIO, "the disk failed"),
    ("fsync", errno.EIO, "the disk failed"),
    ("open", errno.EACCES, "the folder could not be written to"),
    ("rename", errno.EIO, "the disk failed"),
]


@check("The disk is full, or fails", ranks=1, judge=lambda seen: None, read=READ)
def fails(learner: ModuleType, witness: Witness) -> None:
    """Steps 8 and 9 are saved; in a save of step 10 each operation fails once, and then none."""
    bench = Bench(learner, witness)
    for step in (8, 9):
        bench.save(step, 2)
    start = taken(bench.folder)
    ops = bench.seen(10, 2).disk.ops
    for kind, number, what in FAILURES:
        for nth, op in enumerate(o for o in ops if o.kind == kind):
            if kind == "fsync" and not op.name:
                continue  # of the folder: some file systems refuse that, some programs bear it
            put(start, bench.folder)
            fail_at(bench, kind, number, nth, f"{what} at “{op}”")


def fail_at(bench: Bench, kind: str, number: int, nth: int, what: str) -> None:
    """Fail twice at the same place, then save."""
    left: list[Snapshot] = []
    for _ in range(2):
        between = Between(bench.folder, failing(kind, number, nth))
        error = ""
        with between:
            try:
                bench.save(10, 2)
            except Exception as raised:
                error = type(raised).__name__
        problem = bench.load(bench.folder, [9, 10] if error else [10])
        short = " `os.write` returns how much it took, and that may be less." * between.bare
        if not error:
            raise Wrong(
                f"When {what}, `save` returned as if all was well"
                + (f", and `load_latest` then {problem}" if problem else "")
                + f".{short} Whoever called it believes that there is a checkpoint.",
                READ,
            )
        if problem:
            raise Wrong(
                f"When {what}, `save` raised {error}, as it should; but then "
                f"`load_latest` {problem}. The folder holds {listed(taken(bench.folder))}.",
                READ,
            )
        left.append(taken(bench.folder))
    more = sorted(left[1].keys() - left[0].keys())
    expect(
        len(left[1]) <= len(left[0]),
        f"When {what}, `save` raised, and left a file; the next time it left another one, "
        f"`{more[-1] if more else ''}`. On a full disk that takes the room that is missing: remove "
        "the draft when the save fails.",
        READ,
    )
    try:
        bench.save(10, 2)
        problem = bench.load(bench.folder, [10])
    except Exception as error:
        problem = f"was not asked, for `save` raised {type(error).__name__}: {first_line(error)}"
    expect(
        not problem,
        f"After {what}, all was well again and step 10 was saved; `load_latest` {problem}.",
    )


def failing(kind: str, number: int, nth: int) -> Callable[[Op], int | None]:
    """Fail in the n-th operation of that kind; a disk that is full stays so."""
    count = itertools.count()

    def fail(op: Op) -> int | None:
        if op.kind != kind:
            return None
        after = next(count) - nth
        return number if after == 0 or (after > 0 and number == errno.ENOSPC) else None

    return fail


# -- 5: a file that is damaged ---------------------------------------------------------------------


@check("The newest is damaged", ranks=1, judge=lambda seen: None, read=READ)
def damaged(learner: ModuleType, witness: Witness) -> None:
    """Steps 9 and 10 are saved; then one bit flips in a file of step 10, or it is cut, or gone."""
    bench = Bench(learner, witness)
    bench.save(9, 2)
    before = taken(bench.folder)
    bench.save(10, 2)
    after = taken(bench.folder)
    files = {n: c for n, c in after.items() if isinstance(c, bytes) and c and before.get(n) != c}
    for name, content in files.items():
        for what, part in damages(content):
            others = {n: c for n, c in after.items() if n != name}
            put(others if part is None else {**others, name: part}, bench.found)
            problem = bench.load(bench.found, [9, 10])
            if not problem:
                continue
            idea = "Step 9 is whole: pass over what is damaged, and take the one before."
            if "never saved" in problem:
                idea = (
                    "The file can be read, and its content is another one: only a checksum, saved "
                    "with it and compared before anything is used, finds that. Step 9 is whole."
                )
            raise Wrong(f"`{name}` of step 10 is {what}, and `load_latest` {problem}. {idea}", READ)


def damages(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    """A file, damaged in one way each; None: it is gone."""
    size = len(content)
    for at in sorted({*range(0, size, max(1, size // 16)), size // 2, size - 1, max(0, size - 40)}):
        flipped = bytearray(content)
        flipped[at] ^= 16
        yield f"whole but for one bit (of byte {at} of {size})", bytes(flipped)
    for length in sorted({0, 1, size // 2, size - 1}):
        yield f"cut to {length} of {size} bytes", content[:length]
    yield "gone", None
