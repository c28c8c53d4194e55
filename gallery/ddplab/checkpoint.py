"""Checkpoints of DDP training: exact, whole or not there at all, and the same on every rank.

One file without dependencies but torch; copy it beside your own ``train.py`` if you like (Linux, macOS).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import re
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

_FORMAT = "ddplab checkpoint 1"
_OWN_NAMES = {"step", "world_size"}  # what load() adds to the values that it returns
_LOCKS: dict[Path, IO[str]] = {}  # never closed: to close any handle of a file gives up the process's lock of it
_States = dict[str, Any]  # of the random number generators of a rank, by name
_T = TypeVar("_T")


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or loaded; the message names the rank, the file, and what is wrong."""


class CheckpointManager:
    """Saves and loads ``step-00000042.pt`` in one folder; all ranks call its methods together.

    A file is what ``torch.save`` writes, and behind it a line ``sha256 …`` over those bytes;
    ``torch.load`` reads it. Without a process group the manager serves a single process.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3) -> None:
        """Take a folder, which need not exist yet, and the number of checkpoints to keep in it.

        Raises:
            ValueError: ``keep`` is less than 1.
        """
        if keep < 1:
            raise ValueError(f"CheckpointManager: keep must be at least 1; got {keep!r}")
        self.directory, self.keep = Path(directory).absolute(), keep

    def save(self, state: Mapping[str, Any], step: int) -> Path:
        """Save ``state`` as the checkpoint of ``step``, drop what is beyond ``keep``, return the path.

        ``state`` names models, optimizers, schedulers, scalers (what has ``state_dict`` and
        ``load_state_dict``), tensors, and plain values; of these, rank 0's are saved.
        Of every rank are saved: the states of its random number generators (torch, CUDA, Python,
        numpy) and of each ``torch.Generator`` in ``state``.

        Raises:
            CheckpointError: on all ranks, if any of them failed; what was saved before is untouched.
        """
        ranks = _on_every_rank(lambda: (_checked(step, state), _generators(state)))
        steps, generators = [rank[0] for rank in ranks], [rank[1] for rank in ranks]
        if len(set(steps)) > 1:
            raise CheckpointError(f"the ranks save different steps: {steps}")
        return _on_rank_0(lambda: self._write(state, step, generators))

    def latest(self) -> int | None:
        """Return the newest step whose file is whole, or None; rank 0 looks, and warns of what it skips.

        Raises:
            CheckpointError: on all ranks, if the folder cannot be read.
        """
        return _on_rank_0(self._newest_whole)

    def load(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
        warm_up: Callable[[], torch.Tensor] | None = None,
        fits: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any] | None:
        """Load the checkpoint of ``step``, or of ``latest()``, into what ``state`` names.

        No object is touched before every rank has the same file and everything fits. The first
        rank of each machine checks the sum over its bytes; all map it, so its memory is shared.
        With as many ranks as at the save, each rank gets its generators back; else it is warned of.

        Args:
            state: as for ``save``; its plain values are ignored, and ``None`` loads into nothing.
            step: the step to load, instead of the latest.
            warm_up: returns a loss. Its backward runs once before loading, so that DDP rebuilds its
                buckets; all that it changed is loaded over. From three ranks on, a resume is exact
                only with it. Not for a run that was saved at step 0; with ``static_graph=True``
                two backwards are needed, of which it makes the first itself.
            fits: is given the plain values that were saved, before anything else of the file is read,
                and raises CheckpointError if they belong to another run.

        Returns:
            The plain values and tensors that were saved (on the CPU), and ``step`` and ``world_size``
            of the save; None if there is no checkpoint.

        Raises:
            CheckpointError: on all ranks, if one cannot read the file or anything does not fit.
        """
        step = self.latest() if step is None else step
        if step is None:
            return None
        objects = {name: value for name, value in (state or {}).items() if _is_object(value)}
        content: dict[str, Any] = {}

        def read() -> str:
            with self._path(step).open("rb") as file:
                # The file stays open: these very bytes are loaded.
                checksum = (_checksum if os.environ.get("LOCAL_RANK", "0") == "0" else _stated_checksum)(file)
                content.update(_unpickled(file))
            if fits is not None:
                fits(content["values"])
            _check_fit(content["outlines"], objects, file.name)
            return f"step {step} sha256 {checksum[:16]}"

        def fill() -> None:
            for name, value in objects.items():
                _load_object(value, content["objects"][name], f"{self._path(step)}: {name}")
            if len(content["generators"]) == _world_size():
                _set_generators(content["generators"][_rank()], state or {})

        read_by = _on_every_rank(read)
        if len(set(read_by)) > 1:
            raise CheckpointError(f"{self.directory}: the ranks read different files: {read_by}")
        if warm_up is not None:
            warm_up().backward()  # type: ignore[no-untyped-call]
            for model in objects.values():
                if isinstance(model, nn.Module):
                    model.zero_grad()
        _on_every_rank(fill)
        if _rank() == 0:
            self._warn_of_omissions(content, objects, state or {})
        return {
            **content["values"],
            "step": content["step"],
            "world_size": content["world_size"],
        }

    # -- what rank 0 does in the folder ---------------------------------------------------------------

    def _write(self, state: Mapping[str, Any], step: int, generators: list[_States]) -> Path:
        path = self._path(step)
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.draft")
        try:
            content = _content(state, step, generators)
            self._own_the_folder()
            with draft.open("xb") as file:
                hashing = _Hashing(file)
                torch.save(content, cast(IO[bytes], hashing))
                file.write(_last_line(hashing.sha256.hexdigest()))
                file.flush()
                _refuse_code(str(draft))  # better now than at the load
                os.fsync(file.fileno())  # the bytes are on the disk before the name is
            draft.replace(path)  # one rename publishes content and checksum
            _fsync_folder(self.directory)
        except BaseException as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            if isinstance(error, Exception):
                raise CheckpointError(f"{path}: not saved: {_in_a_line(error)}") from error
            raise
        self._rotate(step)
        return path

    def _own_the_folder(self) -> None:
        """Lock the folder until this process ends, and sweep the drafts of those that are gone.

        A POSIX lock belongs to the process: its end gives it up, and no child inherits it.
        """
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True, exist_ok=True)
            _fsync_folder(self.directory.parent)
        path = self.directory / ".lock"
        file = _LOCKS.get(path)
        if file is None or not _is_still(file, path):
            file = _LOCKS[path] = path.open("a")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            hint = f"give a second run its own folder; if the first is out of reach, delete {path}"
            text = f"{self.directory}: another process saves here; {hint}"
            raise CheckpointError(text) from None
        except OSError as error:  # a file system without locks: drafts are left alone
            text = f"cannot be locked ({error}), so let only one run save here"
            warnings.warn(f"{self.directory}: {text}", stacklevel=1)
            return
        for draft in self.directory.glob("step-*.draft"):
            draft.unlink()

    def _rotate(self, step: int) -> None:
        steps = self._steps()
        if steps[-1] > step:
            text = f"is newer than step {step}: latest() prefers it"
            warnings.warn(f"{self._path(steps[-1])} {text}", stacklevel=1)
        for old in set(steps[: -self.keep]) - {step}:
            try:
                self._path(old).unlink()
            except OSError as error:  # the new one is safe, so this is no reason to stop
                warnings.warn(f"{self._path(old)}: not deleted: {error}", stacklevel=1)

    def _newest_whole(self) -> int | None:
        for step in reversed(self._steps()):
            try:
                with self._path(step).open("rb") as file:
                    _checksum(file)
                return step
            except (CheckpointError, OSError) as error:
                warnings.warn(f"skipped a checkpoint: {error}", stacklevel=1)
        return None

    def _steps(self) -> list[int]:
        if not self.directory.exists():
            return []
        names = (re.fullmatch(r"step-(\d+)\.pt", path.name) for path in self.directory.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}.pt"

    def _warn_of_omissions(self, content: dict[str, Any], objects: dict[str, Any], state: Mapping[str, Any]) -> None:
        path, ranks = self._path(content["step"]), content["world_size"]
        if ranks != _world_size():
            text = f"saved by {ranks} ranks, loaded by {_world_size()}; generators not restored"
            warnings.warn(f"{path}: {text}", stacklevel=3)
        if left := [name for name in content["objects"] if name not in objects] if state else []:
            text = f"also holds {', '.join(left)}, which nothing was loaded into"
            warnings.warn(f"{path}: {text}", stacklevel=3)


# -- the file -----------------------------------------------------------------------------------------


class _Hashing:
    """A file to ``torch.save`` into; it hashes what torch means to write, not what a disk made of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _last_line(checksum: str) -> bytes:
    return f"\nsha256 {checksum}\n".encode()


