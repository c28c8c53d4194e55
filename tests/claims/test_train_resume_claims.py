"""gallery/recipes/train.py is killed, started again, and ends as if nothing had been."""

import time

import pytest
from proof import proves

from recipes.trainer import TINY, call, curve, files, live, losses, same_bits, train

RECIPE = "train.py"  # the claims are shown anew when it changes


@pytest.fixture
def same(tmp_path):
    """Twenty steps over more than one epoch, with dropout; of each two means one is cut by a save."""
    text = tmp_path / "short.txt"
    text.write_text("".join(chr(97 + i * i % 17) for i in range(3000)))
    return [*TINY, "--data", text, "--batch", 12, "--steps", 20, "--log-every", 2, "--save-every", 3]


@proves("ckpt-recipe-killed-anywhere")
@pytest.mark.parametrize("ranks", [2, 3])
def test_killed_in_two_saves_and_at_some_moment(ranks, same, tmp_path):
    """Rank 0 is killed twice while it handles a checkpoint, then all ranks wherever they are; the fourth start ends."""
    began, log, whole, killed = time.monotonic(), tmp_path / "log", tmp_path / "whole", tmp_path / "killed"
    said = curve(train(ranks, *same, "--out", whole))
    seconds = time.monotonic() - began
    assert not live(ranks, log, "file", 6, *same, "--out", killed)
    assert not live(ranks, log, "file", 11, *same, "--out", killed)
    live(ranks, log, "all", seconds / 2, *same, "--out", killed)
    assert live(ranks, log, "all", 0, *same, "--out", killed)
    assert log.read_text().count("resumed after step") >= 2
    assert set(curve(log.read_text())) == set(said)
    same_bits(whole, killed)


@proves("ckpt-recipe-damaged-newest")
def test_a_cut_file_is_named_and_the_one_before_is_used(same, tmp_path):
    """The newest of three checkpoints is cut in its middle."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    said = losses(train(2, *same, "--out", whole))
    train(2, *same, "--out", cut)
    newest = files(cut)[-1]
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    one, other = call(2, *same, "--out", cut)
    assert (one.code, other.code, other.err) == (0, 0, "")
    assert one.out.startswith("resumed after step 18")
    assert str(newest) in one.err
    assert losses(one.out) == said[9:]
    same_bits(whole, cut)
