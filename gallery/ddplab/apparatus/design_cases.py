"""What the design cases of the interview room share: data sheets, assumptions, and how their ledgers are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .plotting import ACCENT, FAINT, INK, MUTED

GB = 1e9
# One H100 and its node, by the data sheets that the page cites; rates in bytes/s and one direction.
PEAK_FLOPS, MEMORY, MEMORY_RATE = 989e12, 80 * GB, 3.35e12  # bf16 without sparsity
NVLINK, NDR_PORT, PCIE, SLOW_PORT = 450e9, 50e9, 64e9, 12.5e9  # the last: 100 Gbit/s
NODE_GPUS = 8
INSIDE_S, BETWEEN_S = 3.4e-6, 14e-6  # a hop inside a node and between nodes: NCCL, src/graph/tuning.cc, hwLatencies
# Assumed, not measured: the share of the peak that computes, and of the nominal rates that arrives.
MFU, SHARE = 0.40, 0.80


def activation_bytes(tokens: int, width: int, layers: int, words: int, *, checkpointed: bool = False) -> float:
    """Return what a transformer keeps for its backward, in bytes: 34 per token, width and layer, and the logits.

    In 16 bits, with a fused attention that keeps no square of scores. Checkpointed layers keep their input, 2 bytes
    per token and width, and one layer at a time is whole. Logits are in float32, with a gradient: 8 bytes a word.

    Source: Korthikanti et al., arXiv:2205.05198, sections 4.1 and 5.

    Args:
        tokens: of one rank's micro-batch.
        width: of the model.
        layers: how many.
        words: of the vocabulary.
        checkpointed: whether each layer is computed again in the backward.
    """
    kept = 2 * layers + 34 if checkpointed else 34 * layers
    return float(kept * tokens * width + 8 * tokens * words)


def stacked(
    ax: Any, rows: Mapping[str, Sequence[float]], parts: Sequence[str], text: str = "{:.0f}", beyond: float = 0.0
) -> None:
    """Draw a bar for each row, in up to four parts that differ in grey, too, with its sum behind it.

    A sum stands at ``beyond`` or farther right, so that a line there does not cross it.
    """
    looks = list(zip((ACCENT, MUTED, FAINT, FAINT), ("", "////", "", "...."), strict=True))
    for row, values in enumerate(rows.values()):
        left = 0.0
        for value, part, (color, hatch) in zip(values, parts, looks, strict=False):
            label = None if row else part
            ax.barh(row, value, 0.7, left=left, color=color, hatch=hatch, ec=INK, lw=0.6, label=label)
            left += value
        ax.text(max(left, beyond), row, "\N{NO-BREAK SPACE}" + text.format(left), va="center", fontsize=8.5)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.5)
