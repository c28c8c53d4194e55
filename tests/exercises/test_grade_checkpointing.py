"""The graders of the exercises on checkpoints: right solutions pass, each wrong one gets the reason."""

from graded import (  # noqa: F401
    test_a_right_file_passes,
    test_a_wrong_file_gets_the_reason,
    test_one_that_needs_ranks_of_its_own_gets_the_reason,
    text_of,
)

EXACT, ATOMIC = "make-resume-exact", "make-save-atomic"


# -- make-resume-exact: lines of the solution ---------------------------------------------------------

PARTS = '"optimizer": optimizer, "scheduler": scheduler}'
LOAD = "        part.load_state_dict(saved[name])\n"
RETURNED = '    return saved["epoch"], saved["done"], saved["generators"][dist.get_rank()]\n'
WARM_UP = """        x, y = next(iter(loader))
        mse_loss(ddp(x), y).backward()  # a warm-up: the next forward rebuilds the buckets
"""
ZERO = "        optimizer.zero_grad()\n"
RESUME = "        epoch, done, generators = resume(folder, parts)\n"
ITER = "        batches = iter(DataLoader(dataset, batch_size=4, sampler=rest))\n"
SET = """        if generators:  # last of all: the warm-up has drawn from them, and so has `iter`
            torch.set_rng_state(generators["torch"])
            random.setstate(generators["python"])
            generators = None
"""
SET_TORCH = '            torch.set_rng_state(generators["torch"])\n'
SET_PYTHON = '            random.setstate(generators["python"])\n'
SET_EPOCH = "        sampler.set_epoch(epoch)\n"
REST = "        rest = list(sampler)[4 * done :]  # skips the numbers of the samples: none is read\n"
SCHEDULER = "    scheduler = LambdaLR(optimizer, lambda step: min((step + 1) / 4, 20 / (step + 20)))\n"
DDP = "DistributedDataParallel(model)\n"
EXISTS = '    if (folder / "last.pt").exists():\n'
LAST = "        epoch, done = epoch + 1, 0\n    return losses\n"
LOOP = "    while epoch * len(loader) + done < last_step:\n"


GATHER = "    dist.all_gather_object(generators, mine)\n"
SKIP = """        for _ in range(done):
            next(batches)
"""
ALL = "        batches = iter(loader)\n"
SAVE = "                save(folder, parts, epoch, done)\n"
NEXT_EPOCH = (  # the place at the end of an epoch is saved as the beginning of the next
    RETURNED,
    """    epoch, done = divmod(4 * saved["epoch"] + saved["done"], 4)
    return epoch, done, saved["generators"][dist.get_rank()]
""",
)
LATE_SCHEDULER = f"""{SCHEDULER}    parts["scheduler"] = scheduler
    if epoch or done:
        scheduler.load_state_dict(torch.load(folder / "last.pt")["scheduler"])
"""

# -- make-save-atomic ---------------------------------------------------------------------------------

