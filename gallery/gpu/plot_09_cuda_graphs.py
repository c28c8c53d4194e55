"""
A DDP step as a CUDA graph
==========================

What does a step save when the GPU replays it instead of being told every kernel?
It serves :ref:`gpu-graphs`.

A graph keeps the kernels of a step with their addresses, and one call replays all of them.
What the host decides, it decides once: shapes, addresses and branches stay those of the capture.

:Level: deep, 15 minutes
"""

# %%
# What it will show
# -----------------
# A step of many small layers, plain and in DDP under NCCL, run as usual and replayed from a CUDA graph: the GPU's time, the host's time, and whether both train to the same weights.
# The host's time is what a graph saves; where the GPU's time falls as well, the step was waiting for the host.
# DDP can be captured under conditions that torch documents: eleven steps of warm-up in a side stream, in which DDP is built, too, and no asynchronous error handling of NCCL.
# With one rank the graph of DDP holds its multiplications and copies, and no kernel of NCCL: it launches none for a sum over one rank (``ncclLaunchOneRank`` in ``src/device/onerank.cu``, NCCL 2.28.9; read, not run).
# If a capture is refused here, the table says with which error.

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gpu import DDP_WARM_UP, gpu_times_ms, host_time_ms, needs_gpus, worlds
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, describe, name_rows, subplots
from ddplab.runtime.clock import now

LAYERS, WIDTH, BATCH = 48, 256, 32
STEPS = 20
ENV = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


def build(wrap):
    """A model after its warm-up, its step, and its parameters."""
    here = device()
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(here)
    x = torch.rand(BATCH, WIDTH, device=here)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model = DistributedDataParallel(network, device_ids=[here]) if wrap else network
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step():
            optimizer.zero_grad(set_to_none=True)
            (model(x) - x).square().mean().backward()
            optimizer.step()

        for _ in range(DDP_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    now()
    return step, list(network.parameters())


def captured(step):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph.replay


def worker(wrap):
    (usual, kept), (step, parameters) = build(wrap), build(wrap)
    try:
        replay = captured(step)
    except RuntimeError as error:
        return {"refused": str(error).splitlines()[0]}
    for _ in range(STEPS):
        usual()
        replay()
    now()
    pairs = zip(kept, parameters, strict=True)
    differ = max((a - b).abs().max().item() for a, b in pairs)
    cases = {"as usual": usual, "replayed": replay}
    on_host = {name: host_time_ms(run) for name, run in cases.items()}
    return {"gpu": gpu_times_ms(cases, rounds=20), "host": on_host, "differ": differ}


# %%
# Run it
# ------

gpus = needs_gpus()
results = {}
for ranks in worlds(gpus):
    for wrap in (False, True) if ranks == 1 else (True,):
        name = f"{'DDP' if wrap else 'plain'}, {ranks} rank{'s' * (ranks > 1)}"
        results[name] = found = launch(worker, ranks, wrap, env=ENV, quiet=True)[0]
        if "refused" in found:
            print(f"{name:16} capture refused: {found['refused']}")
            continue
        for case, gpu_ms in found["gpu"].items():
            print(
                f"{name:16} {case:10} GPU {gpu_ms:7.3f} ms   host {found['host'][case]:7.3f} ms"
            )
        print(
            f"{name:16} largest difference of a weight after {STEPS} steps: {found['differ']:g}"
        )

# %%

# drawing
done = {name: found for name, found in results.items() if "gpu" in found}
fig, ax = subplots(height_in=2.4)
describe(fig, "Time of a step as usual and replayed, for the GPU and the host")
rows = [(name, case) for name in done for case in ("as usual", "replayed")]
for row, (name, case) in enumerate(rows):
    ax.barh(row - 0.2, done[name]["gpu"][case], 0.36, color=ACCENT, ec=INK, lw=0.5)
    ax.barh(row + 0.2, done[name]["host"][case], 0.36, color=FAINT, ec=INK, lw=0.5)
name_rows(ax, [f"{name}, {case}" for name, case in rows])
ax.set_xlabel("ms: violet GPU, light host")
ax.set_title("A step, told kernel by kernel and replayed")

# %%
# Takeaway
# --------

record(captured=len(done), tried=len(results))
for name, found in done.items():
    gpu = found["gpu"]["as usual"] / found["gpu"]["replayed"]
    host = found["host"]["as usual"] - found["host"]["replayed"]
    same = "to the same weights" if found["differ"] == 0 else "to other weights"
    print(
        f"{name}: the step takes 1/{gpu:.2f} of its time, the host saves {host:.3f} ms; both train {same}."
    )
    key = name.split(",")[0].lower() + ("_all" if name.endswith("ranks") else "")
    record(**{f"{key}_faster": gpu, f"{key}_differ": found["differ"]})

# %%
# Change it: predict, then run
# ----------------------------
# Set ``WIDTH`` and ``BATCH`` to 4096. What is left of the gain?
#
# What this does not mean
# -----------------------
# That any step can be captured: shapes must not change, and nothing in it may wait for the GPU (:doc:`plot_01_host_runs_ahead`).
# Without asynchronous error handling nobody ends a job that hangs; that is a price.
#
# Say it aloud
# ------------
# "A CUDA graph replaces the launches of a step by one, so it helps where the step waits for the host.
# DDP needs eleven steps of warm-up in a side stream, and NCCL's asynchronous error handling off.
# It buys launch time, and pays with fixed shapes and with nobody who ends a hang."
