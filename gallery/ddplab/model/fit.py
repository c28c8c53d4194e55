"""The latency and the rate of a link, from measured all-reduces."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .arguments import above_zero, at_least_zero
from .link import Link, hops_and_volume


def fit_link(samples: Sequence[Sequence[float]], ranks: int = 2, algorithm: str = "ring") -> Link:
    """Return the link whose α and B fit measured all-reduces best, with its ``residual``.

    The cost h·α + v·n/B is linear in α and 1/B, so this is a linear least-squares fit of the *relative* errors:
    a millisecond counts more in a short sample than in a long one. Samples far off (by Huber's rule, over 1.345
    robust standard deviations) count less: a hiccup of the machine does not move the link. An α below 0 becomes 0.

    Args:
        samples: (bytes, measured s), or (bytes, measured s, ranks) where the world sizes differ.
        ranks: world size of samples of two numbers, and of the link that is returned.
        algorithm: ``ring``, ``tree``, ``halving-doubling`` or ``link``; the others are not linear in α and 1/B.

    Raises:
        ValueError: fewer than two samples that tell α from B, a value that is out of range, another algorithm, or
            times that do not grow with the bytes.
    """
    if algorithm not in ("ring", "tree", "halving-doubling", "link"):
        raise ValueError(f"algorithm must be ring, tree, halving-doubling or link; got {algorithm!r}")
    rows = []  # (x, y) of α·x + y/B = 1, that is cost / measured = 1
    for position, (nbytes, seconds, *more) in enumerate(samples):
        world = int(more[0]) if more else ranks
        at_least_zero(f"samples[{position}] bytes", nbytes)
        above_zero(f"samples[{position}] seconds", seconds)
        if world < 2:
            raise ValueError(f"samples[{position}] ranks must be 2 or more; got {world!r}")
        hops, volume = hops_and_volume(algorithm, world)
        rows.append((hops / seconds, volume * nbytes / seconds))

    weights = [1.0] * len(rows)
    latency_s = s_per_byte = residual = 0.0
    for _ in range(30):
        weighed = list(zip(weights, rows, strict=True))
        xx, yy = sum(w * x * x for w, (x, _) in weighed), sum(w * y * y for w, (_, y) in weighed)
        xy = sum(w * x * y for w, (x, y) in weighed)
        x1, y1 = sum(w * x for w, (x, _) in weighed), sum(w * y for w, (_, y) in weighed)
        if xx * yy - xy * xy <= 1e-12 * xx * yy:  # also without samples
            raise ValueError(f"samples must hold at least two different sizes; got {len(rows)} samples")
        latency_s = (x1 * yy - y1 * xy) / (xx * yy - xy * xy)
        latency_s, s_per_byte = max(latency_s, 0.0), (y1 - max(latency_s, 0.0) * xy) / yy
        errors = [abs(latency_s * x + s_per_byte * y - 1) for x, y in rows]
        residual = median(errors)
        far = 1.345 * 1.4826 * residual
        weights = [1.0 if error <= far else far / error for error in errors]
        if residual < 1e-12:
            break
    if s_per_byte <= 0:
        raise ValueError("the fit gives no positive rate: samples with more bytes must take longer")
    return Link(latency_s, 1 / s_per_byte, ranks, algorithm, residual=residual)
