"""
Accumulation, right and wrong
=============================

Five loops accumulate over four micro-batches; which of them give the gradient of the whole batch, on all ranks, and what do they send?
Each wrong one is one line away from the right one, and three of them train without an error.
It serves :ref:`performance-alternatives`; the first two mistakes are also in the :ref:`museum <museum>`.

Whether a backward sends is decided in its forward: under ``no_sync`` it only adds up.
The last micro-batch must sync, and each loss must be divided by their number.

:Level: core, 15 minutes
"""

# %%
# Five loops
# ----------
# They differ in what is under ``no_sync`` and in the division of the loss.
# All communication goes over a link that is slow on purpose, ``ddplab.runtime.slowlink.SlowLink``, which keeps a log.

import contextlib
import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.runtime.clock import now
from ddplab.runtime.slowlink import SlowLink

K, WIDTH, LAYERS, MICRO, RANKS, STEPS = 4, 256, 4, 32, 2, 8
LATENCY_S, BYTES_PER_S = 1e-3, 50e6


def loss_of(model, x):
    return (model(x) - x).square().mean()


def right(model, micro):
    with model.no_sync():
        for x in micro[:-1]:
            (loss_of(model, x) / K).backward()
    (loss_of(model, micro[-1]) / K).backward()


def without_no_sync(model, micro):
    for x in micro:
        (loss_of(model, x) / K).backward()


def no_sync_around_backward_only(model, micro):
    for i, x in enumerate(micro):
        loss = loss_of(model, x) / K
        with model.no_sync() if i < K - 1 else contextlib.nullcontext():
            loss.backward()


def loss_not_divided(model, micro):
    with model.no_sync():
        for x in micro[:-1]:
            loss_of(model, x).backward()
    loss_of(model, micro[-1]).backward()


def all_under_no_sync(model, micro):
    with model.no_sync():
        for x in micro:
            (loss_of(model, x) / K).backward()


LOOPS = [right, without_no_sync, no_sync_around_backward_only, loss_not_divided]
LOOPS.append(all_under_no_sync)

# %%
# One step of each in turn
# ------------------------
# Every loop has a model of its own with the same weights, in the same processes.
# The reference is one forward and backward over the whole batch of the rank.


def build(link):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device()), bucket_cap_mb=0.25)
    model.register_comm_hook(link, SlowLink.hook)
    return model


def worker():
    link = SlowLink(LATENCY_S, BYTES_PER_S)
    whole, models = build(link), [build(link) for _ in LOOPS]
    own = torch.Generator().manual_seed(dist.get_rank() + 1)
    times, sent = ([[] for _ in LOOPS] for _ in range(2))
    for _ in range(STEPS):
        x = torch.randn(K * MICRO, WIDTH, generator=own).to(device())
        whole.zero_grad()
        loss_of(whole, x).backward()
        for i, loop in enumerate(LOOPS):
            models[i].zero_grad()
            dist.barrier()
            before, began = len(link.log), now()
            loop(models[i], x.chunk(K))
            times[i].append(1e3 * (now() - began))
            sent[i] = [t.nbytes for t in link.log[before:]]
    gradients = [flat_gradients(model) for model in models]
    return flat_gradients(whole), gradients, times, sent


ranks = launch(worker, RANKS, quiet=True)
reference = ranks[0][0]
medians = [statistics.median(times[2:]) for times in ranks[0][2]]
spaces = " " * 29
print(f"{spaces}  all-      MiB      times the gradient    ranks    time ÷")
print(f"{spaces}reduces    sent      of the whole batch    differ   right's")
factors, apart = {}, {}
for i, loop in enumerate(LOOPS):
    got, sent = [gradients[i] for _, gradients, *_ in ranks], ranks[0][3][i]
    factors[loop] = (got[0].norm() / reference.norm()).item()
    close = torch.allclose(got[0], factors[loop] * reference, rtol=1e-4, atol=1e-8)
    apart[loop] = gap(got)
    factor = f"{factors[loop]:.3f}" if close else "another one"
    row = f"{loop.__name__:29} {len(sent):5} {sum(sent) / 2**20:9.2f} {factor:>18}"
    print(f"{row} {apart[loop]:14.1e} {medians[i] / medians[0]:8.2f}")
    record(**{f"{loop.__name__}_reduces": len(sent)})
    record(**{f"{loop.__name__}_time": medians[i] / medians[0]})
    expected = {right: 1, loss_not_divided: 1, all_under_no_sync: 0}.get(loop, K) * LAYERS
    assert len(sent) == expected
    assert close == (loop is not all_under_no_sync)
    assert (apart[loop] == 0) == (loop is not all_under_no_sync)
    assert abs(factors[loop] - (K if loop is loss_not_divided else 1)) < 1e-3 or not close

# %%
# What to notice
# --------------
#
# - Two loops are right and slow: without ``no_sync``, or with it around the backward only, every micro-batch is reduced, and a step takes :measured:`accumulation-compared.without_no_sync_time:.1f` and :measured:`accumulation-compared.no_sync_around_backward_only_time:.1f` times as long over this link.
#   (The mean of values that are already averaged does not change, so repeated reduction does not harm the numbers.)
# - A loss that is not divided gives the sum of the micro-batches: K times the gradient, the same on all ranks, which looks like a learning rate that is K times too high.
# - With all micro-batches under ``no_sync`` nothing is sent, the step is the fastest, and the ranks diverge.
#
# What this does not mean
# -----------------------
#
# That dividing by K is always right: micro-batches of different sizes, or losses that are means over tokens, need their own weights (:ref:`museum-mean-of-token-means`).
#
# Change it: predict, then run
# ----------------------------
# Set ``K`` to 8.
# Which rows send more, and which factor changes?
#
# Expect: the two that reduce every micro-batch send twice as much, and the factor of the undivided loss is 8.
#
# Say it aloud
# ------------
# "I accumulate with forward and backward under ``no_sync`` and leave the last micro-batch out, so that a step sends once.
# Without dividing the loss the gradient is K times as large, and nothing complains.
# It buys a large batch in little memory, and pays with time per update."
