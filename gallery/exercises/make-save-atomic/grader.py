"""Checks of the atomic save: what a kill, a power cut, a failing disk or a flipped bit leaves of it.

`save` runs once while its folder is watched. Each moment is then built again in another folder, and there
`load_latest`, imported anew, has to find a state. Nothing is killed at random; a full disk is a limit for files.

:Level: deep, 27 minutes
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, check, expect, first_line, listed, load_module, text_of
from ddplab.grading.disk import DiskWatch, Files, Moment, Op, age, file_limit, read_files, write_files

READ = "checkpointing-atomic"
NUMBERS = 8_000  # of 8 random bytes each, which no compression makes smaller


def state_of(step: int) -> dict[str, Any]:
    """A state like no other."""
    weight = torch.randint(-(2**62), 2**62, (NUMBERS,), generator=torch.Generator().manual_seed(step))
    return {"step": step, "model": {"weight": weight, "bias": torch.full((3,), step + 0.5)}}


def is_state(found: Any, step: int) -> bool:
    """Whether that is the state of `step`, bit for bit."""
    try:
        model = state_of(step)["model"]
        same = found.keys() == {"step", "model"} and found["model"].keys() == model.keys() and found["step"] == step
        return same and all(torch.equal(found["model"][name], t) for name, t in model.items())
    except Exception:
        return False


class Bench:
    """A folder, and the learner's two functions, each imported by a process of its own."""

    def __init__(self, learner: ModuleType, recorder: Recorder) -> None:
        self.folder, self.found = recorder.folder / "checkpoints", recorder.folder / "found"
        self.anew: Callable[[], Any] = lambda: load_module("learner", Path(str(learner.__file__)), text_of(learner))
        self.reader = self.anew()  # as a new process has it: what the file kept in memory is lost
        write_files({}, self.folder)

    def save(self, step: int, keep: int, folder: Path | None = None) -> None:
        """Save the state of that step, some time after the one before."""
        age(sorted((folder or self.folder).iterdir(), key=lambda path: path.lstat().st_mtime_ns))
        self.anew().save(state_of(step), folder or self.folder, step, keep)

    def watched(self, step: int, keep: int) -> DiskWatch:
        """Save, and see what it does to the folder."""
        watch = DiskWatch(self.folder)
        try:
            with watch:
                self.save(step, keep)
        finally:
            expect(
                not watch.outside,
                f"`save` writes in `{Path(watch.outside).parent}`. That may be another file system: a rename fails "
                "there with EXDEV, and a move is a copy that can be cut off. Put the draft into the checkpoint folder.",
            )
        files = "use Python's files, `os`, `shutil` or `pathlib`: no other program, no memory map"
        expect(not watch.program, f"The grader cannot follow what `save` does: it calls `{watch.program}`; {files}.")
        return watch

    def problem(self, files: Files | Path, steps: Sequence[int | None]) -> str:
        """Why `load_latest` finds none of these steps in the folder; empty if it finds one."""
        if isinstance(files, dict):
            write_files(files, self.found)
        try:
            found = self.reader.load_latest(files if isinstance(files, Path) else self.found)
        except Exception as error:
            return f"raised {type(error).__name__}: {first_line(error)}"
        if found is None:
            return "" if None in steps else "returned None"
        if any(step is not None and is_state(found, step) for step in steps):
            return ""
        step = found.get("step") if isinstance(found, dict) else None
        if isinstance(step, int) and is_state(found, step):
            return f"returned the state of step {step}"
        return f"returned what was never saved ({str(found)[:60]!r})"

    def next_problem(self, step: int, folder: Path) -> str:
        """Why one cannot save that step and load it, whatever has happened before."""
        try:
            self.save(step, 2, folder)
        except Exception as error:
            return f"`save` raised {type(error).__name__}: {first_line(error)}"
        problem = self.problem(folder, [step])
        return problem and f"`load_latest` {problem}"


def contents(files: Files) -> str:
    """`a` (12 bytes) and `b` (0 bytes)."""
    return listed([f"`{n}`" + f" ({len(c)} bytes)" * isinstance(c, bytes) for n, c in files.items() if c is not None])


def history(ops: Sequence[Op]) -> str:
    """What `save` did, in one sentence; operations that repeat are one."""
    return f"`save` did: {'; '.join(op for op, _ in itertools.groupby(map(str, ops)))}."


def in_rank(title: str) -> Any:
    """A check of one rank, which judges by itself."""
    return check(title, ranks=1, judge=lambda seen: None, read=READ)


