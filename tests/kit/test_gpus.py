"""Rehearsed on simulated GPUs: who takes which device and backend."""

import ctypes
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ddplab.recording import machine
from ddplab.runtime import needs, rank
from ddplab.runtime.shared_gpu import share_gpu
from tools import PATIENCE_S, ROOT, free_port

# Run where GPUs are simulated; prints one JSON object. Programs are forked, so that torch is imported once.
DRIVER = """
import json, os, sys, tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from ddplab import launch
from ddplab.runtime import evidence
from ddplab.apparatus.machines import Fork, Program
from ddplab.runtime.needs import ON_CPU, a_gpu_each
from ddplab.apparatus.recipes import FOLDER

count, port = int(os.environ["SIMULATED_GPUS"]), int(sys.argv[1])
folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))


def worker(touch):
    import torch, torch.distributed as dist
    from ddplab import device
    from ddplab.runtime.clock import now, seconds, stamp

    begin = stamp()
    ones = torch.ones(2, device=device() if touch else "cpu")
    dist.all_reduce(ones)
    end = stamp()
    now()
    assert seconds(begin, end) >= 0
    return dist.get_backend(), str(device()), torch.cuda.current_device() if torch.cuda.is_available() else None


def by_gloo(touch):
    import torch, torch.distributed as dist
    from ddplab import device

    dist.barrier()
    dist.all_reduce(torch.ones(2, device=device()), group=dist.new_group(backend="gloo"))


def over_a_slow_link():
    # One transfer that the GPU has ready: on which stream the link waits for it, and when it says that was.
    import torch
    from ddplab.runtime.slowlink import SlowLink, _Job

    link, gate, streams, tensor = SlowLink(0.01, 1e9), torch.futures.Future(), [], torch.ones(1)
    ready = torch.cuda.Event(enable_timing=True)
    ready.record()
    real = SimpleNamespace(wait=lambda: streams.append(torch.cuda.current_stream() is torch.cuda.current_stream()))
    link._sent.put(_Job(tensor, link.seconds(4), 0.0, ready, real, gate))
    gate.wait()
    (sent,) = link.log
    return streams, ready.at_s <= sent.launched_s <= sent.done_s - 0.01


def noted(*arguments, worker=worker, **options):
    evidence.begin(folder / "evidence.json")
    ranks = launch(worker, *arguments, **options, quiet=True)
    (facts,) = evidence.end()["launches"]
    return ranks, {name: facts.get(name) for name in ("backend", "gpu", "gpus", "nccl", "chosen")}


def program(name, ranks, *arguments, own=False):
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    meet |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    started = []
    for rank in range(ranks):
        one = {"CUDA_VISIBLE_DEVICES": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if own else {}
        env = {**meet, "RANK": str(rank), "LOCAL_RANK": str(rank), **one}
        start = partial(Fork, cwd=folder, stderr=folder / f"{name}.{rank}")
        started.append(Program(["python", str(FOLDER / name), *arguments], env, start))
    ended = [program.wait(float(sys.argv[3])) for program in started]
    return ended, started[0].output, (folder / f"{name}.0").read_text()


found = {"two": noted(2, True), "three": noted(3, True), "two beside eight": noted(2, True, up_to=8)}
found |= {"by gloo": noted(2, True, worker=by_gloo), "untouched": noted(2, False)}
found |= {"hidden": noted(2, True, env=ON_CPU), "each": a_gpu_each(2)}
found["link"] = launch(over_a_slow_link, 1, quiet=True)[0]
if count == 8:  # the programs, of two ranks, would do as on two
    sys.exit(print("\\n" + json.dumps(found)))
found["hello_ranks"] = program("hello_ranks.py", 2, "--patience=900", "--mib=1")
tiny = "--width=16 --layers=1 --context=16 --batch=8 --steps=2 --log-every=1 --save-every=999".split()
found["train"] = program("train.py", min(count, 2), *tiny)
found["hello_ddp"] = program("hello_ddp.py", 2)
(folder / "mine.py").write_text('''
from torch import nn, ones
def build():
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), ones(4, 64)
''')
(folder / "tune.py").write_text('''
import sys
from ddplab import cli
from ddplab.model.tuning import measure
measure.MOST_ROUNDS = measure.LEAST_ROUNDS
sys.exit(cli.main(["tune-buckets", "mine:build", "--caps=1", "--seconds=900", "--json"]))
''')
FOLDER = folder
found["tune"] = program("tune.py", 2)
if count > 1:
    found["tune, one GPU shown"] = program("tune.py", 2, own=True)
print("\\n" + json.dumps(found))
"""


