"""`make … TORCH=python3`: an environment on top of a Python that has its own torch."""

import subprocess
import venv
from pathlib import Path

import pytest

from tools import PATIENCE_S, ROOT


@pytest.fixture
def own(tmp_path) -> Path:
    """A Python with packages of its own: a torch that no index has, and a pin that is newer than ours."""
    venv.create(tmp_path / "own")
    (packages,) = (tmp_path / "own").glob("lib/python3*/site-packages")
    for name, version in (("torch", "2.9.0a0+mine"), ("psutil", "99")):
        (packages / f"{name}.py").write_text(f"__version__ = {version!r}\n")
        about = packages / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return tmp_path / "own" / "bin" / "python"


def make_over(python: str | Path, folder: Path) -> subprocess.CompletedProcess:
    command = [python, ROOT / "tests" / "own_torch.py", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_environment_has_the_torch_that_is_there_and_pip_keeps_it(own, tmp_path):
    folder = tmp_path / "over"
    assert make_over(own, folder).returncode == 0
    asked = [folder / "bin" / "python", "-c", "import torch; print(torch.__version__)"]
    assert subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S).stdout == "2.9.0a0+mine\n"
    pins = (folder / "constraints.txt").read_text().split()
    ours = (ROOT / "constraints.txt").read_text().split()
    assert set(pins) ^ set(ours) == {
        "torch==2.9.0a0+mine",
        *(pin for pin in ours if pin.startswith(("torch==", "psutil=="))),
    }
    needed = [folder / "bin" / "pip", "install", "--no-index", "--dry-run", "-c", folder / "constraints.txt"]
    kept = subprocess.run([*needed, "torch>=2.8", "psutil"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert kept.returncode == 0, kept.stderr
    assert "Would install" not in kept.stdout


def test_a_python_without_torch_is_refused_in_one_line(tmp_path):
    venv.create(tmp_path / "bare")
    refused = make_over(tmp_path / "bare" / "bin" / "python", tmp_path / "over")
    assert refused.returncode == 1
    assert "has no torch" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "over").exists()