@in_rank("What was saved is loaded")
def plain(learner: ModuleType, recorder: Recorder) -> None:
    """An empty folder; then steps 8, 9, 10 and 100, of which the newest two stay."""
    bench = Bench(learner, recorder)
    problem = bench.problem(bench.folder, [None])
    expect(not problem, f"The folder was empty, and `load_latest` {problem}. It should return None.")
    steps: list[int] = []
    for step in (8, 9, 10, 100):
        steps.append(step)
        bench.save(step, 2)
        problem, as_text = bench.problem(bench.folder, [step]), sorted(steps, key=str)
        text = f"step {as_text[-1]}" in problem or as_text[:-2] == [step]
        idea = " As text, 10 comes before 8: sort by the number, or write it with leading zeros." * text
        saved = ", ".join(map(str, steps))
        expect(not problem, f"After steps {saved} were saved `load_latest` {problem}.{idea}")
        files = read_files(bench.folder)
        nbytes = sum(len(content or "") for content in files.values())
        count, right = nbytes // (8 * NUMBERS), min(len(steps), 2)
        expect(
            count == right,
            f"After steps {saved} were saved with `keep=2`, the folder "
            f"{'holds older ones, too' if count > right else 'has lost one that should stay'}: it has {nbytes} bytes, "
            f"which is {count} states, in {contents(files)}.",
        )
    bench.save(101, 1)
    problem = bench.problem(bench.folder, [101])
    expect(not problem, f"After step 101 was saved with `keep=1` `load_latest` {problem}.")


def moments(bench: Bench, *hows: str) -> Iterator[tuple[DiskWatch, Moment, list[int | None], str]]:
    """Watch three saves: each moment, the steps that may be loaded then, and what has happened."""
    for before, step, keep in ((9,), 10, 1), ((), 9, 2), ((8, 9), 10, 2):
        write_files({}, bench.folder)
        for old in before:
            bench.save(old, keep)
        watch, saved = bench.watched(step, keep), f"step {before[-1]} was saved" if before else "nothing was saved yet"
        for moment in watch.moments:
            done, after = moment.done, watch.ops[moment.done :]
            when = f"after “{watch.ops[done - 1]}”, before “{after[0]}”" if done and after else "at once"
            when = "right after `save` had returned" if not after else when
            when = f"in the middle of “{after[0]}”" if moment.how == "torn" else when
            what = "Killed" if moment.how in ("kill", "torn") else "The power was cut"
            text = (
                f"{what} {when} ({saved}, step {step} is being saved). The folder then holds {contents(moment.files)}"
            )
            if moment.how in hows:
                yield watch, moment, [step] if not after else [before[-1] if before else None, step], text


def partial_name(moment: Moment, watch: DiskWatch) -> str:
    """The name of a file that is there in part, though `save` keeps it under that name."""
    first, last = watch.moments[0].files, watch.end
    return next((n for n, c in moment.files.items() if c not in (None, first.get(n, b"-"), last.get(n, c))), "")


@in_rank("Killed at any moment")
def killed(learner: ModuleType, recorder: Recorder) -> None:
    """Saves into an empty folder, with `keep=1` and with `keep=2`, ended after each operation."""
    bench = Bench(learner, recorder)
    for watch, moment, allowed, text in moments(bench, "kill", "torn"):
        name = partial_name(moment, watch)
        sizes = [len(files.get(name) or "") for files in (moment.files, watch.end)]
        expect(
            not name,
            f"`{name}` was there with {sizes[0]} bytes, and has {sizes[1]} when `save` returns: after a kill, "
            "part of a file has the name of the whole. Write a draft under another name, and rename it when it is "
            f"complete. {history(watch.ops)}",
        )
        if problem := bench.problem(moment.files, allowed):
            raise Wrong(f"{text}, and `load_latest` {problem}. {why_killed(bench, moment, watch, allowed)}")
        step = (allowed[-1] or 0) + 1
        if moment.how == "kill" and (problem := bench.next_problem(step, bench.found)):
            restart = f"the job is started again and saves step {step}"
            raise Wrong(f"{text}; {restart}, and {problem}. A killed save must not stop the next one.")


def why_killed(bench: Bench, moment: Moment, watch: DiskWatch, allowed: Sequence[int | None]) -> str:
    """What is behind it."""
    drafts = [name for name in moment.files if name not in watch.moments[0].files and name not in watch.end]
    if drafts and not bench.problem({n: c for n, c in moment.files.items() if n not in drafts}, allowed):
        names = "Take only names that a finished checkpoint has."
        return f"It stumbles over the draft `{drafts[0]}`: a killed process cannot clean up. {names}"
    for removed in (op.name for op in watch.ops[: moment.done] if op.kind == "remove"):
        order = "first the new one comes, then the old one goes."
        return f"`{removed}` was removed before the new checkpoint was complete: {order}"
    return history(watch.ops)


@in_rank("The power is cut at any moment")
def unplugged(learner: ModuleType, recorder: Recorder) -> None:
    """The same saves; what was not flushed to the disk, bytes or names, is lost, or arrives late."""
    bench = Bench(learner, recorder)
    for watch, moment, allowed, text in moments(bench, "bytes", "names", "order"):
        problem, name = bench.problem(moment.files, allowed), partial_name(moment, watch)
        if name and moment.how == "bytes" and not problem:
            problem = f"must skip `{name}`, of which only a part is there"
        cause = why_lost(moment, name or max(moment.files, default=""), watch.ops)
        expect(not problem, f"{text}, and `load_latest` {problem}. {cause} {history(watch.ops)}")