@pytest.mark.parametrize("count", [1, 2, 8])
def test_on_simulated_gpus_each_rank_has_its_own_or_all_share_under_gloo(count, tmp_path):
    """launch and what an edition notes on 1, 2 and 8 GPUs; on 1 and 2 hello_ranks, train, hello_ddp, tune-buckets."""
    path = f"{ROOT / 'tests' / 'simulated'}:{ROOT / 'gallery'}"
    env = {**os.environ, "SIMULATED_GPUS": str(count), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, str(free_port()), str(tmp_path), str(PATIENCE_S)],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])

    def expected(ranks, nccl):
        backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
        return [[backend, f"cuda:{rank % count}", rank % count] for rank in range(ranks)]

    for name, ranks, largest in (("two", 2, 2), ("three", 3, 3), ("two beside eight", 2, 8)):
        nccl = count >= largest
        there, facts = found[name]
        assert there == expected(ranks, nccl)
        assert (facts["backend"], facts["gpus"], facts["nccl"]) == ("nccl" if nccl else "gloo", count, "2.28.9")
        assert facts["gpu"] == "Simulated GPU 0"
        assert not facts["chosen"]
    there, facts = found["untouched"]  # nothing of it was on a GPU
    assert there == expected(2, count > 1)
    assert (facts["backend"], facts["gpu"], facts["gpus"]) == ("gloo", None, count)
    _, facts = found["by gloo"]  # NCCL was there, and had nothing but a barrier to do
    assert (facts["backend"], facts["gpu"]) == ("gloo", "Simulated GPU 0")
    there, facts = found["hidden"]
    assert there == [["gloo", "cpu", None]] * 2
    assert (facts["backend"], facts["gpu"], facts["gpus"], facts["chosen"]) == ("gloo", None, 0, True)
    assert found["each"] == ({} if count > 1 else {"CUDA_VISIBLE_DEVICES": ""})

    assert found["link"] == [[True], True]  # one stream, its own: elsewhere each question gets a new one

    if count == 8:
        return
    codes, said, _ = found["hello_ranks"]
    assert codes == ([0, 0] if count > 1 else [1, 1]), said
    assert ("all on one GPU" in " ".join(said.split())) == (count == 1), said
    assert found["train"][0] == [0] * min(count, 2), found["train"]
    assert "cuda, bf16: 2 steps" in found["train"][1]
    codes, said, error = found["hello_ddp"]
    assert (codes, error) == ([0, 0], "")
    shared, *own = [found[name] for name in ("tune", "tune, one GPU shown") if name in found]
    for (codes, said, error), nccl in ((shared, count > 1), *((one, True) for one in own)):
        assert codes == [0, 0], error
        answer = json.loads(said)
        assert (answer["backend"], answer["gpus"]) == ("nccl" if nccl else "gloo", min(count, 2))
        assert any("share a GPU" in note for note in answer["notes"]) == (not nccl)


ASKED = """
import importlib.util, os, sys
import torch

torch.cuda.is_available() if sys.argv[1] == "asked" else None
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
print(torch.cuda.is_available(), torch.cuda.device_count(), importlib.util.find_spec("ijson") is None)
torch.ones(1, device="cuda")
import ijson
"""


@pytest.mark.parametrize(
    ("asked", "hidden", "printed", "error"),
    [
        ("not", "", "True 1 False", ""),
        ("not", "nbclient,ijson", "True 1 True", "ModuleNotFoundError: No module named 'ijson'"),
        ("asked", "", "False 0 False", "Cannot re-initialize CUDA in forked subprocess"),
    ],
)
def test_the_simulation_refuses_what_a_real_machine_would(asked, hidden, printed, error):
    """CUDA in a fork of a process that has asked for it, and packages that the machine lacks."""
    env = {**os.environ, "SIMULATED_GPUS": "1", "HIDE_PACKAGES": hidden, "PYTHONPATH": str(ROOT / "tests/simulated")}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-c", ASKED, asked]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.stdout.strip(), ran.returncode) == (printed, 1 if error else 0)
    assert error in ran.stderr


