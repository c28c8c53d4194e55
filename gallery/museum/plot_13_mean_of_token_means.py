"""
The mean of token means
=======================

``cross_entropy`` averages over the targets that are not padding, accumulation divides by the number of micro-batches, DDP by the number of ranks.
Each mean is right by itself; a mean of means over different token counts is a different objective.
It serves :ref:`museum`.

A mean of means weighs each group alike, whatever its size.
Keep in mind: divide a sum by what was counted everywhere, and multiply by what DDP will divide by.

:Level: core, 12 minutes
:Proves: museum-mean-of-token-means
"""

# %%
# The two versions differ in what a micro-batch's loss is divided by.
# The right answer is the gradient of the mean over all tokens of the step, in one process.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap

RANKS, MICRO, WORDS, LONGEST = 3, 2, 12, 16
PADDING = -100  # the target that cross_entropy ignores


def micro_batches(rank):
    """Tokens and targets, (MICRO, 4 sentences, LONGEST); the higher the rank, the shorter."""
    torch.manual_seed(rank)
    tokens = torch.randint(WORDS, (MICRO, 4, LONGEST))
    lengths = torch.randint(2, LONGEST // (1 + rank), (MICRO, 4, 1))
    targets = ((tokens + 1) % WORDS).where(torch.arange(LONGEST) < lengths, PADDING)
    return tokens.to(device()), targets.to(device())


def cross_entropy(logits, targets, reduction):
    logits, targets = logits.flatten(end_dim=-2), targets.flatten()
    return nn.functional.cross_entropy(logits, targets, reduction=reduction)


def wrong(logits, targets, total):
    return cross_entropy(logits, targets, "mean") / MICRO


def right(logits, targets, total):
    return cross_entropy(logits, targets, "sum") * RANKS / total


def worker(loss_of):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)).to(device())
    everything = zip(*map(micro_batches, range(RANKS)), strict=True)
    all_tokens, all_targets = map(torch.cat, everything)
    cross_entropy(net(all_tokens), all_targets, "mean").backward()
    whole = flat_gradients(net)
    net.zero_grad()

    model = DDP(net)
    tokens, targets = micro_batches(dist.get_rank())
    counts = (targets != PADDING).sum(dim=(1, 2))
    total = counts.sum()
    dist.all_reduce(total)  # of the whole step, before its first backward
    for x, y in zip(tokens, targets, strict=True):
        loss_of(model(x), y, total).backward()
    return flat_gradients(net), whole, counts.tolist()


# %%
# The error is the length of the difference from the right answer, divided by that answer's length.
# A token's weight is relative to its weight in the mean over all tokens.

found = {}
for name, loss_of in ("wrong", wrong), ("fixed", right):
    gradients, (whole, *_), counts = zip(*launch(worker, RANKS, loss_of), strict=True)
    found[name] = 100 * ((gradients[0] - whole).norm() / whole.norm()).item()
    print(f"{name}: error {found[name]:4.1f} %, gap between ranks {gap(gradients):.0f}")
    assert gap(gradients) == 0
for rank, mine in enumerate(counts):
    weights = [sum(map(sum, counts)) / (RANKS * MICRO * n) for n in mine]
    shown = (f"{n:2} tokens of weight {w:.2f}" for n, w in zip(mine, weights, strict=True))
    print(f"wrong, rank {rank}: {'   '.join(shown)}")

assert found["wrong"] > 1
assert found["fixed"] < 1e-3
record("%", **found)

# %%
# The fix
# -------
# Sum the loss, multiply by the world size, which DDP will divide by, and divide by the tokens of *all* ranks and micro-batches of the step; their number costs an all-reduce of one element.
#
# How you would have noticed
# --------------------------
# Compare one step's gradient with that of the same samples in a single process, on sentences of *different* lengths: with equal token counts there is no difference.
# The ranks agree bit for bit, so no check between ranks finds it.
#
# Change it: predict, then run
# ----------------------------
# Give all ranks sentences of the same kind: ``LONGEST`` in place of ``LONGEST // (1 + rank)``.
# Does the error of the wrong version vanish?
#
# Expect: no, it only shrinks: the counts still differ by chance, and so do the weights of their tokens.
#
# Say it aloud
# ------------
# "cross_entropy averages over this micro-batch's tokens, and micro-batches have different numbers of them.
# So I sum, divide by the tokens of the whole step, and multiply by the world size.
# That needs one small all-reduce before the first backward; the mean of means needs none, and trains short sentences harder."
