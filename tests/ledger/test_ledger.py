"""The ledger in a small project of its own: one thing changes, and exactly what depends on it runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ledger import here

ROOT = Path(__file__).parents[2]
TORCH, PLUS, BUILD = here.here()["torch"].partition("+")
QUICK = ("-p", "no:cacheprovider", "-p", "xdist")
OURS = ("PYTEST_", "GIT_", "PYTHON")  # what this run of pytest, and a hook of git, would hand down
# The commit chooses the sample: the same each day, and this one chooses none of the tests below.
FIXED = {
    f"GIT_{who}_{what}": text
    for who in ("AUTHOR", "COMMITTER")
    for what, text in (("NAME", "a"), ("EMAIL", "a@example.org"), ("DATE", "2026-01-01T00:00:00Z"))
}

FILES = {
    ".gitignore": "_build/\n__pycache__/\n*.tmp\n",
    "pyproject.toml": """\
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["tests", "handbook"]
markers = ["proves(id): shows a claim", "apart: shares nothing"]
""",
    "gallery/ddplab/sums.py": """\
import functools
from pathlib import Path

def used():
    return 1 + 1

def unused():
    return 1 + 2

@functools.cache
def data():
    return (Path(__file__).parents[2] / "handbook" / "data.txt").read_text()
""",
    "handbook/data.txt": "data\n",
    "handbook/many/a.txt": "",
    "handbook/apart.txt": "apart",
    "handbook/part/page.md": "(label)=\n# Title\n\nProse.\n",
    "handbook/touched.txt": "old",
    "_build/html/page.html": '<link rel="stylesheet" href="_static/page.css">',
    "_build/html/other.html": "<p>other",
    "_build/html/_static/page.css": "p { color: red }",
    "tests/tiny.py": """\
import os
from pathlib import Path

HTML = Path(__file__).parents[1] / "_build" / "html"
BOOK = Path(__file__).parents[1] / "handbook"
DO = os.environ.get("DO", "")
""",
    "tests/conftest.py": """\
import os
import pytest
from tiny import BOOK

pytest_plugins = ["ledger.plugin"]

@pytest.fixture
def three():
    return 1 + 2

@pytest.fixture(scope="session")
def names():
    return sorted(os.listdir(BOOK / "many"))

def pytest_runtest_setup(item):
    item.started = 1
""",
    "tests/test_kit.py": "from ddplab import sums\n\ndef test_kit():\n    assert sums.used() == 2\n",
    "tests/test_fixture.py": "def test_fixture(three):\n    assert three == 3\n",
    "tests/test_listed.py": "def test_listed(names):\n    assert names\n",
    "tests/test_listed_too.py": "def test_listed_too(names):\n    assert names\n",
    "tests/test_data.py": "from ddplab import sums\n\ndef test_data():\n    assert sums.data()\n",
    "tests/test_data_too.py": "from ddplab import sums\n\ndef test_data_too():\n    assert sums.data()\n",
    "tests/test_help.py": """\
import pytest
from ddplab.cli import main

def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["grade", "--help"])
""",
    "tests/test_program.py": """\
import subprocess, sys

def test_program(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)  # which is not our git
    subprocess.run([sys.executable, "-m", "ddplab", "grade", "--help"], check=True)
""",
    "tests/test_git.py": """\
import subprocess

def test_git():
    assert subprocess.check_output(["git", "ls-files", "--", "handbook/many"])
""",
    "tests/test_titles.py": """\
from ddplab.grading.exercises import section

def test_titles():
    assert section("label").startswith("“")
""",
    "tests/test_page.py": """\
import re
from tiny import HTML

def test_page():
    for style in re.findall('href="(.*?)"', (HTML / "page.html").read_text()):
        assert (HTML / style).read_bytes()
""",
    "tests/test_other.py": """\
from tiny import HTML

def test_other():
    assert (HTML / "other.html").read_text()
""",
    "tests/test_package.py": """\
