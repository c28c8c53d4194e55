"""Labs run here as they stand: of each part a short one on real ranks.

Those that need a GPU are rehearsed in ``test_gpu_labs.py``.
"""

import pytest

from ddplab.recording.edition_folder import Edition
from ddplab.recording.labs import record_lab
from ddplab.recording.script import lab_id
from tools import ROOT

RECORDED = Edition(ROOT / "gallery" / "editions" / "cpu-gloo")


LABS = [
    "idea/plot_02_mean_of_means.py",
    "checkpointing/plot_02_damaged_checkpoints.py",
    "debugging/plot_02_dtypes_differ.py",
    "from_scratch/plot_01_start_equal.py",
    "internals/plot_04_constructor.py",
    "museum/plot_02_no_sync_around_backward.py",
    "performance/plot_11_scaler_inf.py",
    "setup/plot_06_worker_seeds.py",
]


def test_each_part_has_a_lab_here():
    parts = {script.parent.name for script in (ROOT / "gallery").glob("*/plot_*.py")}
    assert sorted(lab.split("/")[0] for lab in LABS) == sorted(parts - {"gpu"})


@pytest.mark.parametrize("lab", [pytest.param(LABS[0], marks=pytest.mark.core), *LABS[1:]])
def test_a_lab_gives_here_what_its_edition_has_in_kind(lab, monkeypatch):
    """As many outputs and figures, of the same blocks, and the same values by name."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    script = ROOT / "gallery" / lab
    here, figures = record_lab(script)
    assert here["launches"]
    recorded = RECORDED.lab(lab_id(script))
    assert "failed" not in here, here.get("failed")
    assert [block.keys() for block in here["blocks"]] == [block.keys() for block in recorded["blocks"]]
    assert here["values"].keys() == recorded["values"].keys()
    assert len(figures) == sum(len(block.get("figures", ())) for block in recorded["blocks"])
