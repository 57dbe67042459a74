"""One metric over a run as inline SVG: what its values span in each of some hundred stretches, and the flags on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from oven_agents.review.flagged_proposals import Flag, Series

WIDTH = 900
"""Of a chart, in pixels: as wide as a page of text."""
HEIGHT = 180
"""Of a chart, in pixels: low, so that several fit on a screen."""
LEFT = 64
"""Pixels for the figures of the axis."""
TOP = 18
"""Pixels above the curve, for the numbers of flags."""
BOTTOM = 22
"""Pixels below it, for the ticks."""
COLUMNS = 400
"""Stretches of ticks that are drawn as one."""
SHOWN = 0.99
"""Share of the stretches whose span lies within the axis: a spike must not flatten all the rest."""
CROPPED = 1.0
"""How much longer the axis would be for the others, as a multiple of itself; else they are on it."""
MARKS = 200
"""Flags that are drawn at most."""
COLOURS = {"false alarm": "late", "harm": "harm", "unknown": "open"}


@dataclass(frozen=True, slots=True)
class _Stretch:
    column: int
    low: float
    high: float


def chart(name: str, series: Series, flags: Sequence[Flag], first: int, last: int) -> str:
    """`flags` with their numbers from 1; `first` and `last` are the run's ticks. Empty where nothing is finite."""
    stretches = _stretches(series, first, last)
    if not stretches:
        return ""
    low, high = _axis(stretches)
    span = high - low or abs(high) or 1.0

    def x(tick: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * (tick - first) / max(1, last - first)

    def y(value: float) -> float:
        share = min(max((value - low) / span, 0.0), 1.0)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    wide = max(1, last - first) / COLUMNS
    tops = [f"{x(first + (s.column + 0.5) * wide):.1f},{y(s.high):.1f}" for s in stretches]
    bottoms = [f"{x(first + (s.column + 0.5) * wide):.1f},{y(s.low):.1f}" for s in reversed(stretches)]
    ticks = "".join(
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>'
        for value in dict.fromkeys((low, (low + high) / 2, high))
    )
    marks = "".join(_mark(number, flag, x(flag.tick)) for number, flag in enumerate(flags[:MARKS], 1))
    outside = sum(s.high > high or s.low < low for s in stretches)
    note = f"; {outside} of {len(stretches)} stretches reach beyond the axis" if outside else ""
    return (
        f"<figure><figcaption>{escape(name)}{note}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)} over the run">{ticks}'
        f'<polygon points="{" ".join(tops + bottoms)}" class="band"/>{marks}'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">tick {first:,}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">{last:,}</text></svg></figure>'
    )


def _mark(number: int, flag: Flag, x: float) -> str:
    tooltip = escape(f"{number}: {flag.agent}, step {flag.step:,}: {flag.first.vote.rationale}"[:200])
    return (
        f'<g class="{COLOURS[flag.likely]}"><title>{tooltip}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{x:.1f}" y="{TOP - 5}" text-anchor="middle">{number}</text></g>'
    )


def _stretches(series: Series, first: int, last: int) -> list[_Stretch]:
    extremes: dict[int, tuple[float, float]] = {}
    for tick, value in zip(series.ticks, series.values, strict=True):
        if math.isfinite(value):
            column = min(COLUMNS - 1, COLUMNS * (tick - first) // max(1, last - first))
            low, high = extremes.get(column, (value, value))
            extremes[column] = min(low, value), max(high, value)
    return [_Stretch(column, low, high) for column, (low, high) in sorted(extremes.items())]


def _axis(stretches: Sequence[_Stretch]) -> tuple[float, float]:
    lows, highs = sorted(s.low for s in stretches), sorted(s.high for s in stretches)
    left_out = int((1 - SHOWN) * len(stretches))
    low, high = lows[left_out], highs[len(highs) - 1 - left_out]
    room = CROPPED * (high - low)
    if not room:
        return lows[0], highs[-1]
    return (low if lows[0] < low - room else lows[0]), (high if highs[-1] > high + room else highs[-1])
