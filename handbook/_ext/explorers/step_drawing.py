"""One DDP step as a drawing: what the step explorer shows where no script runs. Predicted, not measured."""

from __future__ import annotations

import math
from html import escape

from ddplab.costmodel import Step

from .explorer_examples import Example, Settings
from .svg_pieces import FAINT, INK, MARK, SOFT, WIDTH, box, line, svg, text


def step_words(example: Example) -> str:
    """What the drawing of a step shows, for those who cannot see it."""
    step, serial = example.settings.step(), example.settings.step(overlap=False)
    return (
        f"Predicted timeline of one training step, {example.title}: it takes {_ms(step.step_s)}, of which it waits "
        f"{_ms(step.exposed_s)} for the link after the backward; {_ms(serial.step_s)} without overlap, "
        f"{_ms(step.lower_bound_s)} at best. Below it, step time against bucket size."
    )


def step_figure(example: Example) -> str:
    """The timeline of a step and the curve of step time over bucket size."""
    settings = example.settings
    step, serial_s = settings.step(), settings.step(overlap=False).step_s
    left, right, longest = 90.0, WIDTH - 18.0, max(step.step_s, serial_s)
    end = step.forward_s + step.backward_s

    def x(seconds: float) -> float:
        return left + seconds / longest * (right - left)

    about = (
        f"{settings.ranks} ranks, {settings.algorithm}, {settings.gbit_per_s:g} Gbit/s, "
        f"{settings.latency_us:g} µs a hop; {settings.gradients_mib:g} MiB of gradients in {settings.layers} layers, "
        f"buckets of {settings.bucket_mib:g} MiB"
    )
    waits = f"{_ms(step.step_s)} a step, {_ms(step.exposed_s)} of it waiting for the link"
    parts = [text(waits, 0, 16, size=16, bold=True), text(about, 0, 34)]
    parts += [box(x(0), 50, x(step.forward_s) - x(0), 26, FAINT, SOFT)]
    parts += [box(x(step.forward_s), 50, x(end) - x(step.forward_s), 26, SOFT, SOFT, 0.5)]
    parts += [text("forward", (x(0) + x(step.forward_s)) / 2, 67, "middle")]
    parts += [text("backward", (x(step.forward_s) + x(end)) / 2, 67, "middle")]
    for layer in range(settings.layers):
        at = x(step.forward_s + step.backward_s * (layer + 1) / settings.layers)
        parts.append(line(at, 86, at, 98, INK))
    for one in step.timeline:
        hidden = min(one.end_s, end)
        if one.start_s < hidden:
            parts.append(box(x(one.start_s), 108, x(hidden) - x(one.start_s), 26, MARK, MARK, 0.35))
        if one.end_s > end:
            begin = max(one.start_s, end)
            parts.append(box(x(begin), 108, x(one.end_s) - x(begin), 26, MARK, FAINT))
    parts += [line(left, 144, right, 144, SOFT), text("ms" if longest < 10 else "s", right + 18, 162, "end")]
    for at in _marks(longest):
        parts += [line(x(at), 144, x(at), 148, SOFT)]
        parts += [text(f"{at if longest >= 10 else at * 1e3:.6g}", x(at), 162, "middle")] if x(at) < right - 20 else []
    rows = [("compute", 67.0), ("gradients", 97.0), ("link", 126.0)]
    bars = (("this step", step.step_s), ("no overlap", serial_s), ("at best", step.lower_bound_s))
    for row, (name, seconds) in enumerate(bars):
        y = 174 + 21 * row
        rows.append((name, y + 13))
        parts.append(box(left, y, x(seconds) - left, 17, FAINT, SOFT))
        if seconds > end:
            parts.append(box(x(end), y, x(seconds) - x(end), 17, MARK, "none", 0.3))
        parts.append(text(_ms(seconds), x(seconds) - 5, y + 13, "end"))
    parts += [text(name, left - 9, y, "end") for name, y in rows]
    parts += _curve(settings, step, left, right, top=282, bottom=390)
    return svg(428, step_words(example), parts)


def step_picture(example: Example) -> str:
    """The drawing as a file that stands alone, on a light card: the picture of the README."""
    drawing = step_figure(example)
    size = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 48}" height="476" viewBox="-24 -24 {WIDTH + 48} 476"'
    rest = drawing.partition(">")[2]
    card = f'<rect x="-24" y="-24" width="{WIDTH + 48}" height="476" rx="8" fill="#fdfcfa" stroke="{FAINT}"/>'
    return f'<svg {size} role="img"><title>{escape(step_words(example))}</title>{card}{rest}\n'


def _curve(settings: Settings, step: Step, left: float, right: float, *, top: float, bottom: float) -> list[str]:
    low, high, pieces = math.log2(0.25), math.log2(1024), 120
    sizes = [2 ** (low + (high - low) * n / pieces) for n in range(pieces + 1)]
    seconds = [settings.step(bucket_mib=size).step_s for size in sizes]
    most, least = max(seconds), step.lower_bound_s

    def x(mib: float) -> float:
        return left + (math.log2(mib) - low) / (high - low) * (right - left)

    def y(value: float) -> float:
        return bottom - 6 - (value - least) / max(most - least, most * 0.02) * (bottom - top - 10)

    points = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in zip(sizes, seconds, strict=True))
    parts = [line(left, bottom, right, bottom, SOFT), line(left, top, left, bottom, SOFT)]
    for mib in ("0.25", "1", "4", "25", "128", "1024"):
        parts += [line(x(float(mib)), bottom, x(float(mib)), bottom + 4, SOFT)]
        parts += [text(mib, x(float(mib)), bottom + 18, "middle")]
    parts += [text("bucket size in MiB", (left + right) / 2, bottom + 35, "middle")]
    parts += [text("step time", left - 9, top - 14, "end")]
    parts += [text(_ms(value), left - 9, y(value) + 4, "end") for value in (most, least)]
    parts += [line(left, y(least), right, y(least), SOFT, dashed=True)]
    parts += [f'<polyline fill="none" stroke="{MARK}" stroke-width="2" points="{points}"/>']
    best = min(range(pieces + 1), key=seconds.__getitem__)
    parts += [line(x(sizes[best]), y(seconds[best]), x(sizes[best]), bottom, SOFT)]
    parts += [f'<circle cx="{x(sizes[best]):.1f}" cy="{y(seconds[best]):.1f}" r="8" fill="none" stroke="{INK}"/>']
    here = settings.bucket_mib
    away, anchor = (-12, "end") if sizes[best] < here else (12, "start")  # from the label of the current size
    parts += [text(f"best: {_ms(seconds[best])}", x(sizes[best]) + away, y(seconds[best]) - 14, anchor)]
    parts += [f'<circle cx="{x(here):.1f}" cy="{y(step.step_s):.1f}" r="5.5" fill="{INK}"/>']
    rises = settings.step(bucket_mib=here * 1.5).step_s > settings.step(bucket_mib=here / 1.5).step_s
    beside, anchor = (-8, "end") if rises else (8, "start")  # the side on which the curve lies lower
    return [*parts, text(f"{here:g} MiB: {_ms(step.step_s)}", x(here) + beside, y(step.step_s) - 10, anchor)]


def _marks(longest: float) -> list[float]:
    """Round values from 0, at most nine."""
    power = 10.0 ** math.floor(math.log10(longest / 8))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= longest / 8)
    return [n * step for n in range(int(longest / step) + 1)]


def _ms(seconds: float) -> str:
    if seconds >= 9.9995:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.{2 if seconds < 0.000995 else 1 if seconds < 0.09995 else 0}f} ms"
