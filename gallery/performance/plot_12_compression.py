"""
Compression hooks: bytes, error, time
=====================================

What do torch's compression hooks send, how wrong is what arrives, and when is it faster?
This lab counts the bytes of each, compares every step with the exact gradient, and times the backward over a link that is slow on purpose.
It serves :ref:`performance-compression`; :doc:`/labs/internals/plot_12_comm_hooks` casts by hand.

A cast rounds each number; PowerSGD sends two thin matrices in place of a wide one.
Error feedback adds what was left out to the next step, so the sum of the steps comes out right.

:Level: deep, 20 minutes
:Proves: perf-powersgd-bytes perf-powersgd-feedback perf-powersgd-one-bucket-on-gloo
"""

# %%
# Over the slow link
# ------------------
# torch's hooks call ``dist.all_reduce``; here ``DistOverLink`` gives them another one, which goes over ``ddplab.runtime.slowlink.SlowLink``.

import math
import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch, record
from ddplab.apparatus.gaps import flat_gradients
from ddplab.apparatus.over_link import DistOverLink
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots
from ddplab.apparatus.postmortem import postmortem
from ddplab.runtime.clock import now
from ddplab.runtime.needs import ON_CPU
from ddplab.runtime.slowlink import SlowLink

WIDTH, LAYERS, BATCH, RANKS, STEPS = 256, 4, 32, 2, 30
LATENCY_S, BYTES_PER_S = 1e-3, 20e6
FIRST = 2  # the step in which PowerSGD starts, once buckets are rebuilt

# %%
# The hooks
# ---------
# A torch that was built without NCCL refuses ``bf16_compress_hook``, whatever backend is used.
# The check looks at the hook's name, so the same function under another name passes.

power_sgd = powerSGD_hook.powerSGD_hook
HOOKS = {  # hook, options of PowerSGDState
    "float32": (default_hooks.allreduce_hook, None),
    "float16": (default_hooks.fp16_compress_hook, None),
    "bfloat16": (lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket), None),
    "PowerSGD, rank 1": (power_sgd, {"rank": 1}),
    "PowerSGD, rank 4": (power_sgd, {"rank": 4}),
    "  no feedback": (power_sgd, {"rank": 4, "feedback": False}),
    "  nor warm start": (power_sgd, {"rank": 4, "feedback": False, "warm": False}),
}


def state_of(rank, warm=True, feedback=True):
    options = {"matrix_approximation_rank": rank, "start_powerSGD_iter": FIRST}
    options |= {"warm_start": warm, "use_error_feedback": feedback}
    return powerSGD_hook.PowerSGDState(None, **options, orthogonalization_epsilon=1e-8)


def network(layers):
    pairs = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


def by_its_name():
    model = DistributedDataParallel(network(1))
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)


try:
    launch(by_its_name, RANKS, env=ON_CPU, quiet=True)
    answer = "accepted on gloo: this torch was built with NCCL"
except LaunchError as error:
    answer = str(error).splitlines()[-1]
print(answer)
assert answer.startswith("accepted" if dist.is_nccl_available() else "TypeError: BF16")

# %%
# The run
# -------
# In every step the ranks compute the gradient twice: once under ``no_sync``, averaged exactly, and once through the hook.
# The optimizer steps with what the hook gave, as in training.
# All gradients are in one bucket, so nothing overlaps and times can be predicted by hand.
# The inputs have a few large directions and many small ones, as data often do; the batch is the same in every step.


def worker(hook, options):
    link = SlowLink(LATENCY_S, BYTES_PER_S)
    default_hooks.dist = powerSGD_hook.dist = DistOverLink(link)
    torch.manual_seed(0)
    model = DistributedDataParallel(network(LAYERS).to(device()))
    state = state_of(**options) if options else None
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    torch.manual_seed(dist.get_rank() + 1)
    x, target = torch.randn(2, BATCH, WIDTH).to(device())
    x *= 5 / torch.arange(1, WIDTH + 1, device=device())
    errors, sums, times = [], 0, []
    for step in range(FIRST + STEPS):
        with model.no_sync():
            nn.functional.mse_loss(model(x), target).backward()
        exact = flat_gradients(model).to(device())
        dist.all_reduce(exact.div_(dist.get_world_size()))
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        dist.barrier()
        began = now()
        loss.backward()
        times.append(1e3 * (now() - began))
        sent = flat_gradients(model).to(device())
        if step >= FIRST:
            sums += torch.stack([exact, sent])
            summed = (sums[1] - sums[0]).norm() / sums[0].norm()
            errors.append((((sent - exact).norm() / exact.norm()).item(), summed.item()))
        optimizer.step()
        model.zero_grad()
    last = [t.nbytes for t in link.log if t.launched_s >= began]
    missing = (sums[0] - sums[1]).norm().item()
    kept = [tensor.cpu() for tensor in state.error_dict.values()] if options else []
    return list(zip(*errors, strict=True)), last, times[FIRST:], loss.item(), missing, kept


# %%
# *Predicted* is the time of the transfers alone: latency plus bytes ÷ rate for each, one after the other.
# The error of a *step* is the distance from the exact gradient, relative to its norm; the error of the *sum* is that of the sum of all gradients so far.

