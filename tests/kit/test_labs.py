"""Labs run here as they stand: of each part, the one that was recorded in the shortest time on real ranks.

Those that need a GPU are rehearsed in ``test_gpu_labs.py``.
"""

from pathlib import Path

import pytest

from ddplab.recording.edition import Edition
from ddplab.recording.labs import record_lab
from ddplab.recording.script import lab_id

ROOT = Path(__file__).parents[2]
RECORDED = Edition(ROOT / "gallery" / "editions" / "cpu-gloo")


def shortest(part: Path) -> Path:
    times = {script: RECORDED.lab(lab_id(script)) for script in part.glob("plot_*.py")}
    on_ranks = {script: kept["seconds"] for script, kept in times.items() if kept and kept["launches"]}
    return min(on_ranks, key=on_ranks.get)


PARTS = sorted({script.parent for script in (ROOT / "gallery").glob("*/plot_*.py")} - {ROOT / "gallery/gpu"})


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_lab_gives_here_what_its_edition_has_in_kind(part, monkeypatch):
    """As many outputs and figures, of the same blocks, and the same values by name."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    script = shortest(part)
    here, figures = record_lab(lab_id(script), script)
    recorded = RECORDED.lab(lab_id(script))
    assert "failed" not in here, here.get("failed")
    assert [block.keys() for block in here["blocks"]] == [block.keys() for block in recorded["blocks"]]
    assert here["values"].keys() == recorded["values"].keys()
    assert len(figures) == sum(len(block.get("figures", ())) for block in recorded["blocks"])
