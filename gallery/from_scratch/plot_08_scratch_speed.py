"""
From scratch, as fast as torch
==============================

What did each stage buy, and is the last one as fast as torch's DDP?
All of them train side by side in one run, so that whatever slows the machine slows them equally.
It serves :ref:`from-scratch-speed`.

:Level: evidence, 12 minutes
"""

# %%
# Two models: a small GPT, whose parameters are a few large tensors, and an MLP with many small ones.

import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record, scratch
from ddplab.apparatus.gaps import flat_weights
from ddplab.runtime.clock import now
from ddplab.scratch import flat, naive, overlap


class GPT(nn.Module):
    def __init__(self, width=384, layers=6, words=2048, context=16):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(width, 6, 4 * width, dropout=0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.causal = nn.Transformer.generate_square_subsequent_mask(context, device=device())

    def forward(self, x):
        hidden = self.word(x) + self.place.weight
        return self.head(self.norm(self.blocks(hidden, self.causal, is_causal=True)))


def mlp():
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(151)])


MODELS = {  # how to build it, a batch for it, rounds
    "GPT": (GPT, lambda: torch.randint(2048, (2, 16)), 12),
    "MLP": (mlp, lambda: torch.randn(32, 64), 36),
}

# %%
# *No sync* trains each rank alone: a step without any communication, the lower bound.
# With ``gradient_as_bucket_view`` torch's ``.grad`` is a view of the bucket, as in our class.
# A step is forward, backward, averaging where that is a separate call, and the optimizer.
# A round is one step of each, and each round starts with a different one; the first three do not count.

WRAPPERS = {
    "no sync": lambda model: model,
    "naive": naive.DDP,
    "flat": flat.DDP,
    "overlap": overlap.DDP,
    "scratch": scratch.DDP,
    "torch, views": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "torch": DistributedDataParallel,
}


def step_ms(model, optimizer, x):
    dist.barrier()
    start = now()
    model(x).square().mean().backward()
    if hasattr(model, "sync_gradients"):
        model.sync_gradients()
    optimizer.step()
    optimizer.zero_grad()
    return 1e3 * (now() - start)


def worker(build, batch, rounds):
    rivals, times = {}, {name: [] for name in WRAPPERS}
    for name, wrap in WRAPPERS.items():
        torch.manual_seed(0)
        model = wrap(build().to(device()))
        rivals[name] = model, torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for i in range(3 + rounds):
        x, names = batch().to(device()), list(rivals)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(step_ms(*rivals[name], x))
    weights = {name: flat_weights(model) for name, (model, _) in rivals.items()}
    equal = [name for name in weights if torch.equal(weights[name], weights["torch"])]
    return times, equal, (len(list(model.parameters())), weights["torch"].numel())


# %%
# Ratios are to torch's step in the same round.

ratios = {}
for title, model in MODELS.items():
    times, equal, (tensors, elements) = launch(worker, 2, *model)[0]
    torch_ms = statistics.median(times["torch"][3:])
    size = f"{elements:,} parameters in {tensors} tensors"
    print(f"{title}: {size}; torch {torch_ms:.1f} ms a step")
    print("              step time ÷ torch's: median (quartiles)   weights as torch's")
    record("ms", **{f"{title}_torch_ms": torch_ms})
    for name in WRAPPERS:
        paired = [a / b for a, b in zip(times[name], times["torch"], strict=True)][3:]
        low, median, high = ratios[title, name] = statistics.quantiles(paired, n=4)
        quartiles = f"{median:.2f} ({low:.2f} to {high:.2f})"
        print(f"{name:14}{quartiles:42}{'equal' if name in equal else 'differ'}")
        record(**{f"{title}_{name.replace(',', '').replace(' ', '_')}": median})
    # On a GPU the gradient of an embedding is summed in no fixed order.
    assert device().type == "cuda" or equal == [name for name in WRAPPERS if name != "no sync"]
    slow, floor = (statistics.median(times[name][3:]) for name in ("naive", "no sync"))
    record("ms", **{f"{title}_naive_ms": slow, f"{title}_floor_ms": floor})
    record("µs", **{f"{title}_per_message": 1e3 * (slow - floor) / tensors})

# %%
# A dot is a median, written at the right, and its line reaches from quartile to quartile; the axis is logarithmic.

# drawing
from ddplab.apparatus.plotting import (
    ACCENT,
    INK,
    MUTED,
    describe,
    log_axis,
    name_rows,
    subplots,
)

rows = [name for name in WRAPPERS if name != "torch"]
fig, axes = subplots(1, 2, height_in=2.9, sharey=True)
describe(fig, "Step time of each stage divided by that of torch's DDP, for both models")
panels = ("GPT", "77 tensors"), ("MLP", "302 small tensors")
for ax, (title, what) in zip(axes, panels, strict=True):
    ax.axvline(1, color=MUTED, lw=1, ls="--")
    for y, name in enumerate(rows):
        low, median, high = ratios[title, name]
        color = ACCENT if name == "scratch" else INK
        ax.plot([low, high], [y, y], color=color, lw=1.2)
        ax.plot(median, y, "o", ms=7, color=color)
        beside = {"transform": ax.get_yaxis_transform(), "va": "center"}
        ax.text(1.02, y, f"{median:.2f}", color=color, **beside)
    slowest = ratios[title, "naive"][2]
    log_axis(ax.xaxis, [t for t in (0.5, 1, 2, 5, 10, 20, 50) if t < 1.5 * slowest])
    ax.set_xlabel("step time ÷ torch's")
    name_rows(ax, rows, margin=0.8)
    ax.set_title(f"{title}, {what}")

# %%
# What to notice
# --------------
# - *naive* takes :measured:`scratch-speed.GPT_naive:.1f` times torch's step on the GPT and :measured:`scratch-speed.MLP_naive:.1f` times on the MLP: the MLP sends a twentieth of the bytes, and four times as many messages.
# - *flat* reduces the number of messages; *overlap* then hides what is left, where there is enough computation to hide it behind.
# - The class of this chapter: :measured:`scratch-speed.GPT_scratch:.2f` on the GPT, :measured:`scratch-speed.MLP_scratch:.2f` on the MLP.
#   Its hook is Python, torch's is C++; but with ``.grad`` in the bucket it needs no copy back, like torch's own views.
#
# What this does not mean
# -----------------------
# That the ratios hold elsewhere.
# Two processes on one machine have no cable between them; over a slow link the messages cost more, and on a GPU the hooks run on the host, ahead of the device.