print("                   all-     bytes      backward, ms     error of  error of  loss at")
print("                reduces      sent  predicted  median      a step   the sum  the end")
errors, losses, missing = {}, {}, {}
for name, case in HOOKS.items():
    ranks = launch(worker, RANKS, *case, quiet=True)
    (steps, sums), nbytes, times, losses[name], missing[name], _ = ranks[0]
    assert ranks[1][1] == nbytes
    errors[name] = steps, sums
    predicted = sum(1e3 * (LATENCY_S + n / BYTES_PER_S) for n in nbytes)
    middle = statistics.median(times)
    row = f"{name:18} {len(nbytes):4} {sum(nbytes):9,} {predicted:10.1f} {middle:7.1f}"
    print(f"{row}  {statistics.median(steps):10.1e} {sums[-1]:9.1e} {losses[name]:8.4f}")
    key = name.strip().replace(", ", "_").replace(" ", "_").lower()
    record("bytes", **{f"{key}_sent": sum(nbytes)})
    record("ms", **{f"{key}_backward": middle})
    error = statistics.median(steps)
    record(**{f"{key}_error": error, f"{key}_sum": sums[-1], f"{key}_loss": losses[name]})
    rank, width = (case[1] or {"rank": 0})["rank"], 2 if "16" in name else 4
    # P and Q in place of a matrix, each in an all-reduce of its own, behind the biases
    sent = [WIDTH, rank * WIDTH, rank * WIDTH] if rank else [WIDTH**2 + WIDTH]
    assert nbytes == [width * LAYERS * elements for elements in sent]
    if kept := [tensor for *_, of_rank in ranks for tensor in of_rank]:  # with feedback
        mean = (kept[0] + kept[1]) / RANKS
        assert math.isclose(mean.norm(), missing[name], rel_tol=1e-3)  # sent later, not lost

full, alone, cold = (errors[name] for name in list(HOOKS)[-3:])
assert full[1][-1] < alone[1][-1]  # feedback corrects the sum
assert 0 < missing["PowerSGD, rank 4"] < missing["  no feedback"]
assert statistics.median(alone[0]) < statistics.median(cold[0])  # a warm start, the step
exact, best, middle, worst = (losses[name] for name in ("float32", *list(HOOKS)[-3:]))
assert exact < best < middle < worst

# %%
# Step by step, for the variants of PowerSGD with rank 4 and for bfloat16.

# drawing
fig, axes = subplots(1, 2, height_in=3.0, sharey=True)
describe(fig, "Relative error of each step and of the sum of all steps so far, four hooks")
looks = {"PowerSGD, rank 4": (ACCENT, "-"), "  no feedback": (INK, "--")}
looks |= {"  nor warm start": (INK, ":"), "bfloat16": (MUTED, "-")}
for ax, which, title in zip(axes, (0, 1), ("of each step", "of the sum so far"), strict=True):
    for name, (color, line) in looks.items():
        y, label = errors[name][which], name.strip()
        ax.plot(range(FIRST, FIRST + STEPS), y, line, color=color, label=label)
    ax.set(xlabel="step", yscale="log")
    ax.set_title(f"Relative error {title}", fontsize=9.5)
axes[0].set_ylabel("relative error")
axes[1].legend(fontsize=8.5)

# %%
# PowerSGD with several buckets, on gloo
# --------------------------------------
# Its callbacks launch another all-reduce and wait for it, and on gloo they run in the threads that would carry it out (torch 2.13).
# One bucket works.
# With six, either the threads run out and the ranks hang, or the ranks launch in different orders and one aborts: chance decides which.


def several_buckets(cap):
    model = DistributedDataParallel(network(6), bucket_cap_mb=cap)
    model.register_comm_hook(state_of(rank=4), powerSGD_hook.powerSGD_hook)
    for _ in range(20):
        model(torch.ones(2, WIDTH)).sum().backward()


for cap, passes in ((25, True), (0.25, False)):
    limit_s = 60 if passes else 5
    endings = postmortem(several_buckets, RANKS, cap, timeout_s=limit_s, env=ON_CPU)
    print(f"bucket_cap_mb={cap:5}: " + ", ".join(f"rank {e.rank} {e.how}" for e in endings))
    assert all(e.how == "returned" for e in endings) == passes

# %%
# What to notice
# --------------
#
# - A cast halves the bytes, and over this link the backward: :measured:`compression.float32_backward:.0f` to :measured:`compression.float16_backward:.0f`.
#   PowerSGD of rank 1 sends :measured:`compression.powersgd_rank_1_sent:,.0f` in place of :measured:`compression.float32_sent:,.0f`, in three all-reduces that wait for each other, and pays three latencies.
# - What PowerSGD of rank 4 sends in one step is far from the gradient: by :measured:`compression.nor_warm_start_error:.2f` of its norm from a random start each time, :measured:`compression.no_feedback_error:.2f` if it starts from the result of the last step.
# - Error feedback adds what was left out to the next step.
#   That makes each single step *worse* (:measured:`compression.powersgd_rank_4_error:.2f`) and the sum of all steps right: off by :measured:`compression.powersgd_rank_4_sum:.2f` of its norm with it, :measured:`compression.no_feedback_sum:.2f` without; the losses follow the sum.
#
# What this does not mean
# -----------------------
#
# That compression is faster for you: over a fast link the casts and products cost more than the bytes.
# That a small error is harmless or a large one harmful: only the loss of your own training says.
#
# Change it: predict, then run
# ----------------------------
# Set ``BYTES_PER_S`` to 2e9.
# Is PowerSGD still faster than float32?
#
# Expect: no, its products and three latencies take longer than all bytes of float32.
#
# Say it aloud
# ------------
# "A cast halves the bytes, and PowerSGD sends far fewer, in three all-reduces that wait for each other.
# With error feedback what was left out comes one step later; without it, it is lost.
# Compression trades accuracy and computing for bytes, so it pays where the link is slow."
