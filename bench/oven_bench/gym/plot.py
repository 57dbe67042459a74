"""Arms by score as a picture, written as SVG by hand: a bar with its interval for each, a dot for each family."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from oven_bench.gym.score import FLOOR, ArmScore

WIDTH, ROW, LEFT, RIGHT, TOP = 860, 26, 190, 40, 46
MOST = 2.0
"""Scores above are drawn at the edge, as an arrow's head: one family must not press all others together."""

CAPTION = (
    "share of the harm undone; 0: nothing done, 1: as if there had been no fault; "
    "bars: mean over families and 95 % interval; dots: families"
)


def svg(arms: Mapping[str, ArmScore], title: str) -> str:
    """Best first, as they come. Left of the line at 0 is worse than doing nothing."""
    highest = max([1.0, *(max(each.score.high, *each.families.values()) for each in arms.values())])
    top = min(MOST, highest)
    height = TOP + ROW * len(arms) + 40

    def x(value: float) -> float:
        share = (min(max(value, FLOOR), top) - FLOOR) / (top - FLOOR)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
    ]
    for value in (FLOOR, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0):
        if value <= top:
            colour = "#444" if value == 0 else "#ddd"
            bottom = TOP + ROW * len(arms)
            parts.append(f'<line x1="{x(value)}" x2="{x(value)}" y1="{TOP - 6}" y2="{bottom}" stroke="{colour}"/>')
            parts.append(f'<text x="{x(value)}" y="{bottom + 16}" text-anchor="middle" fill="#444">{value:g}</text>')
    below = f'x="{WIDTH / 2}" y="{height - 6}" text-anchor="middle"'
    parts.append(f'<text {below} font-size="11" fill="#444">{CAPTION}</text>')
    for index, (arm, each) in enumerate(arms.items()):
        middle = TOP + ROW * index + ROW / 2
        begin, end = sorted((x(0), x(each.score.mean)))
        colour = "#7fb3d5" if each.score.mean >= 0 else "#e59866"
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(arm)}</text>',
            f'<rect x="{begin}" y="{middle - 7}" width="{round(end - begin, 1)}" height="14" fill="{colour}"/>',
            f'<line x1="{x(each.score.low)}" x2="{x(each.score.high)}" y1="{middle}" y2="{middle}" stroke="black"/>',
        ]
        for family, mean in each.families.items():
            parts.append(
                f'<circle cx="{x(mean)}" cy="{middle}" r="2.5" fill="#1b2631" fill-opacity="0.55">'
                f"<title>{escape(family)}: {mean:+.3f}</title></circle>"
            )
    return "\n".join([*parts, "</svg>", ""])
