"""The command `ddplab grade`: what it says, what it returns, and files that misbehave."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from graded import first_failure, mentions, message_to_a_hang

from ddplab import cli
from ddplab.cli.terminal import Terminal
from ddplab.errors import BadInput
from ddplab.grading import exercises
from ddplab.grading.exercises import EXERCISES, MAX_FILE_BYTES, exercise_names, section
from tools import PATIENCE_S, ended, wait_until

NAME = "sync-gradients"
PATIENT = ["--timeout-s", str(PATIENCE_S)]
ONLY_SUM = """\
import torch.distributed as dist

def sync_gradients(module):
    print("\\x1b[2J here")
    for p in module.parameters():
        dist.all_reduce(p.grad)
"""


def run(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "ddplab", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, **options)


def test_lists_the_exercises(capsys):
    assert cli.main(["grade"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == exercise_names()
    assert cli.main(["grade", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["exercises"]
    assert [e["name"] for e in listed] == exercise_names()
    assert {e["level"] for e in listed} == {"core", "deep"}
    assert all(5 <= e["minutes"] <= 60 for e in listed)


def test_an_exercise_without_its_level_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(exercises, "EXERCISES", tmp_path)
    shutil.copytree(EXERCISES / NAME, tmp_path / NAME)
    grader = tmp_path / NAME / "grader.py"
    grader.write_text(re.sub(r"\n:Level: .*\n", "", grader.read_text()))
    with pytest.raises(BadInput, match=r"grader.py: the docstring ends with .* its last line must be such as"):
        exercises.find_exercise(NAME)


@pytest.mark.parametrize("name", exercise_names())
def test_shows_the_task_and_its_starter(name, capsys):
    assert cli.main(["grade", name]) == 0
    text = capsys.readouterr().out
    assert f"cp {EXERCISES / name / 'starter.py'} my_file.py" in text


BAD = {
    "no exercise": (
        ["sync", "x.py"],
        None,
        "no exercise is called 'sync'; choose one of bucketed-overlap, choose-buckets",
    ),
    "no file": ([NAME, "absent.py"], None, "absent.py does not exist; start from a copy of"),
    "a folder": ([NAME, "."], None, "is a directory; give the Python file"),
    "a pipe": ([NAME, "pipe"], None, "pipe is not a regular file"),
    "a name that is none": ([NAME, "a\0b"], None, "cannot be read"),
    "binary": ([NAME, "x.py"], b"\x7fELF\x02\x01\x01\0\0\0", "source code string cannot contain null bytes"),
    "latin-1": ([NAME, "x.py"], "# é".encode("latin-1"), "x.py: invalid or missing encoding declaration"),
    "syntax": ([NAME, "x.py"], b"import os\ndef sync_gradients(:\n    pass\n", "x.py:2: invalid syntax: 'def sync_"),
    "too deep": ([NAME, "x.py"], b"(" * 5000 + b")" * 5000, "x.py:1: too many nested parentheses"),
    "empty": ([NAME, "x.py"], b"", "x.py does not define 'sync_gradients'; start from a copy of"),
    "another name": ([NAME, "x.py"], b"def sync_gradient(m): ...", "'sync_gradients', but 'sync_gradient'; start"),
    "too long": ([NAME, "x.py"], b"#" * (MAX_FILE_BYTES + 1), "x.py is longer than 1 MiB"),
    "no time": ([NAME, "x.py", "--timeout-s", "0"], b"", "--timeout-s: '0' is not a positive number of seconds"),
    "unknown option": (["--fast"], None, "unrecognized arguments: --fast; see ddplab"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line(case, tmp_path, monkeypatch, capsys):
    arguments, content, output = BAD[case]
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    if content is not None:
        Path("x.py").write_bytes(content)
    try:
        code = cli.main(["grade", *arguments])
    except SystemExit as end:  # from argparse
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert output in err


def test_bad_input_is_one_object_with_json(capsys):
    assert cli.main(["grade", "nothing", "--json"]) == 2
    assert "no exercise is called 'nothing'" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.core
def test_a_right_file_ends_with_0(capsys):
    solution = EXERCISES / NAME / "solution.py"
    assert cli.main(["grade", NAME, str(solution), *PATIENT]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert f"All 6 checks passed: {solution} solves the exercise." in output.out
    assert "\033" not in output.out


@pytest.mark.core
def test_a_wrong_file_ends_with_1_and_says_why(tmp_path):
    (tmp_path / "mine.py").write_text(ONLY_SUM)
    done = run("grade", NAME, "mine.py", *PATIENT, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[1:3] == ["+ The file can be imported (1 rank)", "x Two ranks end with the mean (2 ranks)"]
    assert "holds the sum over the ranks, not the mean" in " ".join(done.stdout.split())
    assert "- Three ranks end with the mean of three (not run)" in lines
    assert "    rank 1 ? ?[2J here" in lines, "what ranks print is shown, without what a terminal would obey"
    assert lines[-1] == "1 of 6 checks passed; fix what failed and run it again."


def test_json_holds_every_check(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(ONLY_SUM)
    assert cli.main(["grade", NAME, str(path), "--json", *PATIENT]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["exercise"], result["file"], result["passed"]) == (NAME, str(path), False)
    assert [check["status"] for check in result["checks"]] == ["passed", "failed", *["not run"] * 4]
    failed = result["checks"][1]
    assert failed["ranks"] == 2
    assert "it was never divided by 2" in failed["message"]
    assert "handbook/understand/idea.md" in failed["read"]


def test_color_is_for_terminals_that_want_it(monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert not Terminal().color
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert Terminal().color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Terminal().color


def test_a_reader_that_leaves_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [Path(sys.executable).with_name("ddplab"), "grade"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_stopped_by_a_signal_it_takes_its_processes_along(tmp_path):
    """Two graders side by side: one is stopped as Ctrl-C does, the other as `kill` does."""
    text = (
        "import os, subprocess, time\n"
        "def sync_gradients(module): ...\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open('pids.tmp', 'w').write(f'{os.getpid()} {os.getppid()} {child.pid}')\n"
        "os.rename('pids.tmp', 'pids')\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "ddplab", "grade", NAME, "mine.py", *PATIENT]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        graders = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            folder = tmp_path / number.name
            folder.mkdir()
            (folder / "mine.py").write_text(text)
            graders[number] = folder, stack.enter_context(subprocess.Popen(command, cwd=folder, **pipes))
            stack.callback(graders[number][1].kill)
        for number, (folder, grader) in graders.items():
            assert wait_until((folder / "pids").exists)
            grader.send_signal(number)
            _, output = grader.communicate(timeout=PATIENCE_S)
            assert (grader.returncode, output) == (128 + number, "")
            assert all(ended(int(pid)) for pid in (folder / "pids").read_text().split())


# name: (the file, words of the message)
MISBEHAVES = {
    "leaves at import": (
        "def sync_gradients(m): ...\nimport sys\nsys.exit()",
        "raised SystemExit at mine.py:3|__main__",
    ),
    "raises at import": ("import absent\ndef sync_gradients(m): ...", "No module named 'absent' at mine.py:1"),
    "defines it nowhere": ("if 0:\n    def sync_gradients(m): ...", "has no attribute 'sync_gradients'"),
    "no function": ("sync_gradients = 3", "TypeError: 'int' object is not callable"),
    "takes nothing": ("def sync_gradients(): ...", "takes 0 positional arguments but 1 was given"),
    "ends the process": ("import os\ndef sync_gradients(m): os._exit(0)", "exited with code 0 in the middle"),
    "crashes": ("import ctypes\ndef sync_gradients(m): ctypes.string_at(0)", "was killed by SIGSEGV in the middle"),
    "prints forever": ("def sync_gradients(m):\n    while True: print('x' * 9999)", "a rank may print 16 MiB"),
    "an error without text": (
        "class E(Exception):\n    def __str__(self): raise E\ndef sync_gradients(m): raise E",
        "raised E at mine.py:3",
    ),
}


@pytest.mark.parametrize("name", MISBEHAVES)
def test_a_file_that_misbehaves_gets_an_explanation(name, tmp_path):
    text, words = MISBEHAVES[name]
    mentions(first_failure(NAME, tmp_path, text), words)


def test_a_file_that_hangs_at_import_gets_an_explanation(tmp_path, monkeypatch):
    hangs = tmp_path / "hangs"
    text = f"while open({str(hangs)!r}, 'w'): pass\ndef sync_gradients(m): ..."
    message = message_to_a_hang(NAME, tmp_path, text, hangs.exists, monkeypatch)
    mentions(message, f"still ran after {PATIENCE_S:g} s|mine.py:1, in `<module>`")


def test_what_a_file_starts_does_not_outlive_the_grader(tmp_path):
    first_failure(
        NAME,
        tmp_path,
        "import subprocess\n"
        "def sync_gradients(m): ...\n"
        "for detached in (False, True):\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=detached)\n"
        f"    open({str(tmp_path / 'pids')!r}, 'a').write(f'{{child.pid}}\\n')\n",
    )
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 6, "one import and two ranks, each twice"
    assert all(map(ended, pids))


def test_every_section_that_a_message_names_exists():
    files = [*EXERCISES.glob("*/*.py"), *(EXERCISES.parent / "ddplab" / "grading").glob("*.py")]
    chapters = "idea|internals|from-scratch|museum|fault|setup|debugging|performance|checkpointing"  # how labels begin
    labels = {label for file in files for label in re.findall(rf'"((?:{chapters})-[a-z0-9-]+)"', file.read_text())}
    assert len(labels) > 5
    assert not [label for label in labels if not section(label).startswith("“")]


def test_what_is_printed_on_a_page_fits():
    for path in (path for name in ("starter", "solution") for path in EXERCISES.glob(f"*/{name}.py")):
        assert max(map(len, path.read_text().splitlines())) <= 95, path