def read():
    import pypdf
    return pypdf.PdfReader("a.pdf")

def test_package():
    assert callable(read)
""",
    "tests/test_torch.py": """\
def step():
    import torch
    return torch.ones(1)

def test_torch():
    assert callable(step)
""",
    "tests/test_core.py": """\
import pytest
from tiny import DO

@pytest.mark.core
def test_core():
    assert DO != "contradict"

def test_beside():
    pass
""",
    "tests/test_apart.py": """\
import pytest
from tiny import BOOK

@pytest.mark.apart
def test_apart():
    assert (BOOK / "apart.txt").read_text()

def test_near():
    pass
""",
    "tests/test_outcomes.py": """\
import pytest
from tiny import BOOK, DO

THREE = 1 + 2

def test_passes():
    assert THREE

def test_touches():
    assert THREE and (BOOK / "touched.txt").read_text()
    if "touch" in DO:
        (BOOK / "touched.txt").write_text("new")

def test_fails():
    assert THREE and "fail" not in DO

def test_skips():
    if THREE and "skip" in DO:
        pytest.skip("there is no tool")
""",
}
ALL = {name for text in FILES.values() for name in re.findall(r"def (test_\w+)", text)}
CORE = {"test_core"}


class Ran(NamedTuple):
    """A run of pytest in the small project."""

    tests: set[str]
    output: str
    code: int


class Project:
    """A folder with a kit, a book, tests, and the plugin; the tests have passed, and the ledger says so."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.passes = folder, folder / "tests" / "ledger" / "passes"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.env = inherited | FIXED | {"PYTHONPATH": str(folder / "gallery"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for name, no in (("gallery/ddplab", ["__pycache__"]), ("tests/ledger", ["__pycache__", "passes", "test_*"])):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*no))
        for name, text in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        pins = (ROOT / "constraints.txt").read_text()  # here, a reader's torch is at home
        (folder / "constraints.txt").write_text(re.sub(r"(?m)^torch==.*", f"torch=={TORCH}", pins))
        self.git("init", "-q")
        self.first = self.commit("zero", self.git("write-tree"))
        self.git("add", "-f", ".")
        self.base = self.pytest("anew", "-n", "2")
        self.git("add", "-A")
        self.tree = self.git("write-tree")

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = self.env | more
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    def git(self, *arguments: str) -> str:
        done = self.run("git", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, message: str, tree: str = "HEAD^{tree}", *arguments: str) -> str:
        """Commit a tree, whatever stands in the folder."""
        name = self.git("commit-tree", tree, "-m", message, *arguments)
        self.git("update-ref", "HEAD", name)
        return name

    def undo(self) -> None:
        """Put all back as it was when the tests had passed."""
        self.git("update-ref", "HEAD", self.first)
        self.git("read-tree", "--reset", "-u", self.tree)
        self.git("clean", "-fdq")

    def pytest(self, mode: str, *arguments: str, **more: str) -> Ran:
        done = self.run(sys.executable, "-m", "pytest", *QUICK, f"--ledger={mode}", "-rA", *arguments, **more)
        ran = re.findall(r"^(?:PASSED|FAILED|ERROR) \S+::(\S+)", done.stdout, re.M)
        return Ran(set(ran), done.stdout + done.stderr, done.returncode)

    def age(self) -> str:
        return self.run(sys.executable, "tests/ledger/age.py").stdout.strip()

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace what a pattern finds in a file."""
        text, count = re.subn(old, new, (self.folder / name).read_text(), count=1)
        assert count == 1, f"{old} is not in {name}"
        (self.folder / name).write_text(text)

    def kept(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.passes.rglob("*.json")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(made):
    yield made
    made.undo()


def test_the_first_run_runs_all_and_the_next_only_the_core(project):
    assert (project.base.tests, project.base.code) == (ALL, 0), project.base.output
    before = project.kept()
    ran = project.pytest("changed", "-n", "2")
    assert (ran.tests, ran.code) == (CORE, 0), ran.output
    assert "0 tests changed since their last pass, 1 of the core, and 0 of the rest" in ran.output
    assert f"{len(ALL) - 1} stand as passed" in ran.output
    ran = project.pytest("changed", "tests/test_kit.py")
    assert (ran.tests, ran.code) == (set(), 0), ran.output
    assert project.kept() == before


@pytest.mark.parametrize(
    ("file", "old", "new", "tests"),
    [
        ("gallery/ddplab/sums.py", r"1 \+ 1", "2", "kit program"),  # a program is taken to use all of the kit
        ("gallery/ddplab/sums.py", r"1 \+ 2", "3", "program"),
        ("gallery/ddplab/cli/grade.py", "Say what the command", "What it", "help program"),
        ("tests/conftest.py", r"1 \+ 2", "3", "fixture"),
        ("tests/conftest.py", "started = 1", "started = 10", "*"),
        ("tests/test_core.py", "pass", "return", "beside"),
        ("_build/html/_static/page.css", "red", "blue", "page"),
        ("_build/html/other.html", "other", "another", "other"),
        ("handbook/data.txt", "data", "more data", "data data_too"),  # which one test read, and a cache kept
        ("handbook/apart.txt", "apart", "far apart", "apart"),
        ("handbook/many/b.txt", "", "new", "listed listed_too git titles"),
        ("gallery/ddplab/.tool_cache/kept", "", "new", ""),
        ("handbook/part/page.md", "Prose", "More", ""),
        ("handbook/part/page.md", "Title", "Name", "titles"),
        ("constraints.txt", r"pypdf==\S+", "pypdf==0", "package"),
        ("tests/ledger/passes/test_kit.json", "(?s).{9}$", "", "kit"),
        ("tests/ledger/passes/test_kit.json", '"test_kit": "', '"test_kit": "x ', "kit"),
    ],
)
def test_exactly_what_depends_on_a_change_runs(project, file, old, new, tests):
    (project.folder / file).parent.mkdir(exist_ok=True)
    (project.folder / file).touch()
    project.edit(file, old, new)
    ran = project.pytest("changed")
    expected = ALL if tests == "*" else CORE | {f"test_{name}" for name in tests.split()}
    assert (ran.tests, ran.code) == (expected, 0), ran.output


@pytest.fixture
def other_torch(tmp_path):
    """What PYTHONPATH needs for another version of the same build."""
    about = tmp_path / "torch-9.9.9.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9{PLUS}{BUILD}\n")
    return str(tmp_path)


def test_what_uses_torch_runs_when_another_version_is_pinned_and_installed(project, other_torch):
    project.edit("constraints.txt", "(?m)^torch==.*", "torch==9.9.9")
    ran = project.pytest("changed", PYTHONPATH=f"{project.folder / 'gallery'}:{other_torch}")
    assert (ran.tests, ran.code) == (CORE | {"test_torch", "test_help", "test_program", "test_titles"}, 0), ran.output


@pytest.mark.parametrize(
    ("old", "new"),
    [('"python": "3', '"python": "2'), ('"torch": "[^"]*', '"torch": "9.9.9+cu99'), ("(?s).*", "{"), ("", "")],
    ids=["another Python", "another build of torch", "damaged", "a version that is not pinned"],
)
def test_on_another_machine_the_core_and_the_sample_run_and_nothing_is_written(project, other_torch, old, new):
    project.edit("tests/ledger/passes/ledger.json", old, new)
    before, gallery = project.kept(), str(project.folder / "gallery")
    ran = project.pytest("changed", PYTHONPATH=gallery if old else f"{gallery}:{other_torch}", DO="contradict")
    assert (ran.tests, ran.code) == (CORE, 1), ran.output
    assert f"{len(ALL) - 1} stay unproven on this machine. To run them, too: make test-all" in ran.output
    assert "when it passed" not in ran.output  # a failure here says nothing about a pass there
    assert project.kept() == before


def test_a_pass_that_did_not_hold_fails_the_run_and_drops_those_of_its_file(project):
    before = project.kept()
    ran = project.pytest("changed", DO="contradict")
    assert (ran.tests, ran.code) == (CORE, 1), ran.output
    assert "tests/test_core.py::test_core failed, with all as it was when it passed" in ran.output
    assert before.pop("test_core.json")
    assert project.kept() == before
    assert project.pytest("changed").tests == {"test_core", "test_beside"}


def test_what_failed_was_skipped_or_read_a_file_that_was_written_meanwhile_has_no_pass(project):
    project.edit("tests/test_outcomes.py", r"1 \+ 2", "3")
    ran = project.pytest("changed", DO="fail skip touch")
    assert (ran.tests, ran.code) == (CORE | {"test_fails", "test_passes", "test_touches"}, 1), ran.output
    assert "there is no tool" in ran.output
    assert "when it passed" not in ran.output
    ran = project.pytest("changed")
    assert (ran.tests, ran.code) == (CORE | {"test_fails", "test_skips", "test_touches"}, 0), ran.output


def test_a_whole_run_is_one_also_if_a_test_fails_which_then_has_no_pass(project):
    before = project.kept()
    project.edit("tests/ledger/passes/ledger.json", '"python": "3', '"python": "2')
    commit = project.commit("one")
    ran = project.pytest("anew", DO="fail")
    assert (ran.tests, ran.code) == (ALL, 1), ran.output
    after = project.kept()
    assert after["ledger.json"] == before["ledger.json"].replace(project.first, commit)
    assert "test_fails" in before["test_outcomes.json"]
    assert "test_fails" not in after["test_outcomes.json"]


def test_a_whole_run_that_cannot_begin_leaves_the_ledger(project):
    before = project.kept()
    (project.folder / "tests" / "test_broken.py").write_text("import nothing_of_this_name\n")
    ran = project.pytest("anew")
    assert (ran.tests, ran.code, project.kept()) == (set(), 2, before), ran.output


@pytest.mark.parametrize("processes", ["0", "2"])
def test_an_id_that_names_a_folder_of_this_machine_is_refused(project, processes):
    before, mark = project.kept(), f"@pytest.mark.parametrize('path', ['{project.folder}/a'])"
    (project.folder / "tests" / "test_place.py").write_text(f"import pytest\n\n{mark}\ndef test_place(path): pass\n")
    ran = project.pytest("changed", "-n", processes)
    assert ran.code
    assert project.kept() == before
    assert re.search(
        r"test_place.py::test_place\[.*/a\] names a folder of this machine: give its parameters", ran.output
    )


def test_the_commit_chooses_a_sample_of_what_stands(project):
    many = "import pytest\n\n@pytest.mark.parametrize('n', range(200))\ndef test_many(n):\n    pass\n"
    (project.folder / "tests" / "test_many.py").write_text(many)
    assert len(project.pytest("changed").tests) == 200 + len(CORE)
    first, again = (project.pytest("changed").tests for _ in range(2))
    project.commit("one")
    other = project.pytest("changed").tests
    assert first == again != other
    assert all(1 <= len(tests - CORE) <= 15 for tests in (first, other))


def test_all_run_when_the_ledger_is_of_another_machine_or_old(project):
    about, whole = "tests/ledger/passes/ledger.json", project.first
    assert project.age() == "test"
    for old, new in (('"python": "3', '"python": "2'), (whole, "f" * 40), ("(?s).*", "{")):
        project.edit(about, old, new)
        assert project.age() == "test-all"
        project.undo()
    for landing in range(1, 7):
        project.edit(about, r"\n*$", "\n" * landing)
        project.git("add", about)
        project.commit(f"landing {landing}", project.git("write-tree"), "-p", "HEAD")
        if landing > 4:
            assert project.age() == ("test" if landing == 5 else "test-all")
    (project.folder / about).unlink()
    assert project.age() == "test-all"
