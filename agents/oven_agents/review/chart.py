"""Renders a metric as an inline SVG chart with labelled marks, for pages without scripts or external resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from oven_agents.review.flagged_proposals import Series

WIDTH = 900
"""Width of a chart in pixels."""
HEIGHT = 180
"""Height of a chart in pixels. Several charts fit on a screen."""
LEFT = 64
"""Left margin in pixels, for the axis labels."""
RIGHT = 8
"""Right margin in pixels."""
TOP = 18
"""Top margin in pixels, for the numbers of flags."""
BOTTOM = 22
"""Bottom margin in pixels, for the ticks."""
LABEL_CHARACTER = 8
"""Width of a character of a label in pixels, at most."""
MAX_COLUMNS = 400
"""Maximum number of columns in a chart. Each shows the range of a metric over a few ticks."""
VISIBLE_SHARE = 0.99
"""Share of the columns that the axis covers, so that a spike does not flatten the rest."""
CROP_FACTOR = 1.0
"""Distance from the axis, as a multiple of its length, beyond which values are cropped. Closer ones extend the axis."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a tick of a chart."""

    label: str
    tick: int
    css_class: str
    """One of the classes `harm`, `alarm` and `unknown` of the page's style."""
    tooltip: str


@dataclass(frozen=True, slots=True)
class _ColumnRange:
    """The range of a metric over the ticks of one column."""

    column: int
    low: float
    high: float


def render_chart(
    name: str, series: Series, marks: Sequence[Mark], first: int, last: int, ends: tuple[str, str] | None = None
) -> str:
    """Return a metric's chart with labelled marks from tick `first` to `last`. It is empty without finite values.

    `ends` are the labels at both ends of the axis, by default those ticks."""
    ranges = _column_ranges(series, first, last)
    if not ranges:
        return ""
    low, high = _axis(ranges)
    span = (high - low) or abs(high) or 1.0

    def x(tick: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (tick - first) / max(1, last - first)

    def y(value: float) -> float:
        share = min(max((value - low) / span, 0.0), 1.0)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    column_width = max(1, last - first) / MAX_COLUMNS
    tops = [f"{x(first + (item.column + 0.5) * column_width):.1f},{y(item.high):.1f}" for item in ranges]
    bottoms = [f"{x(first + (item.column + 0.5) * column_width):.1f},{y(item.low):.1f}" for item in reversed(ranges)]
    grid = "".join(
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>'
        for value in dict.fromkeys((low, (low + high) / 2, high))
    )
    lines = "".join(_render_mark(mark, x(mark.tick)) for mark in marks)
    outside = sum(item.high > high or item.low < low for item in ranges)
    start, end = ends or (f"tick {first:,}", f"{last:,}")
    note = f"; {outside} of {len(ranges)} columns extend beyond the axis" if outside else ""
    return (
        f"<figure><figcaption>{escape(name)}{note}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)} over the run">{grid}'
        f'<polygon points="{" ".join(tops + bottoms)}" class="band"/>{lines}'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{start}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{end}</text></svg></figure>'
    )


def _render_mark(mark: Mark, x: float) -> str:
    half = LABEL_CHARACTER * len(mark.label) / 2
    anchor = "start" if x - half < LEFT else "end" if x + half > WIDTH else "middle"
    return (
        f'<g class="{mark.css_class}"><title>{escape(mark.tooltip[:200])}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{x:.1f}" y="{TOP - 5}" text-anchor="{anchor}">{escape(mark.label)}</text></g>'
    )


def _column_ranges(series: Series, first: int, last: int) -> list[_ColumnRange]:
    extremes: dict[int, tuple[float, float]] = {}
    for tick, value in zip(series.ticks, series.values, strict=True):
        if math.isfinite(value):
            column = min(MAX_COLUMNS - 1, MAX_COLUMNS * (tick - first) // max(1, last - first))
            low, high = extremes.get(column, (value, value))
            extremes[column] = min(low, value), max(high, value)
    return [_ColumnRange(column, low, high) for column, (low, high) in sorted(extremes.items())]


def _axis(ranges: Sequence[_ColumnRange]) -> tuple[float, float]:
    """Return the lowest and the highest value on the axis, without those beyond VISIBLE_SHARE and CROP_FACTOR."""
    lows, highs = sorted(item.low for item in ranges), sorted(item.high for item in ranges)
    outside_count = int((1 - VISIBLE_SHARE) * len(ranges))
    low, high = lows[outside_count], highs[len(highs) - 1 - outside_count]
    margin = CROP_FACTOR * (high - low)
    if not margin or lows[0] >= low - margin:
        low = lows[0]
    if not margin or highs[-1] <= high + margin:
        high = highs[-1]
    return low, high