DATA = """    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
"""
DRAFT = '    draft = folder / "draft"  # in the folder: a rename does not cross file systems\n'
WRITE = """        with draft.open("wb") as file:
            file.write(data + hashlib.sha256(data).digest())
"""
FLUSH = "            file.flush()  # from Python to the kernel\n"
FSYNC = "            os.fsync(file.fileno())  # from the kernel to the disk: the bytes before the name\n"
REPLACE = '        draft.replace(folder / f"step-{step:012d}.pt")\n'
CLEAN = "        draft.unlink(missing_ok=True)  # leave the room to others\n        raise\n"
SYNC = "    sync_names(folder)  # the new name before the old ones go\n"
ROTATE = "    for old in finished(folder)[:-keep]:\n        old.unlink()\n"
FINISHED = '    return sorted(folder.glob("step-*.pt"))\n'
CHECKED = "        if hashlib.sha256(data).digest() == digest:\n            return torch.load(io.BytesIO(data))\n"
DAMAGED = '        print(f"{path}: damaged, passed over")\n'
NONE = "    return None\n"
LOADS = DAMAGED + NONE
NEWEST = "    for path in reversed(finished(folder)):\n"
SPLIT = """        with draft.open("wb") as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())
"""
SYNC_LATE = """        with open(folder / f"step-{step:012d}.pt", "rb+") as file:
            os.fsync(file)
"""
TRIES = """        try:
            return torch.load(io.BytesIO(data))
        except Exception as error:
            print(error)
"""
BARE = """        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            data += hashlib.sha256(data).digest()
            {}
            os.fsync(file)
        finally:
            os.close(file)
"""
ASIDE = """

import tempfile


def finish(folder, content, name):
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.link(file.name, folder / name)


def save(state, folder, step, keep=2):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    name = f"step-{step:012d}"
    for left in folder.glob(f"{name}.*"):
        left.unlink()
    finish(folder, hashlib.sha256(buffer.getvalue()).hexdigest().encode(), f"{name}.sha256")
    finish(folder, buffer.getvalue(), f"{name}.pt")
    os.sync()
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()
        old.with_suffix(".sha256").unlink()


def load_latest(folder):
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        side = path.with_suffix(".sha256")
        if side.exists() and hashlib.sha256(path.read_bytes()).hexdigest().encode() == side.read_bytes():
            return torch.load(path)
"""
FOLDERS = """

import shutil, zlib


def save(state, folder, step, keep=2):
    draft = folder / "draft"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        torch.save(state, draft / "state.pt")
        (draft / "crc").write_text(str(zlib.crc32((draft / "state.pt").read_bytes())))
        for path in (draft / "state.pt", draft / "crc"):
            with open(path, "rb+") as file:
                os.fsync(file)
        sync_names(draft)
        os.replace(draft, folder / f"step-{step:012d}")
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_names(folder)
    for old in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(old)


def load_latest(folder):
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            if zlib.crc32((path / "state.pt").read_bytes()) == int((path / "crc").read_text()):
                return torch.load(path / "state.pt")
        except (OSError, ValueError) as error:
            print(error)
"""
NAMELESS = """

def save(state, folder, step, keep=2):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    with open(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o644), "wb", buffering=0) as file:
        left = memoryview(data + hashlib.sha256(data).digest())
        while left:
            left = left[file.write(left) :]
        os.fdatasync(file.fileno())
        path = folder / f"step-{step:012d}.pt"
        os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=0, follow_symlinks=True)
    sync_names(folder)
    by_time = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in by_time[:-keep]:
        os.remove(old)
"""
MANAGER = """

from ddplab.checkpoint import CheckpointManager


def save(state, folder, step, keep=2):
    CheckpointManager(folder, keep).save({"state": state}, step)


def load_latest(folder):
    found = CheckpointManager(folder).load()
    return found and found["state"]
"""

