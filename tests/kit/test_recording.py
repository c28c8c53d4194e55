"""Recording in slices: what is run first, what ends in time, what a hang, a crash or Ctrl-C leaves.

Each test records a small house of its own, with the real command in a process of its own.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import psutil
import pytest

from ddplab import launch
from ddplab.recording import archive, plan
from ddplab.recording import machine as facts
from ddplab.recording.diff import compare
from ddplab.recording.edition_folder import Edition
from ddplab.recording.items import Item, results_of
from ddplab.recording.keys import names_a_clock
from ddplab.recording.script import lab_id
from ddplab.runtime import evidence, gpus
from tools import PATIENCE_S, ROOT, ended, wait_until

LAB = '''"""
{name}
===

:Level: core, 1 minutes
{proves}"""
{before}
# %%
from ddplab import record

print("{name} printed")
{code}
record(unit="ranks", count=2)
'''
ON_RANKS = """
import matplotlib.pyplot as plt
from ddplab import launch

def worker():
    import torch.distributed as dist

    print("rank", dist.get_rank())

launch(worker, 2)
# %%
plt.plot([1, 2])
"""
CLAIM = """import os, time
from proof import proves


@proves("{claim}")
def test_it():
    {code}


@proves("{claim}-too")
@proves("{claim}-as-well")
def test_more():
    pass
"""
RECORD = """
import sys, time
from pathlib import Path
from ddplab.recording import __main__ as recording, child, recorder

receive, events = child.Child.receive, [Path(sys.argv.pop(1))]

def until_the_event(self, until_s=float("inf")):
    while True:
        try:
            return receive(self, min(until_s, time.monotonic() + 0.1))
        except TimeoutError:
            if events and events[0].is_file():
                events.clear()
                raise
            if time.monotonic() >= until_s:
                raise

recording.ROOT = Path.cwd()
recording.LAB_LIMIT_S = recording.TEST_LIMIT_S = recorder._GRACE_S = 900
child.Child.receive = until_the_event
sys.exit(recording._program())
"""


class House:
    """Labs, claims, and the command that records them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tests/claims").mkdir(parents=True)
        (root / "gallery/short").mkdir(parents=True)
        for name in ("conftest.py", "proof.py"):
            shutil.copy(ROOT / "tests/claims" / name, root / "tests/claims")
        (root / "pytest.ini").write_text("[pytest]\nmarkers = proves(id): a claim\n")
        (root / "record.py").write_text(RECORD)

    def lab(self, name: str, before: str = "", code: str = "", proves: str = "") -> None:
        text = LAB.format(name=name, before=before, code=code, proves=proves and f":Proves: {proves}\n")
        (self.root / f"gallery/short/plot_{name}.py").write_text(text)

    def claim(self, claim: str, code: str = "pass") -> None:
        (self.root / f"tests/claims/test_{claim}.py").write_text(CLAIM.format(claim=claim, code=code))

    def start(self, name: str, *options: str, time_is_up: str = "") -> subprocess.Popen:
        command = [sys.executable, "record.py", time_is_up, name, "--into", "editions", *options]
        return subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def record(self, name: str, *options: str, time_is_up: str = "") -> tuple[int, str]:
        """Its exit status and words; a file that makes the recorder find that the time is up, however early."""
        process = self.start(name, *options, time_is_up=time_is_up)
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        return process.returncode, said

    def edition(self, name: str) -> Edition:
        return Edition(self.root / "editions" / name)


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def half_written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".json", ".svg")]


# -- in slices --------------------------------------------------------------------------------------


def stop_during(house: House, name: str, kind: str, sign: signal.Signals) -> None:
    """Record until the lab or test of this kind marks that it runs; stop the recorder then."""
    process = house.start(name)
    try:
        pid = wait_until(lambda: (house.root / f"{kind}.pid").exists() and (house.root / f"{kind}.pid").read_text())
        processes = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sign)
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "stopped; what is recorded is kept; run the same command to continue" in said
    assert int(pid) in [one.pid for one in processes]
    assert all(ended(one.pid) for one in processes)
    assert half_written(house.root / "editions") == []


