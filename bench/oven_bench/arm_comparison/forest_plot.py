"""Arms against a base as a picture, written as SVG by hand: a dot with its 95 % interval for each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

from oven_bench.arm_comparison.clustered import Comparison

WIDTH, ROW, LEFT, RIGHT, TOP = 860, 30, 230, 150, 50
COLOURS: Final = {"HELPS": "#1e8449", "HARMS": "#b03a2e", "NO EFFECT": "#1f618d", "INCONCLUSIVE": "#7f8c8d"}
LEAST: Final = 0.05
"""Half of the axis at least, in rates: differences of a point are not blown up to fill it."""


def svg(
    comparisons: Mapping[str, Comparison], title: str, base: str, equivalence: float, detectable: float | None
) -> str:
    """In the order in which they come. The grey band is ± `equivalence`, the dashed line the gain that was said to be
    detectable before the run."""
    ends = [abs(end) for one in comparisons.values() for end in (one.low, one.high)]
    most = 1.05 * max([LEAST, 1.5 * equivalence, detectable or 0.0, *ends])
    bottom = TOP + ROW * len(comparisons)
    height = bottom + 56

    def x(value: float) -> float:
        return round(LEFT + (value + most) / (2 * most) * (WIDTH - LEFT - RIGHT), 1)

    band = x(equivalence) - x(-equivalence)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
        f'<rect x="{x(-equivalence)}" y="{TOP - 8}" width="{band:.1f}" height="{bottom - TOP + 8}" fill="#ecf0f1"/>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{TOP - 8}" y2="{bottom}" stroke="#444"/>',
    ]
    if detectable is not None:
        at = x(detectable)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{TOP - 8}" y2="{bottom}" stroke="#444" stroke-dasharray="4 3"/>')
    parts += [
        f'<text x="{x(value)}" y="{bottom + 16}" text-anchor="middle" fill="#444">{100 * value:+.0f}</text>'
        for value in _ticks(most)
    ]
    caption = f"difference from {base} in points of the success rate, and 95 % interval"
    parts.append(f'<text x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle" fill="#444">{escape(caption)}</text>')
    for place, (arm, one) in enumerate(comparisons.items()):
        middle, colour = TOP + ROW * place + ROW / 2, COLOURS[one.verdict]
        parts += [
            f'<text x="{LEFT - 12}" y="{middle + 4}" text-anchor="end">{escape(arm)}</text>',
            f'<line x1="{x(one.low)}" x2="{x(one.high)}" y1="{middle}" y2="{middle}" stroke="{colour}" '
            'stroke-width="2"/>',
            f'<circle cx="{x(one.difference)}" cy="{middle}" r="4" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT + 12}" y="{middle + 4}" fill="{colour}">{100 * one.difference:+.1f} '
            f"{one.verdict}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def _ticks(most: float) -> list[float]:
    """Round values, five to nine of them, 0 among them."""
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most / step <= 4.99 or step == 0.5)
    count = int(most / step)
    return [step * place for place in range(-count, count + 1)]
