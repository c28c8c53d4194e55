"""
Pad a batch to a multiple of eight
==================================

Texts differ in length; how far should a batch be padded, and does padding change what is learned?
It serves :ref:`setup-samplers`.

A batch is a rectangle, so the shorter texts in it are filled up to the longest.
Keep in mind: what is padded costs computing, and changes nothing that is learned as long as it has no target and nobody looks at it.

:Level: core, 12 minutes
"""

# %%
# The collate function
# --------------------
# The loader hands it the samples of one batch; it pads them to the longest of *this* batch, rounded up.
# Places that are padded have the target -100, which ``cross_entropy`` ignores.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients

RANKS, SAMPLES, BATCH, WORDS, LONGEST = 2, 768, 8, 50, 64
PAD, IGNORED = 0, -100


def padded_to(multiple, least=0):
    def collate(samples):
        length = max(least, *(len(sample) - 1 for sample in samples))
        length = -(-length // multiple) * multiple
        tokens = torch.full((len(samples), length), PAD)
        targets = torch.full((len(samples), length), IGNORED)
        for row, sample in enumerate(samples):
            tokens[row, : len(sample) - 1] = sample[:-1]
            targets[row, : len(sample) - 1] = sample[1:]
        return tokens, targets

    return collate


WAYS = {  # by name: the collate function, and whether a batch has texts of similar length
    "all": (padded_to(1, LONGEST), False),
    "batch": (padded_to(1), False),
    "eight": (padded_to(8), False),
    "sorted": (padded_to(8), True),
}
WORDING = {
    "all": "to the longest of all",
    "batch": "to the longest of the batch",
    "eight": "the same, to a multiple of 8",
    "sorted": "the same, similar lengths",
}


def texts():
    """Random texts, most of them short; each with one token more than is read, the last target."""
    draw = torch.Generator().manual_seed(0)
    lengths = 4 + ((LONGEST - 4) * torch.rand(SAMPLES, generator=draw) ** 3).int()
    lengths[0] = LONGEST
    return [torch.randint(1, WORDS, (n + 1,), generator=draw) for n in lengths.tolist()]


def batches(data, similar):
    """The batches of this rank, as lists of sample numbers: equally many on each."""
    order = list(DistributedSampler(data, num_replicas=1, rank=0))
    if similar:
        order.sort(key=lambda i: len(data[i]))
    cut = torch.tensor(order).reshape(-1, BATCH)
    mixed = cut[torch.randperm(len(cut), generator=torch.Generator().manual_seed(1))]
    return mixed[dist.get_rank() :: RANKS].tolist()


# %%
# A causal model: no place looks at what is behind it, so none looks at padding.


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        return self.head(self.layer(self.embed(tokens), src_mask=mask, is_causal=True))


def worker():
    data, seen, gradients = texts(), {}, {}
    torch.manual_seed(0)
    model = DistributedDataParallel(Causal().double().to(device()))
    for name, (collate, similar) in WAYS.items():
        own = batches(data, similar)
        loader, shapes = DataLoader(data, batch_sampler=own, collate_fn=collate), []
        for step, (tokens, targets) in enumerate(loader):
            shapes.append((tokens.shape[1], (targets == IGNORED).sum().item()))
            if step == 0 and not similar:  # the same texts
                model.zero_grad()
                logits = model(tokens.to(device())).flatten(0, 1)
                nn.functional.cross_entropy(logits, targets.to(device()).flatten()).backward()
                gradients[name] = flat_gradients(model)
        seen[name] = shapes
    return seen, gradients


ranks = launch(worker, RANKS, quiet=True)

# %%
# One epoch of each
# -----------------
# Ranks draw different texts, so in the same step they have different lengths, and the shorter one waits.

print("                               places    of them    different  of them     the longer")
print("padded                       computed    padding      lengths  × of 8     rank has")
for name, way in WORDING.items():
    shapes = [seen[name] for seen, _ in ranks]
    lengths = [[length for length, _ in own] for own in shapes]
    places = BATCH * sum(map(sum, lengths))
    empty = sum(padding for own in shapes for _, padding in own) / places
    different = {length for own in lengths for length in own}
    eighths = sum(length % 8 == 0 for length in different)
    more = sum(map(max, *lengths)) / (sum(map(sum, lengths)) / RANKS)
    print(
        f"{way:29} {places:7,} {empty:10.0%} {len(different):12} {eighths:8} {more:9.2f} × the mean"
    )
    record("%", **{f"padding_{name}": 100 * empty})
    record(**{f"lengths_{name}": len(different), f"longer_{name}": more})

# %%
# Does it change what is learned?
# -------------------------------
# The gradient of the first step, as DDP leaves it, of the same texts padded in three ways:

reference, *others = ranks[0][1].values()
gaps = [((one - reference).norm() / reference.norm()).item() for one in others]
print("distance from the first gradient:", ", ".join(f"{gap:.0e}" for gap in gaps))
assert max(gaps) < 1e-12
record(gap=max(gaps))

# %%
# What to notice
# --------------
#
# - Of all places :measured:`padding.padding_all:.0f` are padding when every text is as long as the longest, :measured:`padding.padding_batch:.0f` when a batch is as long as its own, and :measured:`padding.padding_eight:.0f` after rounding up.
# - Texts of similar length in a batch leave :measured:`padding.padding_sorted:.0f`. The price is between ranks: at each step the longer batch decides, and it has :measured:`padding.longer_sorted:.2f` times the mean.
# - Rounding leaves :measured:`padding.lengths_eight` lengths of :measured:`padding.lengths_batch`: fewer shapes to compile for, and fewer sizes for an allocator.
# - The gradient is the same within rounding, because padded places have no target and no place looks at them.
#
# What this does not mean
# -----------------------
#
# That eight is faster here: on a CPU it is only more places. The reason is in a GPU's tensor cores (:ref:`setup-samplers`).
# The mean over tokens on each rank is still not the mean over all tokens (:ref:`museum-mean-of-token-means`).
#
# Change it: predict, then run
# ----------------------------
# Set ``BATCH`` to 32.
# Which of the four rows hold more padding, and which hardly?
#
# Expect: those padded to the batch come close to *the longest of all*, because among more texts one is long; texts of similar length hardly change.
#
# Say it aloud
# ------------
# "I pad to the longest text of the batch and not of the data set, and give padding no target.
# Batches of similar lengths leave little padding.
# The price is between ranks: in a step one has long texts and the other waits, and the order is a little less random."