def wait_once(root: Path, kind: str) -> str:
    """Code that, when it is run for the first time, says so and waits to be stopped."""
    marker = str(root / f"{kind}.pid")
    return (
        f"import os, time; os.path.exists({marker!r}) or (open({marker!r}, 'x').write(str(os.getpid())),"
        " time.sleep(4321))"
    )


def test_an_edition_in_three_slices_equals_one_recorded_in_one_go(house):
    """Stopped in a lab by SIGTERM, and in a test of a claim by Ctrl-C."""
    house.lab("one", code=ON_RANKS)
    house.lab("two")
    house.lab("three", before=wait_once(house.root, "lab"))
    for claim in ("sun", "moon"):
        house.claim(claim, code=wait_once(house.root, "claim") if claim == "sun" else "pass")
    stop_during(house, "slices", "lab", signal.SIGTERM)
    assert house.edition("slices").labs().keys() == {"one"}, "three comes before two"
    assert (house.edition("slices").folder / "manifest.json").exists(), "a part can be carried, too"
    stop_during(house, "slices", "claim", signal.SIGINT)
    assert house.edition("slices").labs().keys() == {"one", "two", "three"}
    assert "sun" not in house.edition("slices").results()
    status, said = house.record("slices")
    assert status == 0, said
    assert "0 of 3 labs" in said
    assert house.record("whole")[0] == 0
    slices, whole = house.edition("slices"), house.edition("whole")
    found = compare(slices, whole)
    assert (found.results, found.outputs, found.other_code, found.values) == ([], [], [], [])
    assert (found.same_results, found.same_values) == (3 + 6, 3)
    assert all(fact.a == fact.b for fact in found.facts)
    for name, kept in slices.labs().items():
        other = whole.labs()[name]
        assert kept["key"] == other["key"]
        assert [block["code"] for block in kept["blocks"]] == [block["code"] for block in other["blocks"]]
    assert slices.labs()["one"]["blocks"][0]["printed"] == ["one printed", "rank 0 │ rank 0", "rank 1 │ rank 1"]
    keys = [{claim: result["key"] for claim, result in one.results().items()} for one in (slices, whole)]
    assert keys[0] == keys[1]
    names = [sorted(str(path.relative_to(one.folder)) for path in one.folder.rglob("*")) for one in (slices, whole)]
    assert names[0] == names[1]


def test_a_lab_or_a_test_that_hangs_or_crashes_has_failed_and_the_others_go_on(house):
    # The recorder's alarm, which comes early; and again, since what is raised in a destructor is lost.
    alarm = "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01, 5)"
    deaf = f"signal.signal(signal.SIGALRM, lambda *_: open({str(house.root / 'deaf')!r}, 'w').close())"
    house.lab("a_hangs", before=f"print('before'); {alarm}; time.sleep(4321)")
    house.lab("a_is_deaf", before=f"import signal; {deaf}; {alarm}; time.sleep(4321)")
    house.lab("b_crashes", before="import os; os.kill(os.getpid(), 11)")
    house.lab("c_passes")
    house.claim("hangs", code=f"{alarm}; time.sleep(4321)")
    house.claim("crashes", code="os.kill(os.getpid(), 11)")
    status, said = house.record("bad", time_is_up="deaf")
    assert status == 1, said
    labs, results = house.edition("bad").labs(), house.edition("bad").results()
    assert labs["a-hangs"]["failed"].splitlines()[-1].endswith("OverTimeError: still ran after 900 s")
    assert labs["a-hangs"]["blocks"][0]["printed"] == ["before"]
    assert labs["a-is-deaf"]["failed"].startswith("still ran after 900 s, and did not end when it was interrupted")
    assert labs["b-crashes"]["failed"] == "the process that ran it ended: SIGSEGV"
    assert "failed" not in labs["c-passes"]
    outcomes = {claim: result["outcome"] for claim, result in results.items()}
    assert len(outcomes) == 6
    assert {claim for claim, outcome in outcomes.items() if outcome == "failed"} == {"hangs", "crashes"}
    assert results["crashes"]["why"] == "the process that ran it ended: SIGSEGV"
    assert results["hangs"]["why"] == "ddplab.recording.child.OverTimeError: still ran after 900 s"
    assert "time.sleep(4321)" in said, "the traceback"


