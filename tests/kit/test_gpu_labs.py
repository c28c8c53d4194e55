"""A rehearsal of the labs that need a GPU: each runs whole on simulated GPUs, with tiny sizes.

It shows that a lab's code runs to its end, prints, draws and records. It shows nothing of a GPU: its times are the
CPU's, its memory is counted only, gloo plays NCCL (see ``tests/simulated``).
"""

import json
import os
import re
import subprocess
import sys

import pytest

from ddplab.recording import plan
from ddplab.recording.labs import record_lab
from ddplab.recording.script import lab_id
from ddplab.runtime.needs import NotShownHere
from tools import PATIENCE_S, ROOT

LABS = {lab_id(script): script for script in sorted((ROOT / "gallery/gpu").glob("plot_*.py"))}
# Labs for two NCCL ranks, which may share a GPU.
PAIR = {lab: LABS[lab] for lab in ("two-nccl-ranks", "nccl-at-fault")}
PAIR["nccl-failures"] = ROOT / "gallery/debugging/plot_33_nccl_failures.py"
TINY = '{"width": 32, "layers": 1, "heads": 2, "tokens": 8, "vocabulary": 64}'
SMALL = {  # the constants of a lab that make it heavy -> what they are here
    "host-runs-ahead": {"SIZE": "64", "BUSY_MS": "1"},
    "gpu-memory": {"MODEL": TINY, "BATCH": "2", "HOLES": "4", "HOLE_MIB": "1"},
    "cost-of-ddp": {"SHAPES": '{"many small": (4, 16, 4), "few large": (2, 32, 8)}'},
    "mfu": {"MODEL": TINY, "BATCH": "2", "SIZE": "64", "COMPILE": "False"},
    "batch-fills-card": {"MODEL": TINY, "MOST": "4"},
    "cuda-trace": {"MODEL": TINY, "BATCH": "2"},
    "sm-contention": {"SIZE": "64", "PRODUCTS": "2", "COPY_MIB": "1", "BLOCKS": "(1, 4)"},
    "pinned-memory": {"MIB": "1", "BATCHES": "3", "SIZE": "64"},
    "cuda-graphs": {"LAYERS": "2", "WIDTH": "16", "STEPS": "3"},
    "gpu-precision": {"MODEL": TINY, "BATCH": "2"},
    "nccl-at-fault": {"TIMEOUT_S": "2"},
    "two-nccl-ranks": {"WIDTHS": "(16, 32, 64, 32, 16, 48, 32, 8)", "CAP_MIB": "6 / 1024"},
    "bus-bandwidth": {"SIZES": "(2**12, 2**16)", "MODEL": TINY, "BATCH": "2"},
    "starved-gpu": {
        "IMAGE": "16",
        "BATCH": "2",
        "SIZE": "16",
        "SECONDS": "0.2",
        "STEPS": "2",
        "CASES": "((0, False, None), (1, True, 2))",
    },
    "out-of-memory": {"MODEL": TINY, "LIMIT_MIB": "0.4"},
}
# Values that do not depend on how fast a GPU is, as sources and runs on CPUs tell them.
COUNTED = {
    "cost-of-ddp": {  # of 8 gradients: what DDP does with each in one step (torch 2.11.0 and 2.13.0)
        "many_small_into": 8,
        "many_small_back": 8,
        "many_small_views_into": 8,
        "many_small_in_place": 8,
        "many_small_nccl": 0,
    },
    # The warning that the mode is a prototype comes in the first process of each format, and counts for nothing.
    "gpu-precision": {"waits_fp32": 0, "waits_bf16": 0, "waits_fp16": 1, "waits_fused": 0},
    "out-of-memory": {"ran": 4, "of": 6},  # the simulated GPU counts texts only, so 10 % more fit, too
    "nccl-at-fault": {"all_raised": 2},  # two ranks on one GPU are refused, whatever else is asked for
}
DRIVER = """
import json, re, sys
from pathlib import Path
from ddplab.recording.script import run
from ddplab.runtime import evidence

folder, told = Path(sys.argv[1]), {}
for script, small in json.loads(sys.argv[2]):
    text, script = Path(script).read_text(), folder / Path(script).name
    for name, value in small.items():  # a line such as NAME = 1, or a part of A, B = 1, 2
        alone = re.compile(rf"(?m)^{name} = .*$")
        pair = re.compile(rf"(?m)^(?=[A-Z_, ]*{name}[ ,])([A-Z_]+(?:, [A-Z_]+)+ = .*)$")
        if alone.search(text):
            text = alone.sub(lambda found: f"{name} = {value}", text)
        else:
            text, changed = pair.subn(lambda found: f"{found[0]}; {name} = {value}", text)
            assert changed == 1, (script, name)
    script.write_text(text)
    evidence.begin(folder / "evidence.json")
    outcome = run(script, lambda figure, number: [[t.get_text() for t in ax.get_xticklabels()] for ax in figure.axes])
    kept = evidence.end()
    told[script.name] = {**vars(outcome), "values": kept["values"], "launches": kept["launches"]}
print("\\n" + json.dumps(told))
"""


