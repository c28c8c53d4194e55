"""train.py learns, does the same on any number of ranks, and runs in each precision."""

import argparse
import ast
import json
import math
import re
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, StackDataset

from ddplab import launch
from ddplab.apparatus.machines import loopback
from ddplab.apparatus.recipes import FOLDER, torchrun
from tools import PATIENCE_S
from trainer import TINY, TRAIN, checkpoint, losses, start, tensors, train, validation


def test_the_validation_loss_falls_under_torchrun(tmp_path):
    small = ["--width", "64", "--layers", "2", "--steps", "90", "--save-every", "30"]
    said = torchrun("train.py", 2, "--out", str(tmp_path), *small, timeout_s=PATIENCE_S)
    first, second, third = validation(said)
    assert third < second < first < 3.5
    assert third < first - 0.3
    assert len(losses(said)) == 9
    assert checkpoint(tmp_path)["step"] == 90
    assert not [name for name in checkpoint(tmp_path)["model"] if name.startswith("module.")]


def test_the_number_of_ranks_and_of_micro_batches_changes_roundings_only(tmp_path):
    same = [*TINY, "--dropout", 0, "--steps", 12, "--save-every", 6]
    runs = {}
    for ranks, accumulate in [(1, 1), (2, 1), (2, 2)]:
        folder = tmp_path / f"{ranks}x{accumulate}"
        said = train(ranks, *same, "--accumulate", accumulate, "--out", folder)
        runs[folder] = losses(said) + validation(said), tensors(checkpoint(folder)["model"])
    (loss, weights), *others = runs.values()
    assert len(loss) == 14
    for other_loss, other_weights in others:
        assert other_loss == pytest.approx(loss, abs=2e-4)
        for name, value in weights.items():
            if name.endswith("in_proj_bias"):  # of the keys it has no gradient but roundings, which Adam
                continue  # makes steps of: each of its steps is as large as the learning rate
            assert other_weights[name].sub(value).abs().max() < 1e-4, name


def test_each_rank_has_its_own_samples_and_its_own_dropout(tmp_path):
    train(2, *TINY, "--steps", 2, "--out", tmp_path)
    one, other = checkpoint(tmp_path)["generators"]
    assert not one["torch"].equal(other["torch"])


def test_half_precision_learns_as_full_precision_does(tmp_path):
    same = [*TINY, "--steps", 40, "--log-every", 10]
    kinds = ["fp32", "bf16", "fp16"]
    full, bf16, fp16 = (losses(train(1, *same, "--out", tmp_path / p, "--precision", p)) for p in kinds)
    assert bf16 == pytest.approx(full, rel=0.03)
    assert fp16 == pytest.approx(full, rel=0.03)
    assert len({tuple(full), tuple(bf16), tuple(fp16)}) == 3
    assert [bool(checkpoint(tmp_path / p)["scaler"]) for p in kinds] == [False, False, True]


def test_slurm_variables_are_enough(tmp_path):
    said = train(2, *TINY, "--steps", 2, "--out", tmp_path, how=start, slurm=True)
    assert "2 ranks × 1" in said


def test_its_log_tells_speed_and_memory_and_the_fused_step_learns_alike(tmp_path):
    same = [*TINY, "--steps", 3, "--dropout", 0]
    plain, fused = (train(1, *same, *more, "--out", tmp_path / str(len(more))) for more in ([], ["--fused"]))
    assert re.search(r"step +3  loss \S+  [\d,]+ tokens/s  \d+\.\d\d GiB\n", plain)
    assert losses(fused) == pytest.approx(losses(plain), abs=2e-4)


@pytest.mark.core
def test_alone_without_any_variable(tmp_path):
    with loopback(1) as (host,):
        alone = host.fork(["python", str(TRAIN), *map(str, TINY), "--steps", "2", "--out", str(tmp_path)])
        assert alone.wait(PATIENCE_S) == 0
    assert "1 ranks × 1" in alone.output


def test_a_profile_of_each_rank_shows_one_all_reduce_of_gradients_a_step(tmp_path):
    flags = ["--accumulate", 2, "--log-every", 99, "--workers", 1, "--profile", tmp_path / "trace"]
    one, other = start(2, *TINY, "--steps", 9, "--out", tmp_path, *flags)
    assert (one.code, other.code, other.out) == (0, 0, ""), one.err
    traces = sorted((tmp_path / "trace").iterdir())
    assert [trace.name.split(".")[0] for trace in traces] == ["rank0", "rank1"]
    for trace in traces:
        events = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
        # Four steps of two micro-batches: the gradients, in one bucket, and the vote on stopping.
        assert events.count("c10d::allreduce_") == 4 * 2


def test_batches_and_evaluation_take_every_sample_once(tmp_path):
    def worker(folder):
        sys.path.insert(0, folder)
        import train

        def numbers(step, steps):
            data = StackDataset(sample=torch.arange(21), labels=torch.zeros(21))
            loader = partial(DataLoader, batch_size=2)
            micro = train.batches(data, loader, argparse.Namespace(batch=8, seed=0), step)
            return [next(micro)["sample"].tolist() for _ in range(2 * steps)]

        class Model(torch.nn.Module):  # its loss grows with the sample, and only even samples are right
            def forward(self, sample):
                return torch.stack([sample * (-1.0) ** sample, torch.zeros(len(sample))], dim=1)

        valid = StackDataset(sample=torch.arange(5), labels=torch.zeros(5, dtype=torch.long))
        trainer = argparse.Namespace(model=Model(), device="cpu", autocast=nullcontext, group=None)
        scored = train.Trainer.evaluate(trainer, valid, partial(DataLoader, batch_size=2))
        return numbers(0, 4), numbers(1, 3), scored

    (one, rest, scored), (other, other_rest, other_scored) = launch(worker, 2, str(FOLDER), quiet=True)
    for epoch in (slice(0, 4), slice(4, 8)):
        assert len(set(chain(*one[epoch], *other[epoch]))) == 16  # two steps of eight: five are left out
    assert one[:4] != one[4:]  # set_epoch: another order
    assert (rest, other_rest) == (one[2:], other[2:])  # begun after the first step
    expected = sum(math.log1p(math.exp(-i * (-1) ** i)) for i in range(5)) / 5
    assert scored == other_scored == pytest.approx([expected, 3 / 5])


def test_help_comes_from_rank_0_alone():
    first, second = start(2, "--help")
    assert (first.code, second.code, second.out, second.err) == (0, 0, "", "")
    assert "samples in a step, over all ranks" in first.out


def test_the_text_is_what_its_generator_writes(tmp_path):
    data = FOLDER / "data"
    generator = tmp_path / "make_text.py"
    generator.write_bytes((data / "make_text.py").read_bytes())
    subprocess.run([sys.executable, generator], check=True, timeout=PATIENCE_S)
    assert (tmp_path / "collectives.txt").read_bytes() == (data / "collectives.txt").read_bytes()


@pytest.mark.parametrize(("program", "lines"), [("train.py", 490), ("hello_ranks.py", 700)])
def test_what_readers_copy_stays_short_enough_to_read(program, lines):
    source = (FOLDER / program).read_text()
    assert len(source.splitlines()) <= lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{program}: {node.name} is too long to be read at once"