def test_a_process_that_a_lab_has_lost_is_buried(house):
    """Its parent ends first, so it becomes the recorder's; a namespace waits for its burial, and a lab for that."""
    lost = """
import os, subprocess, sys, time
say = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0).pid, flush=True)"
parent = subprocess.Popen([sys.executable, "-c", say], stdin=-1, stdout=-1, text=True, start_new_session=True)
lost = int(parent.stdout.readline())
parent.wait()
parent.stdin.close()
end = time.monotonic() + 900
while os.path.exists(f"/proc/{lost}") and time.monotonic() < end:
    time.sleep(0.05)
assert not os.path.exists(f"/proc/{lost}")
"""
    house.lab("one", code=lost)
    assert house.record("gpu") == (0, ANY)
    assert "failed" not in house.edition("gpu").lab("one")


def test_what_does_not_fit_into_the_budget_is_not_started_and_what_does_is(house):
    for name, seconds in (("long", 1000.0), ("short", 0.1)):
        house.lab(name)
        house.edition("other").write_lab(name, {**RECORDED, "seconds": seconds}, {})
    house.edition("other").write_manifest()
    house.claim("sun")
    status, said = house.record("slice", "--plan")
    assert "2 of 2 labs and 2 tests of claims to record on " in said
    assert "estimate: 17 min (from the seconds of other; claims " in said
    assert not house.edition("slice").folder.exists(), "a plan runs nothing"
    status, said = house.record("slice", "--budget", "140")
    assert status == 3, said
    assert house.edition("slice").labs().keys() == {"short"}
    assert "the budget is used up; 1 lab and 2 tests of claims left" in said
    assert "long takes about 1000 s, more than a budget of 140 s: give a larger budget" in said


def test_what_runs_when_the_budget_ends_is_left_for_the_next_call(house):
    house.lab("one")
    house.lab("waits", before=wait_once(house.root, "lab"))
    for name in ("one", "waits"):
        house.edition("other").write_lab(name, {**RECORDED, "seconds": 0.1}, {})
    house.edition("other").write_manifest()
    status, said = house.record("slices", "--budget", "900", "--no-claims", time_is_up="lab.pid")
    assert status == 3, said
    assert "waits" not in house.edition("slices").labs()
    assert house.record("slices", "--no-claims")[0] == 0
    assert house.edition("slices").labs().keys() == {"one", "waits"}


RECORDED = {
    "key": "0" * 16,
    "date": "2026-01-01T00:00:00+00:00",
    "seconds": 10.0,
    "machine": facts.machine(),
    "launches": [{"ranks": 2, "times": 3, "backend": "gloo", "torch": "2", "nccl": None, "gpus": 0, "gpu": None}],
    "values": {},
    "blocks": [],
    "read": [],
}


# -- a part, and limits -----------------------------------------------------------------------------


