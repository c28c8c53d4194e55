"""A small transformer that predicts the next word, and data with a rule that it can learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Transformer(nn.Module):
    """Three causal encoder layers between an embedding and a linear head; the causal mask is a buffer.

    Args:
        words: size of the vocabulary.
        width: features of a word; four attention heads share them.
        tokens: length of every sequence.
    """

    def __init__(self, words: int, width: int, tokens: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0, batch_first=True)
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each word at each place, shape [batch, tokens, words]; ``x`` is [batch, tokens]."""
        return self.head(self.layers(self.embed(x), mask=self.mask, is_causal=True))  # type: ignore[no-any-return]


def loader(samples: int, words: int, tokens: int, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return this rank's share of ``samples`` sequences, each ``tokens`` + 1 words long: w is followed by 5w + 7.

    All ranks must have seeded alike.
    """
    sequences = [torch.randint(words, (samples,))]
    for _ in range(tokens):
        sequences.append((5 * sequences[-1] + 7) % words)
    data = TensorDataset(torch.stack(sequences, dim=1))
    return DataLoader(data, batch, sampler=DistributedSampler(data))
