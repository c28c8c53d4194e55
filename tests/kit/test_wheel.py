"""The wheel, installed into an environment that has nothing else, and the command ``ddplab recipe``."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from refusal import refused

from ddplab import cli
from ledger import watch
from tools import PATIENCE_S, ROOT

EXERCISES = ROOT / "gallery" / "exercises"
SOLUTION = "{exercises}/sync-gradients/solution.py"  # an id of a test holds no folder of this machine
# What starts fast and everywhere imports none of these.
HEAVY = {"torch", "numpy", "matplotlib", "cloudpickle", "multiprocessing", "asyncio", "socket", "subprocess"}
NO_WINDOWS = """
import os, signal, sys

class NotOnWindows:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "readline", "curses"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotOnWindows())
for name in "SIGKILL SIGHUP SIGQUIT SIGPIPE SIGALRM SIGUSR1 SIGUSR2 SIGCHLD SIGSTOP SIGCONT".split():
    delattr(signal, name)
for name in "fork forkpty killpg setsid getpgid getuid uname ttyname sched_getaffinity wait4 mkfifo".split():
    delattr(os, name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    watch.note({"pyproject.toml", "README.md", "LICENSE", "LICENSE-TEXT"})  # beside what git lists of the gallery
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_S)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The Python of an environment with this wheel, and not even what it depends on: all that is light."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, timeout=PATIENCE_S)
    return python


def run(python: Path, code: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [python, "-c", code],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
    )


def test_the_wheel_holds_the_kit_the_recipes_and_the_exercises(wheel):
    folders = [f"gallery/{room}" for room in ("ddplab", "recipes", "exercises")]
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    there = {name for name in names if name and (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if not name.endswith("/")}
    kit = {name for name in inside if ".dist-info/" not in name}
    expected = {name.replace("gallery/", "" if "/ddplab/" in name else "ddplab/_data/", 1) for name in there}
    assert kit == expected
    about = {name.partition(".dist-info/")[2] for name in inside - kit}
    assert about >= {"METADATA", "entry_points.txt", "licenses/LICENSE", "licenses/LICENSE-TEXT"}


COMMANDS = {
    "--help": "tune-buckets",
    "diagnose {exercises}/mend-nan/log.txt": "gloo-timeout",
    "simulate": "one step:",
    "recipe": "hello_ranks.py",
    "grade": "sync-gradients",
    "grade sync-gradients": "Start from a copy",
    "edition list --editions .": "no edition",
}


@pytest.mark.parametrize("system", ["here", "windows"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_needs_no_ranks_runs_from_the_wheel_alone(command, system, installed, tmp_path):
    code = f"""
import sys
from ddplab import cli
try:
    cli.main({command.format(exercises=EXERCISES).split()!r})
except SystemExit as end:
    assert end.code == 0
print("imported", *sys.modules, file=sys.stderr)
"""
    answer = run(installed, (NO_WINDOWS if system == "windows" else "") + code, tmp_path)
    assert COMMANDS[command] in answer.stdout, answer.stderr
    imported = set(answer.stderr.split("imported")[-1].split())
    names = {name.removeprefix("ddplab.cli.").replace("_", "-") for name in imported if name.startswith("ddplab.cli.")}
    assert names & set(cli.COMMANDS) <= {command.split()[0]}, "only the command that was asked for"
    if command.split()[0] in ("--help", "diagnose", "simulate", "recipe"):
        assert not HEAVY & imported


@pytest.mark.parametrize(
    ("system", "command", "why"),
    [
        (
            "here",
            f"grade sync-gradients {SOLUTION}",
            "grade needs torch: pip install 'ddplab[torch]'",
        ),
        ("here", "tune-buckets train:build", "tune-buckets needs torch: pip install 'ddplab[torch]'"),
        (
            "windows",
            f"grade sync-gradients {SOLUTION}",
            "grade runs ranks, which needs Linux or macOS",
        ),
    ],
)
def test_what_needs_more_says_so_in_one_line(system, command, why, installed, tmp_path):
    code = f"import sys\nfrom ddplab import cli\nsys.exit(cli.main({command.format(exercises=EXERCISES).split()!r}))"
    answer = run(installed, (NO_WINDOWS if system == "windows" else "") + code, tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"ddplab: {why}")
    assert answer.stderr.count("\n") == 1


def test_a_recipe_brings_what_it_needs(installed, tmp_path):
    """Written by the wheel, run by a Python that has torch and not the kit."""
    code = "from ddplab import cli; cli.main(['recipe', 'train.sbatch', '--to', 'job'])"
    assert run(installed, code, tmp_path).returncode == 0
    written = {str(path.relative_to(tmp_path / "job")) for path in (tmp_path / "job").rglob("*") if path.is_file()}
    assert written == {"train.sbatch", "train.py", "hello_ranks.py", "checkpoint.py", "data/collectives.txt"}
    hidden = "import runpy, sys; sys.modules['ddplab'] = None; sys.path.insert(0, '.'); sys.argv[1:] = ['--steps', '1']"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; runpy.run_path('train.py', run_name='__main__')"],
        cwd=tmp_path / "job",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "job" / "runs").rglob("*.pt")), done.stdout


def test_recipe_lists_what_there_is(capsys):
    assert cli.main(["recipe"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {path.name for path in (ROOT / "gallery" / "recipes").iterdir() if path.is_file()}
    assert lines["train.py"].startswith("Train a model with DistributedDataParallel")
    assert cli.main(["recipe", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert {one["name"]: one["title"] for one in listed} == lines


def test_recipe_overwrites_nothing_unless_it_is_told_to(tmp_path, capsys):
    train = tmp_path / "train.py"
    train.write_text("mine\n")
    assert str(train) in refused(capsys, "recipe", "train", "--to", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"], "nothing else is written"
    assert train.read_text() == "mine\n"
    assert cli.main(["recipe", "train", "--to", str(tmp_path), "--force"]) == 0
    assert train.read_text() != "mine\n"
    capsys.readouterr()
    assert cli.main(["recipe", "train", "--to", str(tmp_path), "--json"]) == 0, "what is the same is no conflict"
    assert json.loads(capsys.readouterr().out)["written"] == []


def test_recipe_refuses_in_one_line(tmp_path, capsys):
    assert "there is no recipe 'trains'; there are" in refused(capsys, "recipe", "trains")
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refused(capsys, "recipe", "train", "--to", tmp_path / "file")