def test_a_part_is_the_labs_and_claims_that_are_named_and_nothing_else_goes(house):
    """Labs alone, claims alone, the rest, one again; what is unknown is refused before anything runs."""
    house.lab("one")
    house.lab("two")
    house.claim("sun")
    house.claim("moon")
    assert house.record("part", "--labs", "one")[0] == 0
    assert (house.edition("part").labs().keys(), house.edition("part").results()) == ({"one"}, {})
    status, said = house.record("part", "--claims", "sun")
    assert (status, house.edition("part").results().keys()) == (0, {"sun"}), said
    assert house.edition("part").labs().keys() == {"one"}
    assert house.record("part")[0] == 0
    assert house.edition("part").labs().keys() == {"one", "two"}
    assert len(house.edition("part").results()) == 6
    sun = house.root / "tests/claims/test_sun.py"
    sun.write_text(sun.read_text().partition('\n\n\n@proves("sun-too")')[0])
    assert house.record("part", "--claims", "sun", "--fresh")[0] == 0
    left = {"sun", "moon", "moon-too", "moon-as-well"}
    assert house.edition("part").results().keys() == left, "a test that is gone takes its results along"
    for arguments, words in {
        ("../up",): "edition name '../up': use small letters, digits and hyphens",
        ("part", "--labs", "nothing"): "there is no lab 'nothing'",
        ("part", "--claims", "mars"): "there is no claim 'mars'; see the claims page, or tests/claims/",
        ("part", "--claims", "sun", "--no-claims"): "--claims and --no-claims: give one of them",
        ("part", "--budget", "-1"): "--budget -1: give a positive number of seconds",
        ("part", "--limit", "-1"): "--limit -1: give a positive number of seconds",
        ("part", "--launch-limit", "0"): "--launch-limit 0: give a positive number of seconds",
    }.items():
        status, said = house.record(*arguments)
        assert (status, said.partition(words)[:2]) == (2, ("python -m ddplab.recording: ", words)), said


def test_claims_of_which_nccl_may_tell_more_are_found_in_the_book(house):
    """Those for gloo only and those with a word about NCCL; not those whose ranks choose the CPU wherever they run."""
    book = house.root / "handbook/part"
    book.mkdir(parents=True)
    said = {"sun": ("gloo", "run"), "moon": ("any backend", "run; NCCL was not run"), "star": ("any backend", "run")}
    said["on-cpu"] = ("gloo", "run")
    for claim, (holds, known) in said.items():
        on_cpu = "env={'CUDA_VISIBLE_DEVICES': ''}" if claim == "on-cpu" else "env={}"
        house.claim(claim, code=f"from ddplab import launch; launch(lambda: 1, 1, {on_cpu})")
        directive = f"```{{claim}} {claim}\n  :holds: {holds}\n  :known: {known}\n  It is.\n  ```\n"
        (book / f"{claim}.md").write_text(f"- in a list\n  {directive}")
    house.claim("sun", code="assert False, 'before it launched anything'")
    assert house.record("before")[0] == 1
    house.claim("sun", code="from ddplab import launch; launch(lambda: 1, 1)")
    status, said = house.record("now", "--claims", "nccl")
    assert status == 0, said
    assert house.edition("now").results().keys() == {"sun", "moon"}


def test_a_lab_that_proves_claims_is_recorded_when_they_are_asked_for(house):
    """Its record is their result, also where it fails."""
    house.lab("one", proves="star comet")
    house.lab("two", code="assert False, 'it broke'", proves="dust")
    house.lab("three")
    house.claim("sun")
    book = house.root / "handbook"
    book.mkdir()
    (book / "page.md").write_text("```{claim} comet\n:holds: gloo\n```\n```{claim} dust\n:holds: any backend\n```\n")
    assert house.record("part", "--claims", "nccl")[0] == 0
    assert house.edition("part").labs().keys() == {"one"}
    status, said = house.record("part", "--claims", "star", "dust", "sun")
    assert (status, "two failed" in said) == (1, True), said
    assert house.edition("part").labs().keys() == {"one", "two"}
    assert house.edition("part").results().keys() == {"sun"}
    found = results_of(house.edition("part"), house.root)
    assert {claim: kept["outcome"] for claim, kept in found.items()} == {
        "star": "passed",
        "comet": "passed",
        "dust": "failed",
        "sun": "passed",
    }
    assert found["dust"]["why"] == "AssertionError: it broke"
    assert found["star"]["test"] == "gallery/short/plot_one.py::lab"


def test_a_lab_is_one_test_and_collecting_it_runs_nothing(house):
    """However pytest comes to its file."""
    ran = house.root / "ran"
    house.lab("one", code=f"open({str(ran)!r}, 'a').write('once ')", proves="star")
    collect = [sys.executable, "-m", "pytest", "-q", "-p", "ddplab.recording.as_tests", "-p", "no:cacheprovider"]
    for more, text in (["--collect-only"], "1 test collected"), ([], "1 passed"):
        command = [*collect, *more, "gallery/short/plot_one.py"]
        said = subprocess.run(command, cwd=house.root, capture_output=True, text=True, timeout=PATIENCE_S).stdout
        assert text in said
        assert ran.is_file() == (not more)
    assert ran.read_text() == "once "