# -- several NCCL ranks on one GPU ------------------------------------------------------------------

NODES = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
ALLOWED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "nccl", "expected"),
    [
        ("1", 2, 1, (2, 28, 9), {"NCCL_HOSTID": "ddplab-1", **NODES}),
        ("1", 4, 1, (2, 29, 7), {"NCCL_HOSTID": "ddplab-1", **NODES}),
        ("1", 2, 1, (2, 30, 3), ALLOWED),
        ("1", 4, 2, (2, 31, 0), ALLOWED),
        ("1", 3, 1, (2, 30, 3), {}),  # about two on a GPU, says NCCL
        ("1", 2, 2, (2, 28, 9), {}),  # one each
        ("1", 2, 0, None, {}),
        ("0", 2, 1, (2, 30, 7), {}),  # not asked, whatever NCCL would allow
        ("", 2, 1, (2, 28, 9), {}),
    ],
)
def test_ranks_share_a_gpu_under_nccl_where_that_is_asked(asked, ranks, gpus, nccl, expected, monkeypatch):
    """By what the NCCL that is loaded takes; rank 1 of them."""
    environment = {"DDPLAB_SHARE_GPU": asked}
    monkeypatch.setattr(os, "environ", environment)
    assert share_gpu(1, ranks, gpus, nccl) == next(iter(expected), None)
    assert environment == {"DDPLAB_SHARE_GPU": asked, **expected}


def test_what_the_environment_says_of_nccl_stays(monkeypatch):
    """A lab that wants to see the refusal sets the switch to 0."""
    monkeypatch.setattr(os, "environ", {"DDPLAB_SHARE_GPU": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "0"})
    share_gpu(0, 2, 1, (2, 30, 7))
    assert os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] == "0"


@pytest.mark.parametrize("loaded", [22809, 23007, None])
def test_the_nccl_that_is_loaded_decides_and_is_noted(loaded, monkeypatch):
    """torch was compiled with 2.28.9, whatever LD_PRELOAD has put before its own; a torch without a library says so."""

    def library(name, mode):
        assert (name, mode) == ("libnccl.so.2", os.RTLD_NOLOAD), "one that was not loaded is not asked"
        if loaded is None:
            raise OSError("cannot open shared object file")
        return SimpleNamespace(ncclGetVersion=lambda number: setattr(number._obj, "value", loaded))

    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(os, "environ", {"DDPLAB_SHARE_GPU": "1"})
    job = SimpleNamespace(rank=0, nproc=2, up_to=2)
    facts = rank._facts(job)
    found = {22809: ("2.28.9", "NCCL_HOSTID"), 23007: ("2.30.7", "NCCL_MULTI_RANK_GPU_ENABLE")}
    assert (facts["nccl"], facts["shared"]) == found[loaded or 22809]
    assert facts["backend"] == "nccl"
    assert machine._nccl() is None, "no wheel, and whether torch was imported makes no difference"
    os.environ["LD_PRELOAD"] = "/tmp/libnccl.so.2"
    assert machine._nccl() == {22809: "2.28.9", 23007: "2.30.7"}.get(loaded), "the machine's facts name it, too"


@pytest.mark.parametrize(("gpus", "asked", "ranks"), [(0, "1", 0), (1, "0", 0), (1, "1", 2), (2, "0", 2), (9, "0", 8)])
def test_what_needs_two_nccl_ranks_gets_one_on_each_gpu_or_two_that_share(gpus, asked, ranks, monkeypatch):
    """Else it says what would do."""
    monkeypatch.setattr(needs, "cards", lambda: [{}] * gpus)
    monkeypatch.setenv("DDPLAB_SHARE_GPU", asked)
    if ranks:
        assert needs.needs_nccl_ranks() == ranks
        return
    with pytest.raises(needs.NotShownHere, match="needs 2 NCCL ranks: 2 GPUs, or one and DDPLAB_SHARE_GPU=1"):
        needs.needs_nccl_ranks()
