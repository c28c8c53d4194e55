"""A visit rehearsed on a simulated GPU, each branch once, with small labs under the names of the real ones.

Nothing here ran on a GPU. There is no git, no make and no package beyond those that ``visit.py`` names on the path.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import visit

from ddplab.recording.edition_folder import Edition
from ddplab.recording.script import lab_id
from tools import PATIENCE_S, ROOT, gone, need, wait_until

pytestmark = pytest.mark.apart

LAB = '"""\nA lab\n===\n"""\nfrom ddplab import record\n\n{code}\nrecord(unit="ranks", count=2)\n'
RANKS = """
from ddplab import device, launch

def worker():
    import torch, torch.distributed as dist

    dist.all_reduce(torch.ones(2, device=device()))

"""
NEEDS = 'from ddplab.runtime.needs import NotShownHere\nraise NotShownHere("needs the moon")'
CLAIM = """
from proof import proves

{code}

@proves("two-add-up")
def test_two():
    launch(worker, 2, quiet=True)


@proves("not-about-nccl")
def test_other():
    pass
"""
PAGE = "```{claim} two-add-up\n:holds: gloo\n```\n\n```{claim} not-about-nccl\n:holds: any backend\n```\n"
ABSENT = "ijson,nbclient,ipykernel,accelerate"  # what the kit can do without; py-spy is a program, not on the path here
NAME = "simulated-gpu-0"


class Tree:
    """The kit, small labs, and the command, as they stand on the machine."""

    def __init__(self, root):
        self.root, self.out, self.bin = root, root / "out", root / "bin"
        for folder in ("gallery/gpu", "tests/device", "tests/claims", "handbook", "bin"):
            (root / folder).mkdir(parents=True)
        (root / "gallery/ddplab").symlink_to(ROOT / "gallery/ddplab")
        bounds = "CHECK_S, LAUNCH_S = 90.0, 45.0"
        code = Path(visit.__file__).read_text(encoding="utf-8")
        assert bounds in code, "what is busy here may need longer than a slow disk there"
        (root / "tests/device/visit.py").write_text(
            code.replace(bounds, f"CHECK_S, LAUNCH_S = {PATIENCE_S}, {PATIENCE_S}")
        )
        (self.bin / "seq").symlink_to(need("seq", "coreutils"))  # for the nvidia-smi that is simulated
        for name in ("conftest.py", "proof.py"):
            shutil.copy(ROOT / "tests/claims" / name, root / "tests/claims")
        (root / "tests/claims/test_it.py").write_text(CLAIM.format(code=RANKS))
        (root / "handbook/page.md").write_text(PAGE)
        (root / "pytest.ini").write_text("[pytest]\nmarkers = proves(id): a claim\n")
        self.labs = [lab for part in visit.SLICES for lab in part.labs]
        for lab in self.labs:
            self.lab(lab, f"print({lab!r})")

    def lab(self, name, code):
        (self.root / f"gallery/gpu/plot_{name.replace('-', '_')}.py").write_text(LAB.format(code=code))

    def start(self, *arguments, gpus=1, hidden="", path="", **env):
        simulated = ROOT / "tests" / "simulated"
        env = {
            "PATH": os.pathsep.join(filter(None, [path, str(simulated), str(self.bin)])),
            "PYTHONPATH": str(simulated),
            "SIMULATED_GPUS": str(gpus),
            "HIDE_PACKAGES": f"{ABSENT},{hidden}",
            "OMP_NUM_THREADS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "HOME": str(self.root),
            "OUT": str(self.out),
            "DDPLAB_COMMIT": "0123456789ab",
            **env,
        }
        command = [sys.executable, "tests/device/visit.py", *arguments]
        return subprocess.Popen(
            command, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def visit(self, *arguments, **options):
        """Its exit status and words."""
        process = self.start(*arguments, **options)
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        return process.returncode, said

    def edition(self, name=NAME):
        return Edition(self.root / "_build/editions" / name)

    def archived(self, name=NAME):
        """The labs in the archive that comes back."""
        with zipfile.ZipFile(self.out / f"{name}.zip") as archive:
            return {Path(path).stem for path in archive.namelist() if "/labs/" in path and path.endswith(".json")}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def row(said, name):
    """The line of the table about a lab."""
    return re.search(rf"(?m)^{name} +\d.*$", said)[0]


def test_a_whole_visit_in_two_calls(tree):
    """One lab fails, one needs what is not there, two launch; another call repairs, and repeats nothing else."""
    tree.lab("mfu", 'raise ValueError("too fast")')
    tree.lab("starved-gpu", NEEDS)
    tree.lab("cost-of-ddp", RANKS + "launch(worker, 1, quiet=True)")
    tree.lab("two-nccl-ranks", RANKS + "launch(worker, 2, quiet=True)")
    tree.out.mkdir()
    for number in range(8):
        (tree.out / f"old-{number}").touch()
    (tree.out / "a/b/c").mkdir(parents=True)
    (tree.out / "a/b/c/deep").touch()
    code, said = tree.visit("first", "--limit", "900")
    assert code == visit.FAILED, said
    assert "launch of 1: " in said
    assert "two NCCL ranks share this GPU" in said
    assert "FAILED ValueError: too fast" in row(said, "mfu")
    assert row(said, "starved-gpu").endswith("needs the moon")
    assert row(said, "host-runs-ahead").split()[-3:] == ["no", "launch", "ok"]
    assert "1 nccl GPU  " in row(said, "cost-of-ddp")
    assert "2 nccl GPU (NCCL_HOSTID)" in row(said, "two-nccl-ranks")
    assert "2 nccl GPU (NCCL_HOSTID)" in row(said, "two-add-up")
    assert "not-about-nccl" not in said
    assert "WARNING: 11 files, and at most 8 come back" in said
    assert "WARNING: a/b/c/deep does not come back: more than 2 folders deep" in said
    assert (tree.out / "record.log").read_text() == said
    assert tree.archived() == set(tree.labs)
    manifest = json.loads((tree.edition().folder / "manifest.json").read_text())
    assert (manifest["commit"], manifest["failed"]) == ("0123456789ab", ["mfu"])

    tree.lab("starved-gpu", "print('repaired')")
    code, said = tree.visit("again", "--limit", "900")
    assert code == visit.FAILED, said
    assert "mfu failed before and has not changed: passed over; --labs mfu runs it again" in said
    assert row(said, "starved-gpu").endswith("ok")
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("    [")] == ["starved-gpu"]

    tree.lab("mfu", "print('repaired')")
    code, said = tree.visit("again", "--limit", "900")
    assert code == 0, said


def test_a_lab_that_hangs_ends_at_its_limit_and_what_does_not_fit_is_passed_over(tree):
    """The slice goes on behind it; with no time left nothing is started, and that is not a success."""
    tree.lab("mfu", "import time; time.sleep(4321)")
    code, said = tree.visit("again", "--labs", "mfu", "hello-ranks", "--lab-limit", "1", "--limit", "900")
    assert code == visit.FAILED, said
    assert "still ran after 1 s" in row(said, "mfu")
    assert row(said, "hello-ranks").endswith("ok")
    code, said = tree.visit("again", "--limit", "1")
    assert code == visit.LEFT, said
    assert "passed over, 0 s are left: only a GPU can tell, 1 of 3: host-runs-ahead gpu-memory cost-of-ddp" in said
    assert tree.archived() == {"mfu", "hello-ranks"}


def test_without_git_and_make_the_commit_is_what_the_command_says(tree):
    """None of the tools of the house is on the path; where nothing tells the commit, the visit says so."""
    code, said = tree.visit("again", "--labs", "mfu", "--limit", "900", DDPLAB_COMMIT="fedcba987654")
    assert code == 0, said
    assert "tools here: none" in said
    assert json.loads((tree.edition().folder / "manifest.json").read_text())["commit"] == "fedcba987654"
    code, said = tree.visit("again", "--limit", "1", DDPLAB_COMMIT="")
    assert "the edition will not know its commit: set DDPLAB_COMMIT" in said


def test_stopped_midway_it_leaves_an_archive_of_what_was_recorded(tree):
    """And no process; SIGTERM is what a time limit sends."""
    marker = tree.root / "pid"
    tree.lab("mfu", f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(4321)")
    process = tree.start("again", "--labs", "host-runs-ahead", "mfu", "--limit", "900")
    try:
        pid = int(str(wait_until(lambda: marker.exists() and marker.read_text())))
        process.terminate()
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "stopped from outside" in said
    assert tree.archived() == {"host-runs-ahead"}
    assert wait_until(lambda: gone(pid))


FAKE_SMI = "#!/bin/sh\necho 'NVIDIA H200, GPU-1, 580.1, 143771, 700, 1980, 3201, 345'\n"


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"path": "/nowhere", "gpus": 0}, visit.NO_GPU, "nvidia-smi shows no GPU, or is not there"),
        ({"hidden": "matplotlib,psutil"}, visit.NO_PACKAGE, "packages are missing: matplotlib psutil"),
        ({"hidden": "cloudpickle"}, visit.NO_PACKAGE, "packages are missing: cloudpickle"),
        ({"gpus": 0, "path": "card"}, visit.NO_CUDA, "no CUDA, or no NCCL of one rank: "),
    ],
    ids=["no GPU", "packages", "cloudpickle", "no CUDA"],
)
def test_a_check_stops_the_visit_with_the_reason(options, status, words, tree):
    """In one line, with a status of its own; nothing is recorded."""
    if options.get("path") == "card":  # a driver, but a torch that has no CUDA
        (tree.bin / "nvidia-smi").write_text(FAKE_SMI)
        (tree.bin / "nvidia-smi").chmod(0o755)
        options = {**options, "path": str(tree.bin)}
    code, said = tree.visit("first", **options)
    assert code == status, said
    assert f"s: STOP: {words}" in said
    assert not (tree.root / "_build").exists()


def test_launches_that_fail_stop_it_and_hanging_checks_end(tmp_path, monkeypatch, capsys):
    """The last check; and the bound of a process that would never end."""
    monkeypatch.setattr(visit, "cards", lambda: [{"name": "NVIDIA H200"}])
    monkeypatch.setattr(visit, "PACKAGES", "")
    monkeypatch.setattr(visit, "CUDA", "")
    monkeypatch.setattr(visit, "LAUNCH", "raise SystemExit('no rank came')")
    here = visit.Visit(tmp_path, 900)
    with pytest.raises(visit.Stop, match=r"ddplab\.launch fails: no rank came") as stop:
        visit.check(here, whole=True)
    assert stop.value.status == visit.NO_LAUNCH
    assert here.program("import time; time.sleep(4321)", bound_s=0.5) == "it hangs: nothing after 0.5 s"
    assert here.program("print('one')\nraise SystemExit(7)", bound_s=900) == "one"
    assert visit.can_share(here) is False
    assert "two NCCL ranks cannot share this GPU: no rank came" in capsys.readouterr().out


def test_without_sharing_the_labs_of_two_ranks_run_unshared_and_claims_are_passed_over(tmp_path, monkeypatch, capsys):
    """Which slices run, and with what in their environment."""
    ran = []
    monkeypatch.setattr(visit, "check", lambda *_, **__: "h200")
    monkeypatch.setattr(visit, "can_share", lambda *_, **__: False)
    monkeypatch.setattr(visit, "record", lambda here, name, part, options, **env: bool(ran.append((part, env))))
    monkeypatch.setattr(visit, "EDITIONS", tmp_path / "editions")
    options = argparse.Namespace(call="first", labs=None, claims=None, nccl=False, limit=900)
    assert visit.everything(visit.Visit(tmp_path / "out", 900), options) == visit.LEFT
    assert [part for part, _ in ran] == [part for part in visit.SLICES if not part.claims]
    assert {env["DDPLAB_SHARE_GPU"] for _, env in ran} == {"0"}
    assert "passed over: claims under NCCL" in capsys.readouterr().out


def test_wheels_and_another_nccl_are_taken_along(tree):
    """A wheel is unpacked for all processes; an NCCL that cannot be loaded is named, and the visit goes on."""
    (tree.root / ".whl").mkdir()
    with zipfile.ZipFile(tree.root / ".whl/brought-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought.py", "HERE = 'from the wheel'\n")
    tree.lab("mfu", "import brought\nprint(brought.HERE)")
    (tree.root / ".nccl").mkdir()
    (tree.root / ".nccl/libnccl.so.2.xz").write_bytes(b"not compressed")
    code, said = tree.visit("again", "--nccl", "--labs", "mfu", "--limit", "900")
    assert code == 0, said
    assert "unpacked brought-1.0-py3-none-any.whl" in said
    assert "the NCCL that was brought along cannot be used: " in said
    assert tree.edition().lab("mfu")["blocks"][0]["printed"] == ["from the wheel"]


def test_the_other_nccl_has_an_edition_of_its_own(tree):
    """Its version is in the name; only the slice of two ranks is repeated under it."""
    compiler = need("cc", "gcc")
    library = tree.root / "libnccl.so.2"
    source = "int ncclGetVersion(int *version) { *version = 23007; return 0; }\n"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", str(library), "-x", "c", "-"]
    subprocess.run(command, input=source, text=True, check=True)
    (tree.root / ".nccl").mkdir()
    (tree.root / ".nccl/libnccl.so.2.xz").write_bytes(visit.lzma.compress(library.read_bytes()))
    tree.lab("two-nccl-ranks", RANKS + "launch(worker, 2, quiet=True)")
    code, said = tree.visit("again", "--nccl", "--labs", "mfu", "--limit", "900", SIMULATED_NCCL="2.30.7")
    assert code == 0, said
    assert tree.archived(f"{NAME}-nccl230") == set(visit.SHARED.labs)
    assert tree.archived() == {"mfu"}
    assert "(NCCL_MULTI_RANK_GPU_ENABLE)" in row(said, "two-nccl-ranks")


def test_the_plan_names_every_slice_and_what_stands_in_the_way_is_said_at_once(tree):
    """No GPU, no folder and no torch is needed for a plan; a wrong name or a missing folder costs no visit."""
    code, said = tree.visit("--plan", hidden="torch", gpus=0)
    assert code == 0, said
    for part in visit.SLICES:
        assert part.what in said
    code, said = tree.visit("again", "--labs", "mfu", "mful")
    assert (code, said) == (2, "visit.py: there is no lab 'mful'; see gallery/\n")
    code, said = tree.visit("again", OUT="")
    assert (code, said) == (2, "visit.py: set OUT, or give --out: the folder of what comes back\n")


HUNG = "Traceback\n  f()\nLaunchError: rank 0 still ran\n--- rank 0 hangs here ---\n  File x, line 3"
IN_A_RANK = "E   LaunchError: rank 0 failed first:\nE   Traceback\nE   mine.MyError: two\ntest_x.py:7: LaunchError"


@pytest.mark.parametrize(
    ("kept", "how"),
    [
        ({"outcome": "passed"}, "ok"),
        ({"outcome": "skipped", "why": "needs torch 2.13"}, "needs torch 2.13"),
        ({"failed": HUNG}, "FAILED LaunchError: rank 0 still ran"),
        ({"failed": "still ran after 9 s, and did not end"}, "FAILED still ran after 9 s, and did not end"),
        ({"outcome": "failed", "why": "LaunchError", "failed": IN_A_RANK}, "FAILED mine.MyError: two"),
        (
            {"outcome": "failed", "why": "assert 1 == 2", "failed": "E   assert 1 == 2\nx.py:7: in"},
            "FAILED assert 1 == 2",
        ),
        ({"outcome": "failed", "why": "the process ended: SIGSEGV"}, "FAILED the process ended: SIGSEGV"),
    ],
)
def test_the_table_gives_each_failure_the_line_that_says_most(kept, how, monkeypatch):
    """The last error that is named, else what the recorder or pytest says in short."""
    monkeypatch.setattr(Edition, "labs", lambda _: {"one": {"seconds": 1.0, "launches": [], **kept}})
    _, first, *_ = visit.table(Edition(Path("nowhere")))
    assert first.split("no launch")[1].strip() == how


def test_editions_are_named_after_the_card():
    assert visit.edition_name("NVIDIA H100 80GB HBM3") == "h100"
    assert visit.edition_name("NVIDIA H200") == "h200"
    assert visit.edition_name("NVIDIA A100-SXM4-40GB") == "a100-sxm4-40gb"


def test_what_is_too_large_to_come_back_is_named(tmp_path, monkeypatch):
    """As are files that lie too deep, or are too many: see the whole visit."""
    monkeypatch.setattr(visit, "MOST_MIB", 1)
    (tmp_path / "h200.zip").write_bytes(bytes(2 << 20))
    assert "WARNING: h200.zip does not come back: more than 1 MiB" in list(visit.what_comes_back(tmp_path))


def test_every_lab_of_a_slice_is_in_the_gallery():
    """And each once, with all that need a GPU."""
    labs = [lab for part in visit.SLICES for lab in part.labs]
    assert len(labs) == len(set(labs))
    there = {lab_id(script) for script in (ROOT / "gallery").glob("*/plot_*.py")}
    assert set(labs) <= there
    assert {lab for _, group in visit.plan.ORDER[:2] for lab in group} <= set(labs)