def test_labs_are_recorded_beside_tests_that_are_broken_and_the_budget_is_not_blamed(house):
    """A test that is not Python stops no lab; a conftest that fails is why nothing ran, not the time."""
    house.lab("one")
    house.claim("sun")
    (house.root / "tests/claims/test_broken.py").write_text("def broken(:")
    status, said = house.record("labs", "--labs", "one")
    assert status == 0, said
    (house.root / "tests/claims/test_broken.py").unlink()
    (house.root / "tests/claims/conftest.py").write_text("raise RuntimeError('no conftest')")
    status, said = house.record("labs", "--claims", "sun", "--budget", "900")
    assert (status, "no conftest" in said) == (1, True), said
    assert "1 test of claims left: what stands above says why" in said
    assert "the budget is used up" not in said


def test_a_limit_ends_a_lab_that_hangs_and_a_launch_that_hangs(house):
    """Whatever the lab's own bound is; the next lab runs."""
    hangs = "from ddplab import launch\nimport time\nlaunch(lambda: time.sleep(4321), 1, init=False, timeout_s=1234)"
    house.lab("a_launch_hangs", code=hangs)
    house.lab("b_lab_hangs", code="import time; time.sleep(4321)")
    house.lab("c_passes")
    end = ["--labs", "a-launch-hangs", "c-passes"]  # on a busy machine, after any time
    status, said = house.record("short", *end, "--limit", str(PATIENCE_S), "--launch-limit", "0.5")
    assert status == 1, said
    status, said = house.record("short", "--labs", "b-lab-hangs", "--limit", "1")
    assert status == 1, said
    labs = house.edition("short").labs()
    assert "rank 0 of 1 still ran after 0.5 s" in labs["a-launch-hangs"]["failed"]
    assert labs["b-lab-hangs"]["failed"].endswith("still ran after 1 s")
    assert "failed" not in labs["c-passes"]


def test_a_launch_refuses_a_limit_and_a_switch_that_say_nothing(monkeypatch):
    monkeypatch.setenv("DDPLAB_LAUNCH_LIMIT_S", "soon")
    with pytest.raises(ValueError, match="DDPLAB_LAUNCH_LIMIT_S is 'soon'; set it to a positive number of seconds"):
        launch(int, 1)
    monkeypatch.setenv("DDPLAB_LAUNCH_LIMIT_S", "900")
    monkeypatch.setenv("DDPLAB_SHARE_GPU", "yes")
    with pytest.raises(ValueError, match="DDPLAB_SHARE_GPU is 'yes'; set it to 1, or to 0"):
        launch(int, 1)


def test_what_names_a_clock_is_recorded_without_sharing_a_gpu(house, monkeypatch):
    """A lab's own code and what it imports count, and the code of a claim, but not its helpers' patience."""
    monkeypatch.setenv("DDPLAB_SHARE_GPU", "1")
    asked = "import os; print('asked', os.environ['DDPLAB_SHARE_GPU'])"
    house.lab("plain", code=asked)
    house.lab("clock", code=f"import time; time.perf_counter(); {asked}")
    house.lab("helper", code=f"from ddplab.apparatus.gpu import repeats; {asked}")
    house.lab("comment", code=f"# of time.monotonic() it only speaks\n{asked}")
    house.lab("endings", code=f"report = lambda *_, **__: None\nreport([])\n{asked}")
    house.lab("untimed", code=f"report = lambda *_, **__: None\nreport([], timed=False)\n{asked}")
    share = "assert os.environ['DDPLAB_SHARE_GPU'] =="
    house.claim("plain", code=f"{share} '1'")
    house.claim("clock", code=f"time.monotonic(); {share} '0'")
    status, said = house.record("shared")
    assert status == 0, said
    printed = {name: kept["blocks"][-1]["printed"][-1] for name, kept in house.edition("shared").labs().items()}
    shares = {name for name, said in printed.items() if said == "asked 1"}
    assert shares == {"plain", "comment", "untimed"}, printed