def why_lost(moment: Moment, name: str, ops: Sequence[Op]) -> str:
    """Which flush is missing."""
    if moment.how == "order":
        return (
            "The removal of the old one reached the disk, the name of the new one did not: `fsync` the folder between."
        )
    if moment.how == "names":
        return "Names are entries of the folder: `os.open(folder, os.O_RDONLY)`, and `os.fsync` that after the rename."
    draft = next((op.name for op in ops if op.to == name), name)
    kinds = [op.kind for op in ops if op.name in (name, draft) and op.kind in ("create", "write", "fsync")]
    if "fsync" not in kinds:
        return f"`{name}` had its name, its bytes were still in the kernel's memory: `os.fsync` the draft first."
    if kinds[-1] == "write":
        return f"`fsync` of `{name}` came before its last bytes: they were in Python's buffer. `file.flush()` first."
    return f"`fsync` of `{name}` came after the rename, and the power was cut between: first the bytes, then the name."


@in_rank("The disk is full, or fails")
def fails(learner: ModuleType, recorder: Recorder) -> None:
    """Steps 8 and 9 are saved; in a save of step 10 the disk is full, or one operation fails; then all is well."""
    bench = Bench(learner, recorder)
    for step in (8, 9):
        bench.save(step, 2)
    start, watch = read_files(bench.folder), bench.watched(10, 2)
    sizes = [len(content) for name, content in watch.end.items() if content and name not in start]
    for limit in sorted({limit for size in sizes for limit in (size // 2, size - 1)}):
        fail_twice(bench, start, f"the disk was full after {limit} bytes", -1, limit)
    for number, op in enumerate(watch.asked):
        if op.name:  # not of the folder: some file systems refuse to flush one, and a program may bear that
            fail_twice(bench, start, f"the disk failed at “{op}”", number, None)


def fail_twice(bench: Bench, start: Files, what: str, fail_at: int, limit: int | None) -> None:
    """Fail twice at the same place, then save."""
    write_files(start, bench.folder)
    left: list[Files] = []
    for _ in range(2):
        error = ""
        with file_limit(limit), DiskWatch(bench.folder, fail_at) as watch:
            try:
                bench.save(10, 2)
            except Exception as raised:
                error = type(raised).__name__
        problem = bench.problem(bench.folder, [9, 10] if error else [10])
        then = f", and `load_latest` then {problem}" if problem else ""
        short = " `os.write` returns how much it took, and that may be less." * watch.bare_write
        expect(error, f"When {what}, `save` returned as if nothing had happened{then}.{short}")
        left.append(read_files(bench.folder))
        expect(not problem, f"When {what}, `save` raised {error}, as it should{then}. There is {contents(left[-1])}.")
    expect(
        len(left[1]) <= len(left[0]),
        f"When {what}, `save` raised, and left a file; the next time it left another one, "
        f"`{max(left[1].keys() - left[0].keys(), default='')}`. On a full disk that takes the room that is missing: "
        "remove the draft when the save fails.",
    )
    problem = bench.next_problem(10, bench.folder)
    expect(not problem, f"After {what}, all was well again and step 10 was saved; {problem}.")


@in_rank("The newest is damaged")
def damaged(learner: ModuleType, recorder: Recorder) -> None:
    """Steps 9 and 10 are saved; then one bit flips in a file of step 10, or it is cut, or gone."""
    bench = Bench(learner, recorder)
    bench.save(9, 2)
    before = read_files(bench.folder)
    bench.save(10, 2)
    after = read_files(bench.folder)
    for name, content in after.items():
        for what, part in damages(content) if isinstance(content, bytes) and before.get(name) != content else ():
            others = {n: c for n, c in after.items() if n != name}
            problem = bench.problem(others if part is None else {**others, name: part}, [9, 10])
            idea = "Step 9 is whole: pass over what is damaged, and take the one before."
            if "never saved" in problem:
                idea = (
                    "The file can be read, and its content has changed: only a checksum, saved with it and compared "
                    "before anything is used, finds that. Step 9 is whole."
                )
            expect(not problem, f"`{name}` of step 10 is {what}, and `load_latest` {problem}. {idea}")


def damages(content: bytes) -> list[tuple[str, bytes | None]]:
    """A file, damaged in one way each; None: it is gone."""
    size = len(content)
    bits = {*range(0, size, max(1, size // 16)), size // 2, size - 1, size - 40} & {*range(size)}
    flipped = [content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :] for at in sorted(bits)]
    cut = [content[:length] for length in sorted({0, 1, size // 2, size - 1} & {*range(size)})]
    whole = [
        (f"whole but for one bit (of byte {at} of {size})", f) for at, f in zip(sorted(bits), flipped, strict=True)
    ]
    return [*whole, *((f"cut to {len(part)} of {size} bytes", part) for part in cut), ("gone", None)]