def _checksum(file: IO[bytes]) -> str:
    """Return the checksum of an open file, and rewind it; raise if its last line says another."""
    sha256, left = (
        hashlib.sha256(),
        os.fstat(file.fileno()).st_size - len(_last_line("0" * 64)),
    )
    while left > 0 and (chunk := file.read(min(left, 2**20))):
        sha256.update(chunk)
        left -= len(chunk)
    last_line = file.read()
    if not re.fullmatch(rb"\nsha256 [0-9a-f]{64}\n", last_line):
        raise CheckpointError(f"{file.name}: torn, or not of this kind: its last line is no checksum")
    if last_line != _last_line(sha256.hexdigest()):
        raise CheckpointError(f"{file.name}: corrupt: sha256 of its bytes is not what its last line says")
    file.seek(0)
    return sha256.hexdigest()


def _stated_checksum(file: IO[bytes]) -> str:
    """Return the checksum that the last line of a file states; another rank of this machine compares it."""
    size = len(_last_line("0" * 64))
    file.seek(max(0, os.fstat(file.fileno()).st_size - size))
    if not (found := re.fullmatch(rb"\nsha256 ([0-9a-f]{64})\n", file.read())):
        raise CheckpointError(f"{file.name}: torn, or not of this kind: its last line is no checksum")
    return found[1].decode()