def test_cases_of_a_test_count_their_launches_and_collectives_together():
    """Equal in all else, they are one entry."""
    kept = []
    for collectives, ranks in ((3, 2), (4, 2), (1, 3)):
        evidence.add_launch(kept, {"ranks": ranks, "backend": "gloo", "times": 1, "collectives": collectives})
    assert [(one["ranks"], one["times"], one["collectives"]) for one in kept] == [(2, 2, 7), (3, 1, 1)]


# -- the plan ---------------------------------------------------------------------------------------

LABS = {lab_id(script): script for script in (ROOT / "gallery").glob("*/plot_*.py")}


def test_the_list_of_what_comes_first_names_labs_that_exist_each_once_and_gives_a_reason():
    first = [lab for _, group in plan.ORDER for lab in group]
    assert set(first) - LABS.keys() == set()
    assert len(first) == len(set(first))
    assert all(reason for reason, _ in plan.ORDER)


def test_what_is_not_in_the_list_comes_after_in_the_order_of_the_book():
    first = [lab for _, group in plan.ORDER for lab in group]
    order = list(plan.in_order(LABS))
    assert order[: len(first)] == first
    rest = [LABS[lab].parent.name for lab in order[len(first) :]]
    assert list(dict.fromkeys(rest)) == [chapter for chapter in plan.CHAPTERS if chapter in rest]
    in_conf = re.findall(r'"\.\./gallery/(\w+)"', (ROOT / "conf.py").read_text())
    assert list(plan.CHAPTERS) == in_conf


def test_what_shows_the_same_on_every_machine_is_recorded_last():
    """The emulated links, and labs whose ranks chose the CPU in another edition, also one that is in the list."""
    order = list(plan.in_order(LABS, on_cpu={"launch-and-torchrun", "triage"}))
    assert set(order[-7:]) == {*plan.EMULATED, "launch-and-torchrun", "triage"}
    assert set(plan.EMULATED) <= LABS.keys()


def test_an_edition_tells_whose_ranks_choose_the_cpu(tmp_path):
    other = Edition(tmp_path / "other")
    chosen = {**RECORDED["launches"][0], "chosen": True}
    for name, launches in {"free": RECORDED["launches"], "hides": [chosen], "none": []}.items():
        other.write_lab(name, {**RECORDED, "launches": launches}, {})
    other.write_manifest()
    assert plan.Times.known(Edition(tmp_path / "new"), {"gpus": ["H200"]}).on_cpu == {"hides"}


def test_ranks_that_share_a_gpu_take_turns_at_each_collective(tmp_path, monkeypatch):
    """The estimate says so where sharing is asked for and there are more ranks than GPUs."""
    other = Edition(tmp_path / "other")
    launch = {**RECORDED["launches"][0], "collectives": 100}
    other.write_lab("pair", {**RECORDED, "launches": [launch]}, {})
    other.write_lab("one", {**RECORDED, "launches": [{**launch, "ranks": 1}]}, {})
    other.write_manifest()
    alone = 10.0 + 3 * plan.CUDA_START_S
    monkeypatch.setenv("DDPLAB_SHARE_GPU", "1")
    times = plan.Times.known(Edition(tmp_path / "new"), {"gpus": ["H200"]})
    assert (times.lab("one"), times.lab("pair")) == (alone, alone + 100 * plan.COLLECTIVE_S)
    assert times.lab("cuda-trace") == plan.GUESS_S["cuda-trace"] < plan.UNKNOWN_S
    assert plan.GUESS_S.keys() <= LABS.keys()


