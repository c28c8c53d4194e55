"""Editions: what runs again, what is shown from evidence, and what a damaged or failing one does.

Each test works in a small house of its own: the real extensions and kit, three short scripts.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONF = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent / "handbook" / "_ext"))
extensions = ["labs", "recording", "editions", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_ext", "**/GALLERY_HEADER.rst", "labs/*/*.ipynb"]
labs_default_edition = "base"
suppress_warnings = ["config.cache"]
sphinx_gallery_conf = {
    "examples_dirs": ["../gallery/short"], "gallery_dirs": ["labs/short"], "filename_pattern": r"/plot_",
    "reset_modules": ("recording.around_script",), "reset_modules_order": "both",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": (), "show_signature": False, "download_all_examples": False, "write_computation_times": False,
}
"""
SCRIPT = '''"""
{title}
=====

A script.
"""
{imports}
from ddplab import record
open("{log}", "a").write("{title} ")
{body}
record(unit="ms", value={value})
'''


class House:
    """A small copy of the book."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "executed"
        shutil.copytree(ROOT / "gallery" / "ddplab", folder / "gallery" / "ddplab")
        shutil.copytree(ROOT / "handbook" / "_ext", folder / "handbook" / "_ext")
        (folder / "conf.py").write_text(CONF)
        (folder / "handbook" / "index.rst").write_text("Book\n====\n\n.. toctree::\n\n   labs/short/index\n")
        (folder / "gallery" / "short").mkdir()
        (folder / "gallery" / "short" / "GALLERY_HEADER.rst").write_text("Short\n=====\n")
        (folder / "gallery" / "ddplab" / "extra.py").write_text("from . import deeper\n")
        (folder / "gallery" / "ddplab" / "deeper.py").write_text("x = 1\n")
        self.write("one", "")
        self.write("two", "from ddplab import extra")
        self.write("three", "from ddplab import launch", body="launch(lambda: None, 2)")

    def write(self, title: str, imports: str = "", body: str = "", value: object = 1) -> None:
        path = self.folder / "gallery" / "short" / f"plot_{title}.py"
        path.write_text(SCRIPT.format(title=title, imports=imports, body=body, value=value, log=self.log))

    def command(self, *options: str) -> list[str]:
        output = str(self.folder / "_build")
        return [sys.executable, "-m", "sphinx", "-c", ".", "-q", "-b", "dummy", *options, "handbook", output]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder / "gallery")}

    def build(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*options), cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=120
        )

    def executed(self, *options: str) -> set[str]:
        """Build, which must succeed; return which scripts ran."""
        self.log.write_text("")
        done = self.build(*options)
        assert done.returncode == 0, done.stderr
        return set(self.log.read_text().split())

    def shown(self, title: str) -> dict:
        return json.loads((self.folder / f"handbook/labs/short/plot_{title}.evidence.json").read_text())

    def kept(self, title: str, edition: str = "base") -> Path:
        return self.folder / "gallery" / "editions" / edition / "short" / f"plot_{title}" / "evidence.json"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    house = House(tmp_path_factory.mktemp("recorded"))
    assert house.executed("-D", "labs_record=base") == {"one", "two", "three"}
    return house.folder


@pytest.fixture
def house(recorded, tmp_path) -> House:
    """A house with a recorded edition, as a fresh clone has it."""
    shutil.copytree(recorded, tmp_path / "house", ignore=shutil.ignore_patterns("labs", "_build", "__pycache__"))
    house = object.__new__(House)
    house.folder = tmp_path / "house"
    house.log = recorded / "executed"
    return house


def test_a_fresh_clone_renders_without_executing(house):
    assert house.executed() == set()
    assert house.shown("three")["launches"][0]["ranks"] == 2
    assert house.shown("three")["edition"] == "base"
    assert house.executed() == set()


def test_a_changed_module_re_executes_exactly_what_imports_it(house):
    house.executed()
    (house.folder / "gallery/ddplab/deeper.py").write_text("x = 2\n")
    assert house.executed() == {"two"}
    assert house.shown("two")["edition"] == "here"
    assert house.executed() == set()


def test_a_changed_script_is_executed_here_and_the_edition_stays(house):
    before = house.kept("one").read_text()
    house.write("one", value=5)
    assert house.executed() == {"one"}
    assert house.shown("one")["values"]["value"]["value"] == 5
    assert house.kept("one").read_text() == before


def test_a_named_edition_is_shown_without_executing_and_says_when_it_is_stale(house):
    house.write("one", value=5)
    assert house.executed("-D", "labs_edition=base") == set()
    assert house.shown("one")["stale"] is True
    assert house.shown("one")["values"]["value"]["value"] == 1
    assert house.shown("two")["stale"] is False
    assert house.executed() == {"one"}, "without a name the fresh result is wanted again"


def test_live_executes_everything(house):
    assert house.executed("-D", "labs_live=1") == {"one", "two", "three"}


def test_recording_again_runs_only_what_changed(house):
    assert house.executed("-D", "labs_record=base") == set()
    house.write("one", value=5)
    assert house.executed("-D", "labs_record=base") == {"one"}
    assert house.executed("-D", "labs_record=base", "-D", "labs_fresh=1") == {"one", "two", "three"}


def test_an_interrupted_recording_resumes(house):
    slow = "import time\nif not __import__('os').environ.get('QUICK'): time.sleep(60)"
    house.write("two", body=slow)
    house.log.write_text("")
    running = subprocess.Popen(house.command("-D", "labs_record=new"), cwd=house.folder, env=house.environment())
    deadline = time.monotonic() + 60
    while "two" not in house.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert {"one", "three"} <= set(house.log.read_text().split())
    house.log.write_text("")
    os.environ["QUICK"] = "1"
    try:
        assert house.executed("-D", "labs_record=new") == {"two"}
    finally:
        del os.environ["QUICK"]
    manifest = json.loads((house.folder / "gallery/editions/new/manifest.json").read_text())
    assert set(manifest["scripts"]) == {"one", "two", "three"}
    assert manifest["world_sizes"] == [2]


def test_a_failing_script_leaves_the_old_evidence_whole_and_says_so(house):
    before = house.kept("two").read_text()
    house.write("two", body="raise RuntimeError('it broke')")
    done = house.build("-D", "labs_record=base")
    assert done.returncode != 0
    assert "plot_two.py" in done.stderr
    assert "it broke" in done.stderr
    assert house.kept("two").read_text() == before
    assert not list(house.folder.rglob("*.running"))


def test_a_rank_that_crashes_fails_the_build_with_its_name(house):
    house.write("three", "from ddplab import launch", body="import os\nlaunch(lambda: os._exit(9), 1)")
    done = house.build()
    assert done.returncode != 0
    assert "rank 0 exited with code 9" in done.stderr


def test_an_unknown_edition_is_named_with_those_that_exist(house):
    done = house.build("-D", "labs_edition=nothing")
    assert done.returncode != 0
    assert "unknown edition 'nothing'; there is base" in done.stderr


def test_a_bad_edition_name_is_refused(house):
    done = house.build("-D", "labs_record=../up")
    assert done.returncode != 0
    assert "edition name '../up': use small letters, digits and hyphens" in done.stderr


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"values": {}}'])
def test_a_damaged_edition_file_is_named(house, damage):
    house.kept("one").write_text(damage)
    done = house.build("-D", "labs_edition=base")
    assert done.returncode != 0
    assert f"{house.kept('one')} is damaged" in done.stderr
    assert "make edition NAME=" in done.stderr


def test_a_missing_page_in_an_edition_is_named(house):
    page = house.kept("one").with_name("plot_one.rst")
    page.unlink()
    done = house.build("-D", "labs_edition=base")
    assert done.returncode != 0
    assert f"{page.parent} is incomplete" in done.stderr


def test_a_mistake_is_answered_with_one_line(house):
    done = house.build("-D", "labs_edition=nothing")
    assert done.returncode == 1
    assert done.stderr == "unknown edition 'nothing'; there is base, or record it: make edition NAME=nothing\n"


def test_a_script_that_fails_is_the_last_thing_said(house):
    house.write("two", body="raise RuntimeError('it broke')")
    done = house.build()
    assert done.returncode == 1
    says = "failed, with the traceback above: gallery/short/plot_two.py; each also runs alone: python "
    assert done.stderr.splitlines()[-1].startswith(says)
    assert done.stderr.count("Traceback") == 1


def test_two_builds_at_once_take_turns(house):
    running = [subprocess.Popen(house.command("-D", "labs_live=1"), cwd=house.folder, env=house.environment())]
    done = house.build("-D", "labs_live=1")
    assert (done.returncode, running[0].wait()) == (0, 0), done.stderr
