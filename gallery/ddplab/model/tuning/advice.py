"""What the measured steps say: which cap to use, and how sure that is. No ranks, nothing measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WORTH = 0.01  # a gain below this share of the step counts as none


@dataclass(frozen=True)
class Advice:
    """What to do, and how sure that is; times in s, positive where the default is slower.

    Attributes:
        cap_mb: the recommended ``bucket_cap_mb``; None: leave it out.
        verdict: "clear", "default is best" or "within noise"; in the last two cases ``cap_mb`` is None.
        best_mb: of the caps that are not the default, the one that gains most; None if there is none.
        gain_s: median over rounds of default − best.
        low_s: lower end of the 99 % interval of that median; −inf with too few rounds.
        high_s: its upper end.
    """

    cap_mb: float | None
    verdict: str
    best_mb: float | None
    gain_s: float
    low_s: float
    high_s: float


def advise(default_s: Sequence[float], others_s: dict[float, Sequence[float]]) -> Advice:
    """Compare the cap that was best with the default, round by round.

    What disturbs a round disturbs all caps in it, so differences within rounds count, not those between medians.
    ``clear``: the whole interval is above 0, and its middle is worth having (:data:`WORTH`). ``default is best``: the
    whole interval is below that worth. Anything else is ``within noise``.

    Args:
        default_s: step times with the default, one a round.
        others_s: the same for each cap in MiB, in the same rounds.
    """
    if not others_s:
        return Advice(None, "default is best", None, 0.0, 0.0, 0.0)
    gains_s = {
        cap: [default - other for default, other in zip(default_s, took_s, strict=True)]
        for cap, took_s in others_s.items()
    }
    best = max(gains_s, key=lambda cap: median(gains_s[cap]))
    gain, (low, high), worth = median(gains_s[best]), median_interval(gains_s[best]), WORTH * median(default_s)
    if low > 0 and gain >= worth:
        return Advice(best, "clear", best, gain, low, high)
    return Advice(None, "default is best" if high < worth else "within noise", best, gain, low, high)


def median_interval(values: Sequence[float], confidence: float = 0.99) -> tuple[float, float]:
    """Return the interval that holds the true median with at least this confidence, whatever the distribution.

    Each value is below the true median with probability 1/2, so the k-th smallest of n is above it with the
    probability of less than k heads in n throws; the k-th smallest and the k-th largest enclose it, with the largest
    k that the confidence allows. With too few values, (−inf, inf).
    """
    n, outside, k = len(values), 0.0, 0
    while 2 * (outside := outside + math.comb(n, k) / 2**n) <= 1 - confidence:
        k += 1
    ordered = sorted(values)
    return (ordered[k - 1], ordered[n - k]) if k else (-math.inf, math.inf)