def test_a_gpu_adds_a_cuda_start_for_each_launch_that_was_recorded_without_one(tmp_path):
    other = Edition(tmp_path / "other")
    other.write_lab("one", RECORDED, {})
    other.write_manifest()
    times = [plan.Times.known(Edition(tmp_path / "new"), {"gpus": gpus}) for gpus in ([], ["H200"])]
    assert [one.lab("one") for one in times] == [10.0, 10.0 + 3 * plan.CUDA_START_S]
    assert times[0].sources == ["other"]
    assert times[0].lab("two") == plan.UNKNOWN_S


def test_files_are_dealt_so_that_processes_end_together():
    tests = [Item(Path(file), "test_it", (file,)) for file in "dabca"]
    seconds = {"a": 2.5, "b": 4.0, "c": 3.0, "d": 2.0}
    times = plan.Times({}, {test.id: seconds[str(test.path)] for test in tests}, [])
    two = [[str(test.path) for test in share] for share in plan.dealt(tests, times, 2)]
    assert two == [["a", "a", "d"], ["b", "c"]]
    assert plan.seconds_of(tests, times, 2) == 7.0
    assert len(plan.dealt(tests, times, 8)) == 4
    assert plan.dealt(tests, times, 1) == [tests]


def test_processes_that_share_a_small_gpu_are_few(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    assert plan.at_once({}) == 8
    assert plan.at_once({"gpu memory in MiB": [16384.0, 81559.0]}) == 4
    assert plan.at_once({"gpu memory in MiB": [None]}) == 8


# -- the machine ------------------------------------------------------------------------------------

SMI = """#!/bin/sh
case "$1" in
  --query-gpu=*)
    echo "NVIDIA H200, GPU-aa, 580.1, 143771, 700.00, 1980, 3201, 345"
    echo "NVIDIA H200, GPU-bb, 580.1, 143771, [N/A], 1980, 3201, 1200" ;;
  topo) printf '\\t\\033[4mGPU0\\tGPU1\\033[0m\\nGPU0\\t X \\tNV18\\nGPU1\\tNV18\\t X \\n\\nLegend:\\n  X = Self\\n' ;;
esac
"""


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine whose nvidia-smi tells of two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus.nvidia_smi.cache_clear()
    yield program
    gpus.nvidia_smi.cache_clear()


def test_gpus_are_what_nvidia_smi_tells_of_them(two_gpus, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_TOPO_FILE", "/home/somebody/topo.xml")
    here = facts.machine()
    assert (here["gpus"], here["driver"]) == (["NVIDIA H200", "NVIDIA H200"], "580.1")
    assert facts.hardware() == {
        "gpu memory in MiB": [143771.0, 143771.0],
        "power limit in W": [700.0, None],
        "highest SM clock in MHz": [1980.0, 1980.0],
        "highest memory clock in MHz": [3201.0, 3201.0],
        "SM clock at the start in MHz": [345.0, 1200.0],
        "topology": ["        GPU0    GPU1", "GPU0     X      NV18", "GPU1    NV18     X"],
        "switches": {"NCCL_DEBUG": "WARN"},
    }


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("GPU-bb", 1), ("0,1", 2), ("", 0), ("7", 0)])
def test_gpus_that_cuda_may_not_see_are_not_counted(two_gpus, monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(facts.machine()["gpus"]) == count


def test_a_launch_of_no_given_size_has_a_rank_for_each_gpu(two_gpus, monkeypatch):
    two_gpus.write_text("#!/bin/sh\nfor i in 1 2 3 4; do echo Simulated, GPU-$i, 580.1; done\n")
    assert launch(lambda: os.environ["RANK"], init=False) == ["0", "1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    assert launch(lambda: os.environ["RANK"], init=False) == ["0", "1", "2"]


@pytest.mark.parametrize("program", ["exit 9", "echo no devices were found; exit 6", "exec sleep 4321"])
def test_an_nvidia_smi_that_fails_or_hangs_is_no_obstacle(two_gpus, monkeypatch, program):
    monkeypatch.setattr(gpus, "_BOUND_S", 0.3)
    two_gpus.write_text(f"#!/bin/sh\n{program}\n")
    assert facts.machine()["cpu"]
    facts.hardware()


def test_another_clock_processor_or_python_beside_the_same_gpus_is_the_same_machine():
    gpu = {**facts.machine(), "gpus": ["H200"], "driver": "580.1"}
    assert not facts.differences(gpu, {**gpu, "cpu": "another", "cores": 64, "python": "3.12.1"})
    assert not facts.differences({**gpu, "driver": "580.159.03"}, {**gpu, "driver": "580.159.04"}), "the driver's patch"
    for fact, value in [("gpus", ["H200"] * 2), ("driver", "550"), ("torch", "2.11.0+cu130"), ("nccl", "2.30")]:
        assert facts.differences(gpu, {**gpu, fact: value}) == [fact]


def moved(house, name: str, **facts: object) -> None:
    """Make all that an edition has one that another machine recorded."""
    for path in house.edition(name).folder.glob("*/*.json"):
        kept = json.loads(path.read_text())
        for result in kept.get("results", {}).values():
            result.pop("machine", None)
        path.write_text(json.dumps({**kept, "machine": kept["machine"] | facts}))


def test_what_another_processor_recorded_counts_but_for_times(house, tmp_path):
    """A contributor adds to an edition: what measures time is named, all else is added, and nothing is lost."""
    house.lab("plain")
    house.lab("timed", code="import time; time.perf_counter()")
    house.claim("sun")
    house.claim("clock", code="time.monotonic()")
    assert house.record("mine")[0] == 0
    moved(house, "mine", cpu="Another", cores=64)
    said = house.record("mine", "--plan", "--labs", "plain", "--claims", "sun", "sun-too")[1]
    assert "0 of 1 lab and 0 tests" in said
    house.lab("new", code="import time; time.perf_counter()")
    (house.root / "tests/claims/test_sun.py").open("a").write("\n\n@proves('late')\ndef test_late():\n    pass\n")
    status, said = house.record("mine", "--labs", "new", "--claims", "late")
    assert status == 1
    assert "new: what measures time is comparable on one processor only" in said
    assert "and 1 lab of mine measured on Another, 64 cores" in said
    assert "the edition is inconsistent: 1 labs measured time on " in said
    edition, here = house.edition("mine"), facts.machine()
    assert {name for name, kept in edition.labs().items() if kept["machine"]["cpu"] == "Another"} == {"plain", "timed"}
    there = {claim: kept["machine"]["cpu"] for claim, kept in edition.results().items()}
    assert (there.pop("late"), {*there.values()}) == (here["cpu"], {"Another"})
    assert len(there) == 6
    manifest = json.loads((edition.folder / "manifest.json").read_text())
    assert manifest["machine"]["cpu"] == "Another"
    assert manifest["also"] == [{"machine": here, "records": 2}]
    carried, _ = archive.unpack(archive.pack(edition, tmp_path / "out"), tmp_path / "there")
    assert carried.results() == edition.results()
    assert compare(edition, carried).results == []
    status, said = house.record("mine", "--labs", "timed")
    assert (status, "comparable" in said) == (0, False), said
    assert {name for name, kept in edition.labs().items() if kept["machine"] == here} == {"timed", "new"}
    status, said = house.record("mine")
    assert (status, "recorded in" in said) == (0, True), said
    moved(house, "mine", torch="2.11.0+cpu")
    assert "3 of 3 labs and 5 tests" in house.record("mine", "--plan")[1]


def test_all_times_of_the_default_edition_are_of_one_processor_and_all_else_of_one_torch():
    edition, found = Edition(ROOT / "gallery/editions/cpu-gloo"), {*plan.EMULATED}
    machines = {name: kept["machine"] for name, kept in (edition.labs() | edition.results()).items()}
    first = machines[min(found)]
    assert {fact for one in machines.values() for fact in facts.differences(first, one)} <= {"cpu", "cores"}
    timed = {name for name in LABS.keys() & machines if names_a_clock(LABS[name])}
    assert found < timed
    assert {facts.processor(machines[name]) for name in timed} == {facts.processor(first)}