# (exercise, what was tried): (edits of the solution, words of the message)
WRONG = {
    (EXACT, "no scheduler"): (
        [(PARTS, '"optimizer": optimizer}')],
        "Step 8 on rank 0|That is the rate of step 2: the scheduler started over",
    ),
    (EXACT, "no optimizer"): (
        [(PARTS, '"scheduler": scheduler}')],
        "the first after the stop at 6) had the right gradient, and AdamW started over",
    ),
    (EXACT, "no generator of torch"): ([(SET_TORCH, "")], "drops other units: torch's generator started over"),
    (EXACT, "no generator of Python"): (
        [(SET_PYTHON, "")],
        "with other noise|Python's generator started over|was not saved",
    ),
    (EXACT, "rank 0's generators for all"): (
        [('saved["generators"][dist.get_rank()]', 'saved["generators"][0]')],
        "on rank 1|Python's generator holds rank 0's state",
    ),
    (EXACT, "generators before the iterator"): (
        [(SET, ""), (ITER, SET + ITER)],
        "torch's generator is 1 draw(s) ahead. `iter(loader)` draws one number",
    ),
    (EXACT, "generators before the warm-up"): (
        [(SET, ""), (WARM_UP + ZERO + RESUME, RESUME + SET + WARM_UP + ZERO)],
        "Python's generator had been drawn from 4 times since it was set",
    ),
    (EXACT, "torch's generator before the warm-up"): (
        [(SET_TORCH, ""), (WARM_UP + ZERO + RESUME, RESUME + SET_TORCH[4:] + WARM_UP + ZERO)],
        "set before 1 forward(s) that no step belongs to",
    ),
    (EXACT, "generators before the skipped batches"): (
        [(SET, ""), (REST + ITER, ALL + SET + SKIP)],
        "had been drawn from 8 times since it was set",
    ),
    (EXACT, "generators behind the iterator of the next epoch"): (
        [NEXT_EPOCH],
        "torch's generator misses a draw. The run was stopped at the end of an epoch",
    ),
    (EXACT, "no epoch"): (
        [(SET_EPOCH, "        sampler.set_epoch(0 if generators else epoch)\n")],
        "this batch in the order of epoch 1: the epoch was forgotten",
    ),
    (EXACT, "no position"): ([("[4 * done :]", "")], "the first batch of this epoch|the position in it was forgotten"),
    (EXACT, "skips one too few"): ([("[4 * done :]", "[4 * max(done - 1, 0) :]")], "belong to step 6: the position"),
    (EXACT, "the epoch again, and more steps"): (
        [(RETURNED, RETURNED.replace('saved["done"]', "0"))],
        "3 steps should be made and as many losses returned; rank 0 made 5 and returned 5. The steps of the epoch",
    ),
    (EXACT, "never resumes"): ([(EXISTS, "    if False:\n")], "made 9 and returned 9. It began with step 1 again"),
    (EXACT, "no weights"): ([('"model": ddp.module, ', "")], "weights that the model was built with: none were loaded"),
    (EXACT, "loads on rank 0"): (
        [(LOAD, "        if dist.get_rank() == 0:\n    " + LOAD)],
        "on rank 1|the weights that the model was built with, and rank 0 with others: DDP broadcasts in its",
    ),
    (EXACT, "the optimizer on rank 0"): (
        [(LOAD, '        if name == "model" or dist.get_rank() == 0:\n    ' + LOAD)],
        "on rank 1|AdamW started over|every rank must load it",
    ),
    (EXACT, "a scheduler made behind the loading"): (
        [(LOOP, LATE_SCHEDULER + LOOP)],
        "That is the rate of step 1. The scheduler started over, or its constructor",
    ),
    (EXACT, "a warm-up that is not wiped"): (
        [(WARM_UP + ZERO, WARM_UP)],
        "had a gradient in `.grad` before its backward|what a warm-up has left",
    ),
    (EXACT, "a warm-up that steps, behind the loading"): (
        [(WARM_UP + ZERO + RESUME, RESUME + WARM_UP + "        optimizer.step()\n" + ZERO)],
        "begins with weights that the run has never had|a warm-up must not step",
    ),
    (EXACT, "evaluates"): ([(RESUME, RESUME + "        ddp.eval()\n")], "in evaluation mode"),
    (EXACT, "all ranks write one file"): (
        [("    if dist.get_rank() == 0:\n        saved =", "    if True:\n        saved =")],
        "Several ranks write `last.pt` at the same time",
    ),
    (EXACT, "saves with nothing to do"): (
        [(LAST, LAST.replace("    return", "    save(folder, parts, epoch, done)\n    return"))],
        "The call before had no step to make, and seems to have saved its own generators",
    ),
    (EXACT, "seeds each epoch"): (
        [(SET_EPOCH, SET_EPOCH + "        torch.manual_seed(10 * epoch + rank)\n")],
        "A run that was never stopped computes something else than the starter's",
    ),
    (EXACT, "returns the losses of all runs"): (
        [(SAVE, SAVE + "                return [0.0] * (last_step - len(losses)) + losses\n")],
        "rank 0 made 3 and returned 9. Each step that is made has one loss",
    ),
    (EXACT, "no warm-up"): (
        [(WARM_UP, "")],
        "Only the mean of the gradients differs|in another order|a + b = b + a hides it",
    ),
    (EXACT, "skips a save on rank 1"): (
        [(GATHER, "    if dist.get_rank() and done == 2:\n        return\n" + GATHER)],
        "The ranks diverge at call|rank 1 calls barrier",
    ),
    (ATOMIC, "in place"): (
        [(DRAFT, '    draft = folder / f"step-{step:012d}.pt"\n'), (REPLACE, "")],
        "`step-000000000010.pt` was there with 0 bytes, and has|Write a draft under another name",
    ),
    (ATOMIC, "a name for the newest, in place"): (
        [(SYNC, '    (folder / "newest").write_text(f"step-{step:012d}.pt")\n' + SYNC)],
        "`newest` was there with",
    ),
    (ATOMIC, "no fsync"): (
        [(FSYNC, "")],
        "The power was cut after “rename `draft`|its bytes were still in the kernel's memory|`os.fsync` the draft",
    ),
    (ATOMIC, "no flush"): (
        [(FLUSH, ""), (WRITE, SPLIT)],
        "came before its last bytes: they were in Python's buffer",
    ),
    (ATOMIC, "fsync behind the rename"): (
        [(FSYNC, ""), (REPLACE, REPLACE + SYNC_LATE)],
        "came after the rename, and the power was cut between",
    ),
    (ATOMIC, "no fsync of the folder"): (
        [(SYNC, "")],
        "right after `save` had returned|returned the state of step 9|entries of the folder",
    ),
    (ATOMIC, "removes before the fsync of the folder"): (
        [(SYNC, ""), (ROTATE, ROTATE + SYNC)],
        "The removal of the old one reached the disk, the name of the new one did not",
    ),
    (ATOMIC, "removes first"): (
        [(ROTATE, ""), (DATA, ROTATE.replace("[:-keep]", "[: len(finished(folder)) + 1 - keep]") + DATA)],
        "`step-000000000009.pt` was removed before the new checkpoint was complete",
    ),
    (ATOMIC, "a draft in another folder"): (
        [(DRAFT, '    draft = folder.parent / "draft"\n')],
        "That may be another file system: a rename fails there",
    ),
    (ATOMIC, "a draft that looks finished"): (
        [
            (DRAFT, '    draft = folder / f"step-{step:012d}-draft.pt"\n'),
            (DAMAGED, '        raise OSError("damaged")\n'),
        ],
        "It stumbles over the draft `step-000000000010-draft.pt`",
    ),
    (ATOMIC, "a draft that must not be there"): (
        [('draft.open("wb")', 'draft.open("xb")'), (CLEAN, "        raise\n")],
        "the job is started again and saves step 11|FileExistsError|must not stop the next",
    ),
    (ATOMIC, "no checksum"): (
        [(CHECKED, TRIES)],
        "for one bit|returned what was never saved|only a checksum",
    ),
    (ATOMIC, "raises when it is damaged"): (
        [(DAMAGED, '        raise OSError(f"{path}: damaged")\n')],
        "of step 10 is whole but for one bit|raised OSError|Step 9 is whole: pass over",
    ),
    (ATOMIC, "looks at the newest only"): (
        [("reversed(finished(folder))", "finished(folder)[-1:]")],
        "of step 10 is whole but for one bit|returned None",
    ),
    (ATOMIC, "says nothing"): (
        [(CLEAN, "        return\n")],
        "`save` returned as if nothing had happened",
    ),
    (ATOMIC, "says nothing of a failed fsync"): (
        [
            (FSYNC, "            with contextlib.suppress(OSError):\n    " + FSYNC),
            ("import io\n", "import contextlib, io\n"),
        ],
        "When the disk failed at “fsync `draft`”, `save` returned as if nothing had happened",
    ),
    (ATOMIC, "drafts pile up"): (
        [('folder / "draft"', 'folder / f"draft-{os.urandom(4).hex()}"'), (CLEAN, "        raise\n")],
        "and left a file; the next time it left another one|remove the draft when the save fails",
    ),
    (ATOMIC, "one os.write"): (
        [(WRITE + FLUSH + FSYNC, BARE.format("os.write(file, data)"))],
        "`save` returned as if nothing had happened|`os.write` returns how much it took",
    ),
    (ATOMIC, "keeps all"): ([(ROTATE, "")], "After steps 8, 9, 10 were saved with `keep=2`, the folder holds older"),
    (ATOMIC, "keeps too few"): ([("[:-keep]", "[: 1 - keep]")], "After steps 8, 9 were saved|has lost one"),
    (ATOMIC, "sorts as text"): ([("{step:012d}", "{step}")], "As text, 10 comes before 8"),
    (ATOMIC, "raises when there is none"): (
        [(NONE, '    raise FileNotFoundError("no checkpoint")\n')],
        "The folder was empty, and `load_latest` raised FileNotFoundError: no checkpoint",
    ),
    (ATOMIC, "keeps it in memory"): (
        [(DATA, "    global kept\n    kept = state\n" + DATA), (NEWEST, '    return globals().get("kept")\n' + NEWEST)],
        "After steps 8 were saved `load_latest` returned None",
    ),
    (ATOMIC, "another program"): (
        [(REPLACE, '        os.system(f"mv {draft} {folder}/step-{step:012d}.pt")\n')],
        "cannot follow what `save` does|calls `os.system`|no other program",
    ),
}

