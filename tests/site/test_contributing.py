"""The examples of CONTRIBUTING.md, in a copy of the project: recorded on real ranks, built, diagnosed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tools import PATIENCE_S, ROOT

EXAMPLE = re.compile(r"^`([\w./-]+)`:\n\n(`{3,})\w+\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
# The book of the copy: the configuration of ours, without the pages that show all labs and entries.
CONF = f"""
exec(open({str(ROOT / "conf.py")!r}).read(), dict(globals(), __file__=__file__), globals())
extensions = [name for name in extensions if "explorers" not in name]
sphinx_gallery_conf |= {{"examples_dirs": ["../gallery/warm_up"], "gallery_dirs": ["labs/warm_up"]}}
labs_default_edition = "mine"
"""
INDEX = "# Book\n\n```{toctree}\nwarm_up\nlabs/warm_up/index\nclaims\n```\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project that has nothing but the examples, with its web book."""
    folder = tmp_path_factory.mktemp("project")
    for part in ("gallery/ddplab", "handbook/_ext", "handbook/_static", "handbook/_templates", "slides/_static"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "claims").mkdir(parents=True)
    for part in ("tests/claims/conftest.py", "tests/claims/proof.py", "slides/conf.py", "pyproject.toml"):
        shutil.copy(ROOT / part, folder / part)
    (folder / "conf.py").write_text(CONF)
    (folder / "handbook" / "index.md").write_text(INDEX)
    (folder / "handbook" / "claims.md").write_text("# Claims\n\n```{claims-list}\n```\n")
    (folder / "handbook" / "references.bib").touch()
    (folder / "slides" / "index.md").write_text("# Decks\n\n```{toctree}\nwarm-up\n```\n")
    for path, _, content in EXAMPLE.findall((ROOT / "CONTRIBUTING.md").read_text()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    run(folder, "ddplab.recording", "mine")
    run(folder, "sphinx", "-c", ".", "-W", "-b", "html", "handbook", "_build/html")
    return folder


def run(project: Path, module: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(project / "gallery"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_chapter_is_built_with_what_was_recorded(project):
    page = BeautifulSoup((project / "_build/html/warm_up.html").read_text(), "html.parser")
    text = page.get_text()
    assert "hold 3:" in text
    assert "holds 3.0" in text
    assert "Who sends to whom?" in text
    claims = (project / "_build/html/claims.html").read_text()
    assert "warm-up-all-hold-the-sum" in claims


def test_the_deck_takes_numbers_figures_and_cards(project):
    run(project, "sphinx", "-W", "-b", "revealjs", "slides", "_build/slides")
    deck = BeautifulSoup((project / "_build/slides/warm-up.html").read_text(), "html.parser")
    assert "the sum: 3" in deck.get_text()
    assert "what it holds" in deck.select_one("#as-a-picture svg").get_text()
    asked, answer = (deck.find("section", id=f"card-warm-up-all-reduce{end}") for end in ("", "-answer"))
    assert "What does an all-reduce leave on each rank?" in asked.get_text()
    assert "the same reduction" in answer.get_text().lower()
    assert "In depth" in answer.select_one("aside.notes").get_text()
    assert "edition mine" in deck.select_one(".deck-footer").get_text()


def test_the_error_entry_diagnoses_its_sample(project, tmp_path):
    (tmp_path / "log").write_text("[rank1]: WarmUpError: lost the thread on rank 1\n")
    assert "warm-up-lost" in run(project, "ddplab", "diagnose", str(tmp_path / "log"))
