"""How often a job saves best, as a drawing: what the interval calculator shows where no script runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddplab.model.interval import daly_s, lost_fraction, young_s

from .svg_pieces import INK, MARK, SOFT, WIDTH, line, svg, text

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_TICKS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 10 * 86400, 30 * 86400, 100 * 86400)


@dataclass(frozen=True)
class Job:
    """What the fields hold at first, in their units."""

    save_s: float = 30
    nodes: float = 128
    node_mtbf_days: float = 1460
    restart_s: float = 300
    interval_min: float = 1440

    @property
    def mtbf_s(self) -> float:
        """Seconds between two failures of the job, if nodes fail independently."""
        return self.node_mtbf_days * _DAY_S / self.nodes

    def lost(self, interval_s: float) -> float:
        """The share of time lost at this interval."""
        return lost_fraction(interval_s, self.save_s, self.mtbf_s, self.restart_s)


def interval_words(job: Job) -> str:
    """What the drawing shows, for those who cannot see it; what the script says, too."""
    young, daly, own = young_s(job.save_s, job.mtbf_s), daly_s(job.save_s, job.mtbf_s), job.interval_min * _MINUTE_S
    return (
        f"Daly: save every {_time(daly)}, {_share(job.lost(daly))} lost. "
        f"Young: every {_time(young)}, {_share(job.lost(young))}. At your {_time(own)}: {_share(job.lost(own))}."
    )


def interval_figure(job: Job) -> str:
    """The share lost over the interval, with Young's and Daly's interval and that of the job."""
    young, daly, own = young_s(job.save_s, job.mtbf_s), daly_s(job.save_s, job.mtbf_s), job.interval_min * _MINUTE_S
    left, right, top, bottom = 60.0, WIDTH - 20.0, 70.0, 220.0
    low, high = math.log(min(daly / 12, own / 1.5)), math.log(max(daly * 12, own * 1.5))
    points = [math.exp(low + (high - low) * n / 120) for n in range(121)]
    most = min(1.0, 1.05 * max(job.lost(point) for point in points))

    def x(seconds: float) -> float:
        return left + (math.log(seconds) - low) / (high - low) * (right - left)

    def y(part: float) -> float:
        return bottom - part / most * (bottom - top)

    about = (
        f"{job.nodes:g} nodes, one failure of a node in {job.node_mtbf_days:g} days; "
        f"a save stops training for {job.save_s:g} s, a restart takes {job.restart_s:g} s"
    )
    parts = [text(f"Save every {_time(daly)}: {_share(job.lost(daly))} of the time is lost", 0, 16, size=16, bold=True)]
    parts += [text(about, 0, 36), text("% of the time lost", 0, top - 12)]
    parts += [line(left, bottom, right, bottom, SOFT), line(left, top, left, bottom, SOFT)]
    for part in (0, most / 2, most):
        parts += [line(left - 4, y(part), left, y(part), SOFT), text(f"{100 * part:.2g}", left - 9, y(part) + 4, "end")]
    free = left
    for tick in _TICKS_S:
        if free <= x(tick) <= right:
            parts += [
                line(x(tick), bottom, x(tick), bottom + 4, SOFT),
                text(_time(tick), x(tick), bottom + 18, "middle"),
            ]
            free = x(tick) + 64
    parts += [text("time between two saves", (left + right) / 2, bottom + 36, "middle")]
    parts += [line(x(young), top, x(young), bottom, SOFT, dashed=True)]
    curve = " ".join(f"{x(point):.1f},{y(job.lost(point)):.1f}" for point in points)
    parts += [f'<polyline fill="none" stroke="{MARK}" stroke-width="2" points="{curve}"/>']
    for seconds, name, above in ((daly, "Daly", 26), (own, "this job", 10)):
        at, height = x(seconds), y(job.lost(seconds))
        parts.append(f'<circle cx="{at:.1f}" cy="{height:.1f}" r="5.5" fill="{INK}"/>')
        beside, anchor = (-9, "end") if at > right - 140 else (9, "start")
        parts.append(
            text(f"{name}: {_time(seconds)}, {_share(job.lost(seconds))}", at + beside, height - above, anchor)
        )
    label = f"Share of the time lost against the time between two saves. {interval_words(job)}"
    return svg(bottom + 44, label, parts)


def _time(seconds: float) -> str:
    for unit_s, name, least in ((_DAY_S, "days", 2), (_HOUR_S, "h", 4), (_MINUTE_S, "min", 3)):
        if seconds >= least * unit_s:
            return f"{_digits(seconds / unit_s)} {name}"
    return f"{_digits(seconds)} s"


def _share(part: float) -> str:
    return f"{'more than 99.9' if part >= 0.9995 else _digits(100 * part)} %"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"