def rehearsed(labs, gpus, folder, **more):
    path = f"{ROOT / 'tests' / 'simulated'}:{ROOT / 'gallery'}"
    env = {
        **os.environ,
        "SIMULATED_GPUS": str(gpus),
        "SIMULATED_LOCKSTEP": "1",
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
    }
    env |= {"PATH": f"{ROOT / 'tests' / 'simulated'}:{os.environ['PATH']}"}
    env = {name: value for name, value in (env | more).items() if name != "CUDA_VISIBLE_DEVICES"}
    wanted = [(str(script), SMALL.get(lab, {})) for lab, script in labs.items()]
    command = [sys.executable, "-c", DRIVER, str(folder), json.dumps(wanted)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.apart
@pytest.mark.parametrize("gpus", [1, 2])
def test_labs_on_gpus_run_to_their_end_in_rehearsal(gpus, tmp_path):
    """On one and on two simulated GPUs: outputs, figures, values and ranks, whatever the numbers."""
    told = rehearsed(LABS, gpus, tmp_path)
    for lab in LABS:
        kept = told[LABS[lab].name]
        assert not kept["failed"], kept["failed"]
        if lab == "two-nccl-ranks" and gpus == 1:
            assert kept["needs"].startswith("needs 2 NCCL ranks")
            continue
        assert not kept["needs"]
        assert kept["values"], lab
        assert sum("printed" in block for block in kept["blocks"]) >= 2, lab
        assert kept["launches"], lab
        seen = {name: kept["values"][name]["value"] for name in COUNTED.get(lab, {})}
        assert gpus > 1 or seen == COUNTED.get(lab, {}), lab
        if gpus > 1:
            assert max(launch["ranks"] for launch in kept["launches"]) == gpus, lab


OUT_OF_MEMORY = """CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which \
1.06 GiB is free. Process 7 has 300.00 MiB memory in use. Including non-PyTorch memory, this process has 11.62 GiB \
memory in use. 12.00 GiB allowed; Of the allocated memory 9.50 GiB is allocated by PyTorch, with 46.00 MiB allocated \
in private pools (e.g., CUDA Graphs), and 1.50 GiB is reserved by PyTorch but unallocated."""


def test_the_parts_of_a_message_are_found_and_one_that_is_missing_is_not_invented():
    """In MiB, from the sentences of torch's allocator; without a fraction, NVML or other processes some are missing."""
    functions = LABS["out-of-memory"].read_text(encoding="utf-8").split("# Run it\n")[0]
    names = {}
    exec(compile(functions, "out-of-memory", "exec"), names)
    said = names["taken_apart"](OUT_OF_MEMORY)
    whole = {"asked for": 2048, "the card": 79.1 * 1024, "free": 1.06 * 1024, "another process": 300}
    whole |= {"this process": 11.62 * 1024, "allowed": 12288, "in tensors": 9728, "kept in pieces": 1536}
    assert said == pytest.approx(whole)
    fewer = OUT_OF_MEMORY.replace("12.00 GiB allowed; ", "").replace("Process 7 has 300.00 MiB memory in use. ", "")
    assert names["taken_apart"](fewer).keys() == whole.keys() - {"allowed", "another process"}
    assert names["taken_apart"]("") == {}
    assert names["taken_apart"]("and 0 bytes is reserved by PyTorch but unallocated") == {"kept in pieces": 0}


@pytest.mark.apart
@pytest.mark.parametrize(("nccl", "way"), [("2.28.9", "NCCL_HOSTID"), ("2.30.7", "NCCL_MULTI_RANK_GPU_ENABLE")])
def test_labs_for_two_nccl_ranks_run_on_one_gpu_that_both_share(nccl, way, tmp_path):
    """On one simulated GPU: two ranks take NCCL, and the evidence says by which of its two ways.

    It cannot show what NCCL does: gloo plays it, so no watchdog ends a process or leaves a dump, no kernel waits for a
    peer, no socket of NCCL is closed, and each fault looks as it does on gloo.
    """
    told = rehearsed(PAIR, 1, tmp_path, DDPLAB_SHARE_GPU="1", SIMULATED_NCCL=nccl)
    for lab, script in PAIR.items():
        kept = told[script.name]
        assert not kept["failed"], kept["failed"]
        assert not kept["needs"]
        pairs = [launch for launch in kept["launches"] if launch["ranks"] == 2 and launch.get("shared")]
        assert {(launch["backend"], launch["shared"]) for launch in pairs} == {("nccl", way)}, lab
    values = {lab: told[script.name]["values"] for lab, script in PAIR.items()}
    assert values["nccl-failures"]["ran"] == values["nccl-failures"]["cases"]
    assert values["nccl-at-fault"]["cases"]["value"] == 5
    assert values["two-nccl-ranks"]["matches"] == values["two-nccl-ranks"]["compared"]
    assert values["two-nccl-ranks"]["statements"]["value"] == 3, "all but B: no simulated stream waits for a sum"
    said = {
        lab: "\n".join(line for block in told[PAIR[lab].name]["blocks"] for line in block.get("printed", ()))
        for lab in PAIR
    }
    for lab, refused in (("nccl-at-fault", r"two on one GPU: .*\n +"), ("nccl-failures", "one gpu for two: ")):
        assert re.search(rf"{refused}first answer nccl-duplicate-gpu\b", said[lab]), (
            f"{lab}: others share, and it does not"
        )
    # No time of two ranks that take turns: neither recorded nor printed nor on an axis.
    assert {value["unit"] for value in values["two-nccl-ranks"].values()} == {""}
    blocks = told[PAIR["two-nccl-ranks"].name]["blocks"]
    assert not re.search(r"\d *([mµn]s|s|seconds)\b", said["two-nccl-ranks"])
    assert [figure["file"] for block in blocks for figure in block.get("figures", ())] == [[[]]]  # one, without ticks


@pytest.mark.parametrize("lab", LABS)
def test_without_a_gpu_a_lab_says_what_it_needs_and_shows_no_number(lab, monkeypatch):
    """Recorded as not run: no output, no figure, no value; and it says how to read what it would show."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    kept, figures = record_lab(LABS[lab])
    needs = "needs 2 NCCL ranks" if lab == "two-nccl-ranks" else "needs a GPU"
    assert kept["needs"].partition(":")[0] == needs, kept.get("failed")
    assert "failed" not in kept
    assert not any(kept["blocks"][number].keys() - {"code"} for number in range(len(kept["blocks"])))
    assert (figures, kept["values"], kept["launches"]) == ({}, {}, [])
    text = LABS[lab].read_text(encoding="utf-8")
    for heading in ("What it will show", "Takeaway", "Change it: predict, then run", "What this does not mean"):
        assert f"# {heading}\n# ---" in text, heading


def test_the_labs_that_need_a_gpu_come_first_where_there_is_one():
    """The recorder knows all of them."""
    first = {lab for _, group in plan.ORDER[:2] for lab in group}
    assert first == {*LABS, *PAIR}
    assert set(SMALL) == set(LABS)


def test_a_lab_needs_as_many_gpus_as_it_says(monkeypatch):
    """It counts those that this machine shows, at most eight."""
    from ddplab.apparatus import gpu

    monkeypatch.setattr(gpu, "cards", lambda: [{}] * 9)
    assert gpu.needs_gpus() == 8
    assert gpu.worlds(8) == [1, 8]
    monkeypatch.setattr(gpu, "cards", lambda: [{}])
    assert gpu.worlds(gpu.needs_gpus()) == [1]
    with pytest.raises(NotShownHere, match="needs 2 GPUs; this machine has 1"):
        gpu.needs_gpus(2)