def _unpickled(file: IO[bytes]) -> dict[str, Any]:
    """Return the content; it is on the CPU, and ``load_state_dict`` copies it to wherever the objects are.

    The file is mapped, not read: ranks of one machine share its pages, and what nobody asks for stays on the disk.
    """
    try:
        _refuse_code(file.name)
        content = torch.load(f"/dev/fd/{file.fileno()}", map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        if isinstance(error, CheckpointError | OSError):
            raise
        raise CheckpointError(f"{file.name}: cannot be read: {_in_a_line(error)}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(f"{file.name}: not a checkpoint of CheckpointManager ({_FORMAT!r})")
    return content


def _refuse_code(path: str) -> None:
    """Raise if ``weights_only`` would not load the file; torch's own error names one class only, in twenty lines."""
    if names := torch.serialization.get_unsafe_globals_in_checkpoint(path):
        raise CheckpointError(f"{path}: refused: it needs {_few(names)}; plain types and tensors only")


def _is_still(file: IO[str], path: Path) -> bool:
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


def _fsync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- the state ----------------------------------------------------------------------------------------


def _checked(step: int, state: Mapping[str, Any]) -> int:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise CheckpointError(f"step must be a whole number, at least 0; got {step!r}")
    if taken := _OWN_NAMES & set(state):
        raise CheckpointError(f"{taken.pop()!r} is saved by itself; give the entry of state another name")
    return step


def _content(state: Mapping[str, Any], step: int, generators: list[_States]) -> dict[str, Any]:
    objects = {name: value for name, value in state.items() if _is_object(value)}
    return {
        "format": _FORMAT,
        "step": step,
        "world_size": _world_size(),
        "objects": {name: _object_state(value) for name, value in objects.items()},
        "outlines": {name: _outline(value) for name, value in objects.items()},
        "values": {n: v for n, v in state.items() if n not in objects and not isinstance(v, torch.Generator)},
        "generators": generators,
    }


def _is_object(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _object_state(value: Any) -> Any:
    if isinstance(value, nn.Module):
        if any(isinstance(p, DTensor) or type(p).__name__ == "FlatParameter" for p in value.parameters()):
            raise CheckpointError("a model is sharded; save it with torch.distributed.checkpoint")
        return get_model_state_dict(value)  # without "module." of DDP and "_orig_mod." of torch.compile
    # Not get_optimizer_state_dict: to fill an optimizer without state it takes a step, which a save must not do.
    return value.state_dict()


def _load_object(value: Any, saved: Any, name: str) -> None:
    try:
        if isinstance(value, nn.Module):
            set_model_state_dict(value, saved)
        else:
            value.load_state_dict(saved)
    except Exception as error:
        text = f"load_state_dict failed, it may be half loaded, do not train on: {_in_a_line(error)}"
        raise CheckpointError(f"{name}: {text}") from error


def _outline(value: Any) -> dict[str, str]:
    """What two objects have in common if one can take the other's state: name -> type, or dtype and shape."""
    if isinstance(value, nn.Module):
        return {name: _kind(tensor) for name, tensor in get_model_state_dict(value).items()}
    groups = enumerate(value.param_groups) if isinstance(value, torch.optim.Optimizer) else ()
    parameters = {f"group {g} parameter {i}": _kind(p) for g, group in groups for i, p in enumerate(group["params"])}
    return {"class": type(value).__name__, **parameters}


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _check_fit(saved: dict[str, dict[str, str]], objects: dict[str, Any], path: str) -> None:
    wrong = [f"no {name!r} in it, only {', '.join(saved)}" for name in objects if name not in saved]
    for name in sorted(objects.keys() & saved.keys()):
        there, here = saved[name], _outline(objects[name])
        both = sorted(there.keys() & here.keys())
        parts = {
            "is without": sorted(here.keys() - there.keys()),
            "has besides": sorted(there.keys() - here.keys()),
            "has": [f"{k} {there[k]} instead of {here[k]}" for k in both if there[k] != here[k]],
        }
        wrong += [f"its {name} {what} {_few(keys)}" for what, keys in parts.items() if keys]
    if wrong:
        raise CheckpointError(f"{path}: does not fit, nothing was loaded: {'; '.join(wrong[:3])}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _generators(state: Mapping[str, Any]) -> _States:
    """The states of this rank's random number generators, as tensors and plain values."""
    numpy, named = (
        sys.modules.get("numpy"),
        {n: v for n, v in state.items() if isinstance(v, torch.Generator)},
    )
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    # Not yet initialized, nothing has drawn from it; and a forked process may not begin to.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    if numpy is not None:
        found = numpy.random.get_state(legacy=False)  # its key is an array, which weights_only refuses
        states["numpy"] = {
            **found,
            "state": {**found["state"], "key": found["state"]["key"].tolist()},
        }
    return {
        **states,
        "named": {name: generator.get_state() for name, generator in named.items()},
    }


def _set_generators(states: _States, state: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(states["numpy"])
    for name, generator_state in states["named"].items():
        if isinstance(state.get(name), torch.Generator):
            state[name].set_state(generator_state)


# -- the ranks ----------------------------------------------------------------------------------------


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _on_every_rank(part: Callable[[], _T]) -> list[_T]:
    """Run ``part`` on every rank and return what each returned.

    If it raised on any rank, all ranks raise, and none waits for another.
    """
    answer: tuple[Any, str] = (None, "")
    cause = None
    try:
        answer = (part(), "")
    except Exception as error:
        answer, cause = (None, _in_a_line(error)), error
    answers: list[Any] = [answer] * _world_size()
    if dist.is_initialized():
        try:
            dist.all_gather_object(answers, answer)
        except RuntimeError as error:
            text = f"a rank is missing, it gave no answer: {_in_a_line(error)}"
            raise CheckpointError(text) from error
    errors: dict[str, list[str]] = {}
    for rank, (_, text) in enumerate(answers):
        if text:
            errors.setdefault(text, []).append(str(rank))
    if errors:
        lines = [f"rank {', '.join(ranks)}: {text}" for text, ranks in errors.items()]
        raise CheckpointError("\n".join(lines if len(answers) > 1 else errors)) from cause
    return [value for value, _ in answers]


def _on_rank_0(part: Callable[[], _T]) -> _T:
    """Run ``part`` on rank 0 and return its result on every rank; if it raised, all raise."""
    return cast(_T, _on_every_rank(lambda: part() if _rank() == 0 else None)[0])


def _in_a_line(error: BaseException) -> str:
    """The error, or the ``OSError`` behind it: of a full disk torch says ``unexpected pos`` (torch 2.13)."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, OSError | CheckpointError):
        behind = behind.__cause__ or behind.__context__
    error = behind or error
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}".split("\n")[0]