# Solutions that are not the book's, and right.
RIGHT = {
    (EXACT, "buckets that are never rebuilt"): [
        (WARM_UP, ""),
        (DDP, "DistributedDataParallel(model, find_unused_parameters=True)\n"),
    ],
    (EXACT, "reads and skips, with a file for each rank"): [
        (REST + ITER, ALL + SKIP),
        (GATHER, '    torch.save(mine, folder / f"generators-{dist.get_rank()}.pt")\n'),
        ('saved["generators"][dist.get_rank()]', 'torch.load(folder / f"generators-{dist.get_rank()}.pt")'),
    ],
    (EXACT, "counts steps, and warms up behind the loading"): [
        (WARM_UP + ZERO + RESUME, RESUME + WARM_UP + ZERO),
        NEXT_EPOCH,
        (SET, SET.replace("if generators:", "if generators and done:")),
        (ITER, SET.replace("if generators:", "if generators and not done:") + ITER),
    ],
    (ATOMIC, "os.open, os.write, os.replace"): [
        (WRITE + FLUSH + FSYNC, BARE.format("while data:\n                data = data[os.write(file, data) :]")),
        (REPLACE, '        os.replace(draft, folder / f"step-{step:012d}.pt")\n'),
    ],
    (ATOMIC, "a temporary file, and the checksum in another"): [(LOADS, LOADS + ASIDE)],
    (ATOMIC, "a folder for each"): [(LOADS, LOADS + FOLDERS)],
    (ATOMIC, "a link to a file without a name"): [(LOADS, LOADS + NAMELESS)],
    (ATOMIC, "the book's manager"): [(LOADS, LOADS + MANAGER)],
}

# Those whose ranks end, raise or diverge.
ALONE = [(EXACT, "skips a save on rank 1")]


def written(key: tuple[str, str], edits: list[tuple[str, str]]) -> str:
    return text_of(key[0], *edits)
