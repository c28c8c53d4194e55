"""What train.py cannot do it says in one line, on rank 0, and every rank leaves with code 2."""

import contextlib
import hashlib
import io
import os
import textwrap

import pytest
import torch

from ddplab import launch
from trainer import TINY, TRAIN, call, checkpoint, files, start, start_python, train


def refusal(ranks: int, *args: object, how=call, **options) -> str:
    first, *others = how(ranks, *args, **options)
    assert [first.code, *(other.code for other in others)] == [2] * ranks, first.err
    assert all(other.out == other.err == "" for other in others)
    assert first.err.count("\n") == 1, first.err
    assert first.err.startswith("train.py: ")
    return first.err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--batch", "many"], "argument --batch: invalid int value: 'many'"),
        (["--stepz", 3], "unrecognized arguments: --stepz 3"),
        (["--log-every", 0], "--log-every 0 is too small"),
        (["--vote-every", 0], "--vote-every 0 is too small"),
        (["--batch", 9], "--batch 9 is not a multiple of 2"),
        (["--data", "nowhere.txt"], "No such file or directory: 'nowhere.txt'"),
        (["--data", __file__, "--batch", 100_000], "fewer than --batch 100000"),
        (["--data", "/dev/null"], "has 0 letters"),
        (["--dropout", 2], "dropout probability has to be between 0 and 1"),
        (["--out", "/dev/null/here"], "Not a directory"),
        (["--resume", "must"], "--resume must: there is no"),
        (["--dataset", "mrpc"], "--model hf:NAME with --dataset mrpc"),
        (["--model", "large"], "--model small goes with --dataset text"),
    ],
)
def test_bad_flags_and_bad_data(flags, why, tmp_path):
    assert why in refusal(2, "--out", tmp_path, *flags)


def test_a_data_file_that_one_rank_cannot_see(tmp_path):
    code = "import os, runpy, sys; os.chdir(sys.argv[1] if os.environ['RANK'] == '1' else '.'); "
    code += "sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    program = tmp_path / "elsewhere.py"
    program.write_text(code)
    (tmp_path / "here.txt").write_text("some text " * 300)
    (tmp_path / "elsewhere").mkdir()
    flags = [*TINY, "--data", "here.txt", "--out", tmp_path]
    said = refusal(2, tmp_path / "elsewhere", TRAIN, *flags, how=start, program=program, cwd=tmp_path)
    assert "error on rank 1: FileNotFoundError" in said


