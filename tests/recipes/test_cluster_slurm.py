"""The batch scripts that readers take away, run by a real Slurm."""

import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm import Slurm, readers_folder

Finished = Callable[[str, int], dict[int, str]]


def hashes(said: str) -> dict[int, str]:
    """Rank to the hash of its weights at the end."""
    found = re.findall(r"^(?:\[rank \d+\] ?:?)?rank (\d+): weights (\w+)", said, re.MULTILINE)
    return {int(rank): weights for rank, weights in found}


@pytest.fixture(scope="module")
def finished(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run a batch script on two nodes, once: (script, processes per node) -> what the ranks ended with."""

    @functools.cache
    def run(script: str, per_node: int) -> dict[int, str]:
        folder = readers_folder(tmp_path_factory.mktemp("job"))
        job = slurm.sbatch(folder / script, f"--gpus-per-node={per_node}", args=["--checkpoint=never.pt"])
        assert slurm.wait(job) == "COMPLETED", slurm.output(job)
        return hashes(slurm.output(job))

    return run


@pytest.mark.parametrize(("script", "per_node"), [("train.sbatch", 1), ("train.sbatch", 2), ("srun_python.sbatch", 2)])
def test_all_ranks_end_with_the_same_weights(finished: Finished, script: str, per_node: int) -> None:
    said = finished(script, per_node)
    assert sorted(said) == list(range(2 * per_node))
    assert len(set(said.values())) == 1


def test_srun_python_trains_as_srun_torchrun_does(finished: Finished) -> None:
    assert finished("srun_python.sbatch", 2) == finished("train.sbatch", 2)


@pytest.mark.parametrize("script", ["train.sbatch", "srun_python.sbatch"])
def test_signal_save_requeue_resume(slurm: Slurm, folder: Path, finished: Finished, script: str) -> None:
    """The signal is what the time limit sends (--signal=B:USR1@120), without waiting for it."""
    per_node = ["--gpus-per-node=1", *(["--ntasks-per-node=1"] if script == "srun_python.sbatch" else [])]
    job = slurm.sbatch(folder / script, *per_node, args=["--wait-at=2"])
    for rank in (0, 1):
        slurm.wait_for(job, rf"rank {rank}: pid \d+, step 2")
    slurm.command("scancel", "--signal=USR1", "--batch", str(job))
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)

    said = slurm.output(job)
    for rank in (0, 1):
        assert f"rank {rank}: stops at step 2" in said
        assert f"rank {rank}: resumes at step 2" in said
    assert "User defined signal" not in said  # an agent that USR1 kills takes its ranks with it, saved or not
    assert slurm.show(job)["Restarts"] == "1"
    assert hashes(said) == finished("train.sbatch", 1)
    assert said.index("hello_ranks: ") < said.index("stops at step 2")
    own = "".join(path.read_text() for path in (folder / "logs" / str(job)).rglob("*") if path.is_file())
    assert own.count("rank 1: stops at step 2") == 1


def test_train_py_is_requeued_and_resumes(slurm: Slurm, folder: Path) -> None:
    recipes = Path(__file__).parents[2] / "gallery" / "recipes"
    shutil.copytree(recipes / "data", folder / "data")
    shutil.copy(recipes / "train.py", folder)
    small = ["--width=32", "--layers=1", "--log-every=1"]
    job = slurm.sbatch(folder / "train.sbatch", "--gpus-per-node=1", args=["--steps=1000000", *small])
    slurm.wait_for(job, r"step +5 ")
    slurm.command("scancel", "--signal=USR1", "--batch", str(job))
    slurm.wait_for(job, r"resumed after step \d+")
    slurm.command("scancel", str(job))
    assert slurm.wait(job) == "CANCELLED"
    assert slurm.show(job)["Restarts"] == "1"


def test_what_tells_a_requeued_job_from_a_cancelled_one(slurm: Slurm, folder: Path) -> None:
    """Not the signal, and not the state that the job reads; the line in its output, and the count of restarts."""
    script = folder / "trap.sbatch"
    script.write_text(
        "#!/bin/bash\n"
        """trap 'scontrol show job $SLURM_JOB_ID | grep -o "JobState=[A-Z]*"; exit 0' TERM\n"""
        'echo "restarts: $SLURM_RESTART_COUNT."\n'
        "while true; do sleep 0.1; done\n"
    )
    first, second = (slurm.sbatch(script, "--requeue", "--open-mode=append", "--nodes=1") for _ in range(2))
    for job in (first, second):
        slurm.wait_for(job, r"restarts: \.")
    slurm.command("scontrol", "requeue", str(first))
    slurm.command("scancel", str(second))
    assert slurm.wait(second) == "CANCELLED"
    slurm.wait_for(first, r"restarts: 1\.")
    requeued, cancelled = slurm.output(first), slurm.output(second)
    slurm.command("scancel", str(first))
    assert "DUE TO JOB REQUEUE" in requeued
    assert "CANCELLED" in cancelled
    assert "DUE TO" not in cancelled
    assert re.findall("JobState=([A-Z]*)", requeued) == re.findall("JobState=([A-Z]*)", cancelled) == ["COMPLETING"]


def test_a_training_that_fails_ends_the_job_on_all_nodes(slurm: Slurm, folder: Path) -> None:
    program = folder / "train.py"
    fails = "\nif os.environ['RANK'] == '1':\n    sys.exit('rank 1: no more')\n"
    program.write_text(program.read_text().replace("\nSAVED = 75\n", fails))
    job = slurm.sbatch(folder / "train.sbatch", "--gpus-per-node=1")
    assert slurm.wait(job) == "FAILED", slurm.output(job)
    assert "rank 1: no more" in slurm.output(job)


def test_an_address_that_nobody_else_reaches_is_refused(slurm: Slurm, folder: Path) -> None:
    """Debian writes `127.0.1.1 hostname` into /etc/hosts: other nodes would wait for minutes."""
    node = slurm.nodes[0]
    before = node.run(["cat", "/etc/hosts"])
    node.hosts(f"127.0.1.1 {node.name}\n{before}")
    try:
        # Named: it may still be busy with the end of another test's job, and those of this one would be elsewhere.
        job = slurm.sbatch(folder / "train.sbatch", f"--nodelist={node.name}")
        assert slurm.wait(job) == "FAILED", slurm.output(job)
    finally:
        node.hosts(before)
    assert slurm.output(job).startswith("node0 is 127.0.1.1 in its own /etc/hosts")
