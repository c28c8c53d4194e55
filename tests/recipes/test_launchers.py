"""One program under each launcher that the chapter shows; torchrun and Slurm on nodes have files of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ddplab.apparatus.machines import PATH, loopback
from ddplab.apparatus.recipes import FOLDER, torchrun
from slurm import Slurm
from tools import PATIENCE_S, free_port, missing

SMALL = ["--steps=4", "--width=16", "--layers=1", "--context=16", "--batch=8", "--save-every=999"]
CLEAN = {name: text for name, text in os.environ.items() if not name.startswith(("RANK", "SLURM_", "TORCHELASTIC_"))}


def python(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=FOLDER, env=CLEAN, capture_output=True, text=True, timeout=PATIENCE_S
    )


def validation(said: str) -> str:
    return re.search(r"validation loss \S+", said)[0]


def test_spawn_trains_as_torchrun_does(tmp_path: Path) -> None:
    """The same program, unchanged: two ranks end with the same validation loss under both."""
    spawned = python("spawn.py", "2", "train.py", *SMALL, f"--out={tmp_path}/spawn")
    assert spawned.returncode == 0, spawned.stderr
    said = torchrun("train.py", 2, *SMALL, f"--out={tmp_path}/torchrun", timeout_s=PATIENCE_S)
    assert validation(spawned.stdout) == validation(said)


def test_spawn_passes_on_the_exit_code() -> None:
    """2: train.py refuses a batch that two ranks cannot share; torchrun would say 1."""
    assert python("spawn.py", "2", "train.py", "--batch=7").returncode == 2
    usage = python("spawn.py", "train.py")
    assert usage.returncode == 1
    assert usage.stderr.startswith("usage:")


def test_notebook(tmp_path: Path) -> None:
    """Every cell of the notebook, in a kernel: torchrun, a written file, launch, and the spawn that fails."""
    try:
        import ipykernel  # noqa: F401
        import nbclient
        import nbformat
    except ImportError as error:
        missing(f"{error.name} is not installed: pip install nbclient ipykernel")
    for name in ("train.py", "data"):
        source = FOLDER / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    notebook = nbformat.read(FOLDER / "notebook.ipynb", as_version=4)
    env = {"PATH": PATH, "OMP_NUM_THREADS": "1"}
    client = nbclient.NotebookClient(
        notebook, timeout=int(PATIENCE_S), kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**CLEAN, **env})
    trained, _, summed, gradients, spawned = [
        "".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert "complete after step 20" in trained
    assert "the sum over 2 ranks is 3" in summed
    first, second = json.loads(gradients[gradients.index("[") :])
    assert first == second
    assert "Can't get attribute 'hello'" in spawned
    assert "ProcessExitedException" in spawned


def test_slurm_numbers_processes(slurm: Slurm, tmp_path: Path) -> None:
    """srun sets SLURM_ variables and none of those that init_process_group reads."""
    script = tmp_path / "variables.sbatch"
    each = tmp_path / "%t.json"  # a file per task: srun may cut a line of over 1,024 characters in two
    script.write_text(f"#!/bin/bash\nsrun --output={each} {sys.executable} {FOLDER / 'variables.py'}\n")
    job = slurm.sbatch(script, "--nodes=2", "--ntasks-per-node=2")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    told = [json.loads((tmp_path / f"{task}.json").read_text()) for task in range(4)]
    place = [(v["SLURM_PROCID"], v["SLURM_NODEID"], v["SLURM_LOCALID"]) for v in told]
    assert place == [("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1")]
    assert all((v["SLURM_NTASKS"], v["SLURM_STEP_NUM_TASKS"]) == ("4", "4") for v in told)
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & set(told[0])


# -- Kubernetes: the manifest against the schema, and what torchrun does with the variables of the pods --------


def manifest() -> dict:
    return yaml.safe_load((FOLDER / "trainjob.yaml").read_text())


@pytest.fixture
def validate():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with nbformat")
    schema = yaml.safe_load(Path(__file__).with_name("trainjob_schema.yaml").read_text())
    return lambda job: jsonschema.Draft202012Validator(schema).validate(job)


def test_trainjob_fits_the_published_schema(validate) -> None:
    validate(manifest())


@pytest.mark.parametrize(
    ("where", "value", "complaint"),
    [
        ("numNodes", "2", "'2' is not of type 'integer'"),
        ("numProcPerNode", "auto", "'auto' is not of type 'integer'"),
        ("nprocPerNode", 2, "'nprocPerNode' was unexpected"),
        ("command", "torchrun train.py", "'torchrun train.py' is not of type 'array'"),
        ("resourcesPerNode", {"limits": {"memory": "64 GB"}}, "'64 GB' does not match"),
    ],
)
def test_the_schema_refuses(validate, where: str, value: object, complaint: str) -> None:
    job = manifest()
    job["spec"]["trainer"][where] = value
    with pytest.raises(Exception, match=re.escape(complaint)):
        validate(job)


def test_the_schema_wants_a_runtime(validate) -> None:
    job = manifest()
    del job["spec"]["runtimeRef"]["name"]
    with pytest.raises(Exception, match="'name' is a required property"):
        validate(job)


def test_torchrun_in_pods(tmp_path: Path) -> None:
    """Two agents with the command of the manifest and the variables that Kubeflow's runtime sets in each pod."""
    command = manifest()["spec"]["trainer"]["command"]
    assert command == ["torchrun", "/workspace/train.py"]  # no options: all comes from the environment
    meet = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1"}
    meet["PET_MASTER_PORT"] = str(free_port())
    with loopback(2) as hosts:
        pods = [
            host.start(
                ["torchrun", str(FOLDER / "train.py"), *SMALL, f"--out={tmp_path}"], {**meet, "PET_NODE_RANK": node}
            )
            for host, node in zip(hosts, "01", strict=True)
        ]
        said = pods[0].wait(PATIENCE_S) or pods[0].output
    assert "of 2 ranks" in said
    assert "complete after step 4" in said, said