def test_checkpoints_that_do_not_fit(tmp_path):
    same = [*TINY, "--steps", 2, "--out", tmp_path]
    train(2, *same)
    (path,) = files(tmp_path)
    whole = path.read_bytes()

    assert "belongs to another run: width was 16 and is 32" in refusal(2, *same, "--width", 32)
    text = tmp_path / "other.txt"
    text.write_text("other text " * 300)
    assert "belongs to another run: data was" in refusal(2, *same, "--data", text)
    assert path.read_bytes() == whole

    train(2, *TINY, "--steps", 2, "--width", 32, "--out", tmp_path / "wide")
    content = torch.load(files(tmp_path / "wide")[0])  # of a program that was changed: its flags are the same
    content["values"]["config"] = torch.load(path)["values"]["config"]
    torch.save(content, path)
    path.write_bytes((saved := path.read_bytes()) + f"\nsha256 {hashlib.sha256(saved).hexdigest()}\n".encode())
    said = refusal(2, *same)
    assert f"{path}: does not fit, nothing was loaded: " in said
    assert "model" in said
    assert "(51, 32) instead of float32 (51, 16)" in said

    path.write_bytes(whole[: len(whole) // 2])
    for resume in ("auto", "must"):
        one, other = call(2, *same, "--resume", resume)
        assert (one.code, other.code, one.out, other.err) == (2, 2, "", "")
        warning, error = one.err.splitlines()
        assert warning.startswith(f"train.py: warning: skipped a checkpoint: {path}: torn")
        assert error.endswith(f"--resume {resume}: there is no complete checkpoint in {tmp_path}")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    same = [*TINY, "--steps", 3, "--save-every", 1]
    train(2, *same, "--out", tmp_path)
    path, *later = files(tmp_path)
    for newer in later:
        newer.unlink()
    whole = path.read_bytes()

    program = tmp_path / "few_bytes.py"
    program.write_text(
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    one, other = start(2, TRAIN, *same, "--out", tmp_path, program=program)
    assert (one.code, other.code, other.err) == (2, 2, "")
    assert one.err.count("\n") == 1
    assert one.err.startswith("train.py: rank 0: ")
    assert one.err.endswith("OSError: [Errno 27] File too large\n")
    assert files(tmp_path) == [path]
    assert path.read_bytes() == whole
    assert "resumed after step 1" in train(2, *same, "--out", tmp_path)


def test_a_loss_that_is_no_number_is_not_saved(tmp_path):
    said = refusal(1, *TINY, "--lr", 1e30, "--save-every", 1, "--steps", 9, "--out", tmp_path)
    assert "the loss is nan at step" in said
    assert checkpoint(tmp_path)["step"] < 9
    assert all(value.isfinite().all() for value in checkpoint(tmp_path)["model"].values())


LIBRARIES = {
    "transformers": """
        import torch
        from types import SimpleNamespace
        class AutoTokenizer:
            pad_token, eos_token, pad_token_id = None, "|", ord("|")
            @classmethod
            def from_pretrained(cls, name):
                if name != "tiny":
                    raise OSError(f"{name} is not a local folder\\nand is not a valid model identifier")
                return cls()
            def __call__(self, first, second, return_tensors, padding, truncation, max_length):
                assert (return_tensors, padding, truncation) == ("pt", "max_length", True)
                ids = torch.zeros(len(first), max_length, dtype=torch.long)
                for row, (a, b) in enumerate(zip(first, second)):
                    codes = [ord(letter) for letter in f"{a}|{b}"][:max_length]
                    ids[row, :len(codes)] = torch.tensor(codes)
                return {"input_ids": ids, "attention_mask": (ids > 0).long()}
        class Output:
            def __init__(self, logits):
                self.loss, self.logits = None, logits
        class AutoModelForSequenceClassification(torch.nn.Module):
            @classmethod
            def from_pretrained(cls, name, num_labels):
                AutoTokenizer.from_pretrained(name)
                return cls(num_labels)
            def __init__(self, num_labels):
                super().__init__()
                self.config = SimpleNamespace(pad_token_id=None)
                self.embed, self.head = torch.nn.Embedding(128, 16), torch.nn.Linear(16, num_labels)
            def forward(self, input_ids=None, attention_mask=None):
                weights = attention_mask.unsqueeze(-1)
                return Output(self.head((self.embed(input_ids) * weights).sum(1) / weights.sum(1)))
    """,
    "datasets": """
        def load_dataset(path, name):
            assert (path, name) == ("nyu-mll/glue", "mrpc")
            def rows(n):
                same = [i % 3 > 0 for i in range(n)]
                return {"sentence1": [f"rank {i}" for i in range(n)],
                        "sentence2": ["yes" if yes else "no!" for yes in same],
                        "label": [int(yes) for yes in same]}
            return {"train": rows(96), "validation": rows(33)}
    """,
}


@pytest.fixture
def stand_ins(tmp_path):
    """Two modules with the calls of transformers and datasets that train.py makes, and nothing behind them."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    for name, code in LIBRARIES.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
    return folder


def test_a_hub_model_learns_mrpc_on_stand_ins(stand_ins, tmp_path):
    flags = ["--dataset", "mrpc", "--model", "hf:tiny", "--context", 20, "--batch", 8, "--steps", 40, "--lr", 0.05]
    said = train(2, *flags, "--out", tmp_path, how=start_python, path=stand_ins)
    assert "accuracy 100.0%" in said
    assert set(checkpoint(tmp_path)["model"]) == {"embed.weight", "head.weight", "head.bias"}


def test_a_hub_that_has_no_such_model_or_libraries_that_are_missing(stand_ins, tmp_path):
    flags = ["--dataset", "mrpc", "--out", tmp_path, "--model"]
    said = refusal(2, *flags, "hf:absent", how=start_python, path=stand_ins)
    assert "OSError: absent is not a local folder and is not a valid model identifier" in said
    (stand_ins / "transformers.py").write_text("raise ModuleNotFoundError(\"No module named 'transformers'\")")
    said = refusal(1, *flags, "hf:tiny", how=start_python, path=stand_ins)
    assert "ModuleNotFoundError: No module named 'transformers'" in said


def test_more_ranks_than_gpus_are_refused_in_one_line():
    """On GPUs that are made up: the comparison needs their names only."""

    def worker(folder, gpus):
        import sys  # the worker travels by value
        from types import SimpleNamespace

        sys.path.insert(0, folder)
        import train

        name = gpus[int(os.environ["RANK"])]
        torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid=name)
        torch.cuda.device_count = lambda: 1
        train.leave = sys.exit
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
            train.one_gpu_each("cuda:0")
        return err.getvalue()

    said, silence = launch(worker, 2, str(TRAIN.parent), ["GPU-1", "GPU-1"], quiet=True)
    assert said.count("\n") == 1
    assert "more ranks than GPUs: " in said
    assert silence == ""
    assert launch(worker, 2, str(TRAIN.parent), ["GPU-1", "GPU-2"], quiet=True) == ["", ""]
