"""A line chart in braille: a grid of dots, two by four to a cell; numbers in, runs of text out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from oven_tui.model.metric_series import Column

Style: TypeAlias = Literal["noisy", "measured", "set"]
"""`noisy`: raw and dim under a bright average. `measured`: points joined by a bright line. `set`: a knob's steps."""

Run: TypeAlias = tuple[str, str]
"""Text, and what it is: "blank", "raw", "line", "broken", the kind of a branch, or that of a mark."""

# Of each dot of a cell, by [column][row from the top] (Unicode block U+2800).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Mark(NamedTuple):
    """A vertical line at a cell, with a glyph at its head."""

    glyph: str
    kind: str


class Branch(NamedTuple):
    """One branch of a trial: measured points, joined by a line, beside the run's own."""

    columns: Sequence[Column]
    kind: Literal["control", "change", "trace"]
    """The control of a trial under way; a change; a branch of one that is over."""


@dataclass(frozen=True)
class Bounds:
    """What the bottom and the top of a chart stand for."""

    low: float
    high: float
    log: bool = False

    def height(self, value: float) -> float:
        """0 at the bottom, 1 at the top; values outside are cut to that."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if self.log:
            value = math.log(value) if value > 0 else low
        room = high / 2 - low / 2  # halves: the largest floats are further apart than a float reaches
        return min(1.0, max(0.0, (value / 2 - low / 2) / room)) if room > 0 else 0.5

    def middle(self) -> float:
        return math.sqrt(self.low * self.high) if self.log else self.low / 2 + self.high / 2


def bounds(columns: Sequence[Column], style: Style) -> Bounds:
    """Round numbers around all that was measured. Knobs that range over more than a factor of 20 get a log scale."""
    low = min((c.low for c in columns if c.low <= c.high), default=0.0)
    high = max((c.high for c in columns if c.low <= c.high), default=1.0)
    if style == "set" and 1e-300 < low < high / 20 < 1e300:
        return Bounds(10.0 ** math.floor(math.log10(low) + 1e-9), 10.0 ** math.ceil(math.log10(high) - 1e-9), log=True)
    if low == high:
        around = abs(low) / 2 or 1.0
        low, high = max(low - around, -sys.float_info.max), min(high + around, sys.float_info.max)
    step = _round_step((high / 2 - low / 2) / 2)
    if not (math.isfinite(step) and step > 0) or math.floor(low / step) == math.ceil(high / step):
        return Bounds(low, high if high > low else math.nextafter(low, math.inf))
    bottom, top = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return Bounds(bottom, top) if -math.inf < bottom < top < math.inf else Bounds(low, high)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `least`."""
    if not least > 0:
        return 0.0
    power = 10.0 ** max(-300, math.floor(math.log10(least)))
    return next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= least), 10 * power)


def span(first: int, last: int, end: int | None) -> int:
    """The last tick of an x-axis that need not move with every observation: a third of room at most, up to the
    horizon `end` where one is known."""
    wide = 30.0
    while wide < last - first:
        wide *= 1.25
    edge = first + math.ceil(wide)
    return max(last, min(edge, end)) if end is not None else edge


def draw(
    columns: Sequence[Column],
    scale: Bounds,
    style: Style,
    marks: Mapping[int, Mark],
    width: int,
    height: int,
    branches: Sequence[Branch] = (),
) -> list[list[Run]]:
    """`height` rows of runs, `width` cells each in all. Columns count dots (two to a cell), marks count cells."""
    raw = [[0] * width for _ in range(height)]
    line = [[0] * width for _ in range(height)]
    dots = height * 4 - 1

    def row(value: float) -> int:
        return dots - round(scale.height(value) * dots)

    before: tuple[int, int] | None = None
    raw_before: tuple[int, int] | None = None
    for column in columns:
        if column.low > column.high:
            before = raw_before = None  # a gap: nothing finite here
            continue
        if style == "noisy":
            _upright(raw, column.x, row(column.high), row(column.low))
            raw_here = (column.x, row(column.last))
            for x, y in _between(raw_before, raw_here, style):
                raw[y >> 2][x >> 1] |= _DOTS[x & 1][y & 3]
            here, raw_before = (column.x, row(column.smooth)), None if column.broken else raw_here
        else:
            _upright(line, column.x, row(column.high), row(column.low))
            here = (column.x, row(column.last))
        for x, y in _between(before, here, style):
            line[y >> 2][x >> 1] |= _DOTS[x & 1][y & 3]
        before = None if column.broken else here
    broken = {column.x >> 1 for column in columns if column.broken}
    layers = {kind: [[0] * width for _ in range(height)] for kind in ("trace", "control", "change")}
    for branch in branches:
        before = None
        for column in branch.columns:
            if column.low > column.high or column.x >= 2 * width:
                before = None
                continue
            here = (column.x, row(column.last))
            for x, y in _between(before, here, style):
                layers[branch.kind][y >> 2][x >> 1] |= _DOTS[x & 1][y & 3]
            before = here
    made = []
    for y in range(height):
        grids = [(layers["change"][y], "change"), (line[y], "line"), (layers["control"][y], "control")]
        grids += [(layers["trace"][y], "trace"), (raw[y], "raw")]
        made.append(_row(grids, marks, broken, width, head=y == 0, foot=y == height - 1))
    return made


def _upright(grid: list[list[int]], x: int, top: int, bottom: int) -> None:
    for y in range(top, bottom + 1):
        grid[y >> 2][x >> 1] |= _DOTS[x & 1][y & 3]


def _between(before: tuple[int, int] | None, here: tuple[int, int], style: Style) -> Iterator[tuple[int, int]]:
    """The dots from one point to the next: straight, or level and then upright for what is set."""
    x1, y1 = here
    x0, y0 = before or here
    if style == "set":
        yield from ((x, y0) for x in range(x0, x1 + 1))
        yield from ((x1, y) for y in range(min(y0, y1), max(y0, y1) + 1))
        return
    steps = max(x1 - x0, abs(y1 - y0), 1)
    for step in range(steps + 1):
        yield x0 + round((x1 - x0) * step / steps), y0 + round((y1 - y0) * step / steps)


def _row(
    grids: Sequence[tuple[list[int], str]],
    marks: Mapping[int, Mark],
    broken: set[int],
    width: int,
    *,
    head: bool,
    foot: bool,
) -> list[Run]:
    """Where several things meet in a cell: a mark's glyph, a broken value, the first of `grids` with a dot there, a
    mark's line."""
    runs: list[tuple[list[str], str]] = []
    for x in range(width):
        dots, drawn = next(((grid[x], kind) for grid, kind in grids if grid[x]), (0, ""))
        if head and x in marks:
            char, kind = marks[x].glyph, marks[x].kind
        elif foot and x in broken:
            char, kind = "×", "broken"
        elif dots:
            char, kind = chr(0x2800 | dots), drawn
        elif x in marks:
            char, kind = "┊", marks[x].kind
        else:
            char, kind = " ", "blank"
        if runs and runs[-1][1] == kind:
            runs[-1][0].append(char)
        else:
            runs.append(([char], kind))
    return [("".join(chars), kind) for chars, kind in runs]


def label(value: float) -> str:
    """A number in at most six characters, for an axis."""
    if not math.isfinite(value):
        return str(value)
    for digits in (3, 2, 1):
        text = f"{value:.{digits}g}"
        if 0 < abs(value) < 1e-3 or abs(value) >= 1e5:
            text = f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        if len(text) <= 6:
            return text
    return text[:6]
