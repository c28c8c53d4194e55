"""How often to save: Young's and Daly's intervals, and the share of time that saves and failures take.

Symbols: T seconds of training between two saves (``interval_s``), C seconds that a save stops the training
(``save_s``), R seconds from a failure to the first step after it (``restart_s``), M mean seconds between two
failures of the whole job (``mtbf_s``). Failures come at any moment with the same probability (exponential).

Sources: Young, "A first order approximation to the optimum checkpoint interval" (CACM 17(9), 1974); Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps" (FGCS 22(3), 2006).
"""

from __future__ import annotations

import math


def young_s(save_s: float, mtbf_s: float) -> float:
    """Return √(2CM), Young's interval in seconds: the minimum of C/T + T/2M, good while C is far below M.

    Source: Young, CACM 17(9), 1974.

    Args:
        save_s: seconds that a save stops the training, C.
        mtbf_s: mean seconds between two failures of the whole job, M.

    Raises:
        ValueError: a time is negative or no number, or ``mtbf_s`` is 0.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s)


def daly_s(save_s: float, mtbf_s: float) -> float:
    """Return Daly's interval in seconds: √(2CM)·(1 + x/3 + x²/9) − C with x = √(C/2M); M itself if C ≥ 2M.

    Source: Daly, FGCS 22(3), 2006.

    Args:
        save_s: seconds that a save stops the training, C.
        mtbf_s: mean seconds between two failures of the whole job, M.

    Raises:
        ValueError: a time is negative or no number, or ``mtbf_s`` is 0.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = math.sqrt(save_s / (2 * mtbf_s))
    return math.sqrt(2 * save_s * mtbf_s) * (1 + x / 3 + x * x / 9) - save_s


def lost_fraction(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Return the expected share of time that is no training: saves, repeated steps and restarts; from 0 to 1.

    1 − T/E, where E = M·e^(R/M)·(e^((T+C)/M) − 1) is the expected time until T seconds are trained and saved.
    Exact for exponential failures, which may strike in a save and in a restart too.

    Args:
        interval_s: seconds of training between two saves, T.
        save_s: seconds that a save stops the training, C.
        mtbf_s: mean seconds between two failures of the whole job, M.
        restart_s: seconds from a failure to the first step after it, R.

    Raises:
        ValueError: a time is negative or no number, or ``interval_s`` or ``mtbf_s`` is 0.
    """
    _check(interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s, restart_s=restart_s)
    try:
        expected_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s)
    except OverflowError:  # so many failures that none of it is ever saved
        return 1.0
    return 1 - interval_s / expected_s


def _check(**times: float) -> None:
    for name, value in times.items():
        least = "more than 0" if name in ("interval_s", "mtbf_s") else "0 or more"
        if not (math.isfinite(value) and (value > 0 or (value == 0 and least == "0 or more"))):
            raise ValueError(f"{name} must be a number of seconds, {least}; got {value!r}")
