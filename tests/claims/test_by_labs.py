"""Claims that labs assert on the way: the lab runs here, as it stands, and nothing is shown twice."""

from pathlib import Path

import pytest
from proof import proves

from ddplab.recording.script import run
from ddplab.runtime.needs import NotShownHere

GALLERY = Path(__file__).parents[2] / "gallery"


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")


def run_lab(script):
    """Run a lab of gallery/, with its assertions."""
    outcome = run(GALLERY / script, lambda figure, number: "")
    if outcome.needs:
        raise NotShownHere(outcome.needs)
    assert not outcome.failed, outcome.failed


@proves("changes-after-wrapping")
@proves("wrap-again-after-a-change")
def test_changing_the_model():
    """Seven changes to a wrapped model on 2 and 3 ranks, and the same with a new wrapper behind each."""
    run_lab("internals/plot_16_changing_the_model.py")


@proves("gpu-nccl-kernels-in-a-row")
def test_real_gpu_streams():
    """Every kernel of NCCL in five public traces: its stream, its neighbours, and the call that queued it."""
    run_lab("internals/plot_17_real_gpu_streams.py")


@proves("perf-views-peak")
@proves("perf-views-overwrite")
def test_memory_of_views():
    """Storages counted at every gradient of a warm backward; a gradient that is kept over a step."""
    run_lab("performance/plot_10_memory_of_views.py")


@proves("perf-inf-before-the-sync")
@proves("perf-inf-behind-the-sync")
@proves("perf-clip-behind-unscale")
def test_scaler_inf():
    """An inf on one of three ranks, before and behind the sync; a clip on both sides of ``unscale_``."""
    run_lab("performance/plot_11_scaler_inf.py")


@proves("perf-compiled-buckets-leave-early")
def test_compile_overlap():
    """The order in which graphs end and buckets are launched, split and whole."""
    run_lab("performance/plot_13_compile_overlap.py")


@proves("tool-monitored-barrier")
def test_monitored_barrier():
    """Of four ranks two never come: a barrier, and ``monitored_barrier`` in both of its ways."""
    run_lab("debugging/plot_42_monitored_barrier.py")


@proves("ckpt-leave-one-out")
@proves("ckpt-first-loss-proves-little")
@proves("ckpt-rng-of-each-rank")
def test_leave_one_out():
    """A run resumed without one part at a time, against the run that was never interrupted."""
    run_lab("checkpointing/plot_10_leave_one_out.py")


@proves("ckpt-dcp-reshards")
@proves("ckpt-dcp-to-one-file")
def test_resharding():
    """DDP and FSDP2, saved by 1 to 4 ranks and read by 1 to 3, bit for bit; one file of a directory."""
    run_lab("checkpointing/plot_21_resharding.py")
