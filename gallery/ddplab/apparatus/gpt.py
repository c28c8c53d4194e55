"""A small GPT whose FLOPs are known: what the labs on GPUs train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Causal attention and a network of four times the width; shapes [batch, tokens, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        batch, tokens, width = x.shape
        split = self.qkv(self.before_attention(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        out: Tensor = x + self.down(functional.gelu(self.up(self.before_network(x))))
        return out


class GPT(nn.Module):
    """Embeddings, blocks and a head; ``forward`` returns the loss of predicting each next token."""

    def __init__(self, width: int, layers: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.width, self.tokens, self.vocabulary = width, tokens, vocabulary
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """``text`` has shape [batch, tokens + 1]; the loss is a scalar."""
        inputs, targets = text[:, :-1], text[:, 1:]
        x = self.words(inputs) + self.places(torch.arange(inputs.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())

    def text(self, batch: int, device: torch.device) -> Tensor:
        """Random text of this model's length, shape [batch, tokens + 1]."""
        return torch.randint(self.vocabulary, (batch, self.tokens + 1), device=device)

    def flops(self, batch: int) -> float:
        """Of one forward and backward: each weight of a product counts six per token, and attention is added.

        Forward and backward multiply and add three times per weight. Attention's two products, counted without the
        causal mask, add 12 · layers · width · tokens per token (Chowdhery et al. 2022, appendix B).
        """
        weights = sum(p.numel() for p in self.parameters() if p.dim() == 2)
        weights -= self.words.weight.numel() + self.places.weight.numel()  # looked up, not multiplied
        return batch * self.tokens * (6.0 * weights + 12.0 * len(self.blocks) * self.width * self.tokens)
