"""A line chart in braille: a grid of dots, two by four per cell. Numbers in, runs of text out."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from oven_tui.model.metric_series import Bucket

Style: TypeAlias = Literal["noisy", "measured", "set"]
"""`noisy`: raw values dim under a bright average. `measured`: points joined by a line. `set`: the steps of a knob."""

Run: TypeAlias = tuple[str, str]
"""A text and its kind: "blank", "raw", "line", "broken", "cross", "change", or the kind of a mark."""

Grid: TypeAlias = list[bytearray]
"""Rows of cells, each with its eight dots."""

# Of each dot of a cell, by [column][row from the top] (Unicode block U+2800).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_SPANS = tuple([[sum(dots[top : bottom + 1]) for bottom in range(4)] for top in range(4)] for dots in _DOTS)
"""The dots from one row to another, by [column][upper][lower]."""
_BRAILLE = [chr(0x2800 | dots) for dots in range(256)]
_BLANK: Run = (" ", "blank")


class Mark(NamedTuple):
    """A vertical line at a cell with a glyph at its head."""

    glyph: str
    kind: str


@dataclass(frozen=True)
class Bounds:
    """The values at the bottom and the top of a chart."""

    low: float
    high: float
    log: bool = False

    def height(self, value: float) -> float:
        """Return 0 at the bottom and 1 at the top; values outside are clipped."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if self.log:
            value = math.log(value) if value > 0 else low
        room = high / 2 - low / 2  # halves: the largest floats are further apart than a float reaches
        return min(1.0, max(0.0, (value / 2 - low / 2) / room)) if room > 0 else 0.5

    def middle(self) -> float:
        return math.sqrt(self.low * self.high) if self.log else self.low / 2 + self.high / 2


@dataclass(frozen=True)
class Axis:
    """The ticks that all charts show."""

    first: int
    last: int

    def cell(self, tick: int, width: int) -> int | None:
        """Return the cell of a tick among `width` cells; None if it is not shown."""
        if not self.first <= tick <= self.last:
            return None
        return int((tick - self.first) * width / (self.last - self.first + 1))


def bounds(columns: Sequence[Bucket], style: Style, log: bool = False) -> Bounds:
    """Return round numbers around all measured values. Knobs that range over more than a factor of 20 get a log scale,
    and so does a metric on request if all of it is above 0."""
    low = min((c.low for c in columns if c.low <= c.high), default=0.0)
    high = max((c.high for c in columns if c.low <= c.high), default=1.0)
    far = style == "set" and low < high / 20
    if (log or far) and 1e-300 < low <= high < 1e300:
        bottom, top = _round_down(low), _round_up(high)
        return Bounds(bottom, top if top > bottom else _round_up(top * 1.5), log=True)
    if low == high:
        around = abs(low) / 2 or 1.0
        low, high = max(low - around, -sys.float_info.max), min(high + around, sys.float_info.max)
    half = (high / 2 - low / 2) / 2
    step = _round_up(half, (1, 2, 2.5, 5)) if half > 0 else 0.0
    if not (math.isfinite(step) and step > 0) or math.floor(low / step) == math.ceil(high / step):
        return Bounds(low, high if high > low else math.nextafter(low, math.inf))
    bottom, top = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return Bounds(bottom, top) if -math.inf < bottom < top < math.inf else Bounds(low, high)


def _round_down(value: float) -> float:
    """Return the largest of 1, 2, 5 times a power of ten that is not above the positive `value`."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return next((factor * power for factor in (5, 2, 1) if factor * power <= value * (1 + 1e-9)), power)


def _round_up(value: float, factors: Sequence[float] = (1, 2, 5)) -> float:
    """Return the smallest of the factors times a power of ten that is not below the positive `value`."""
    power = 10.0 ** max(-300, math.floor(math.log10(value) + 1e-9))
    return next((factor * power for factor in factors if factor * power >= value * (1 - 1e-9)), 10 * power)


def span(first: int, last: int, end: int | None) -> int:
    """Return the last tick of an x-axis that need not move with every observation: at most a third of free space, up to
    the horizon `end` if it is known."""
    wide = 30.0
    while wide < last - first:
        wide *= 1.25
    edge = first + math.ceil(wide)
    return max(last, min(edge, end)) if end is not None else edge


def draw(
    columns: Sequence[Bucket],
    scale: Bounds,
    style: Style,
    marks: Mapping[int, Mark],
    width: int,
    height: int,
    forecast: Sequence[Bucket] = (),
    cross: int | None = None,
) -> list[list[Run]]:
    """Return the rows of one metric's chart, with its raw values behind the average if it is noisy. Marks count cells;
    `cross` is the cell of the crosshair."""
    curves = [("change", forecast), ("line", averaged(columns, style))]
    curves += [("raw", columns)] if style == "noisy" else []
    under: dict[int, Run] = {} if cross is None else {cross: ("│", "cross")}
    under |= {x: ("┊", mark.kind) for x, mark in marks.items() if x != cross}
    foot = {column.key >> 1: ("×", "broken") for column in columns if column.broken}
    return plot(curves, scale, style, marks, width, height, foot, under)


def averaged(columns: Sequence[Bucket], style: Style) -> Sequence[Bucket]:
    """Return the columns to draw as a line: the average of a noisy metric, otherwise the value itself."""
    if style != "noisy":
        return columns
    return [
        Bucket(column.key, column.smooth, column.smooth, column.smooth, column.smooth, column.broken)
        if column.low <= column.high
        else column
        for column in columns
    ]


def plot(
    curves: Sequence[tuple[str, Sequence[Bucket]]],
    scale: Bounds,
    style: Style,
    marks: Mapping[int, Mark],
    width: int,
    height: int,
    foot: Mapping[int, Run] | None = None,
    under: Mapping[int, Run] | None = None,
) -> list[list[Run]]:
    """Return `height` rows of runs, each `width` cells. Curves are a kind of text and columns that count dots (two per
    cell), the foremost curve first. `foot` are cells of the last row, `under` those behind the curves."""
    dots = height * 4 - 1

    def row(value: float) -> int:
        return dots - round(scale.height(value) * dots)

    def grid_of(columns: Sequence[Bucket]) -> Grid:
        grid = [bytearray(width) for _ in range(height)]
        before: tuple[int, int] | None = None
        for column in columns:
            if column.low > column.high or column.key >= 2 * width:
                before = None  # a gap: nothing finite here
                continue
            _upright(grid, column.key, row(column.high), row(column.low))
            here = (column.key, row(column.last))
            _join(grid, before or here, here, style)
            before = None if column.broken else here
        return grid

    grids = [(grid_of(columns), kind) for kind, columns in curves if columns]
    head = {x: (mark.glyph, mark.kind) for x, mark in marks.items()}
    made = []
    for y in range(height):
        cells = [(grid[y], kind) for grid, kind in grids if any(grid[y])]
        over = dict(foot or {} if y == height - 1 else {}) | (head if y == 0 else {})
        made.append(_row(cells, over, under or {}, width))
    return made


def value_label(y: int, height: int, scale: Bounds, gutter: int, *, middle: bool = True) -> str:
    """Return the left edge of a chart's row, with its value at the top, at the bottom, and in the middle if high."""
    value = {0: scale.high, height - 1: scale.low}.get(y)
    if middle and height >= 7 and y == height // 2:
        value = scale.middle()
    return (label(value).rjust(gutter - 1) + "┤") if value is not None else " " * (gutter - 1) + "│"


def _upright(grid: Grid, x: int, top: int, bottom: int) -> None:
    cell, spans = x >> 1, _SPANS[x & 1]
    first, last = top >> 2, bottom >> 2
    if first == last:
        grid[first][cell] |= spans[top & 3][bottom & 3]
        return
    grid[first][cell] |= spans[top & 3][3]
    for y in range(first + 1, last):
        grid[y][cell] |= spans[0][3]
    grid[last][cell] |= spans[0][bottom & 3]


def _join(grid: Grid, before: tuple[int, int], here: tuple[int, int], style: Style) -> None:
    """Return the dots from one point to the next: straight, or level and then upright for a knob."""
    (x0, y0), (x1, y1) = before, here
    wide, high = x1 - x0, y1 - y0
    if style == "set":
        for x in range(x0, x1 + 1):
            grid[y0 >> 2][x >> 1] |= _DOTS[x & 1][y0 & 3]
        _upright(grid, x1, min(y0, y1), max(y0, y1))
    elif abs(high) <= wide:
        slope = high / wide if wide else 0.0
        for x in range(x0, x1 + 1):
            y = y0 + round(slope * (x - x0))
            grid[y >> 2][x >> 1] |= _DOTS[x & 1][y & 3]
    else:
        y, way = y0, 1 if high > 0 else -1
        for x in range(x0, x1):
            end = y0 + round(high * (x - x0 + 0.5) / wide)
            _upright(grid, x, min(y, end), max(y, end))
            y = end + way
        _upright(grid, x1, min(y, y1), max(y, y1))


def _row(
    here: Sequence[tuple[bytearray, str]], over: Mapping[int, Run], under: Mapping[int, Run], width: int
) -> list[Run]:
    """Return one row. If several things meet in a cell, the order is: a mark's glyph or a broken value, the first layer
    with a dot, a mark's line."""
    chars: list[str] = []
    runs: list[Run] = []
    now = ""
    for x in range(width):
        if x in over:
            char, kind = over[x]
        else:
            for cells, drawn in here:
                if cells[x]:
                    char, kind = _BRAILLE[cells[x]], drawn
                    break
            else:
                char, kind = under.get(x, _BLANK)
        if kind != now:
            if chars:
                runs.append(("".join(chars), now))
            chars, now = [], kind
        chars.append(char)
    runs.append(("".join(chars), now))
    return runs


def label(value: float) -> str:
    """Return a number in at most six characters, for an axis."""
    if not math.isfinite(value):
        return str(value)
    for digits in (3, 2, 1):
        text = f"{value:.{digits}g}"
        if 0 < abs(value) < 1e-3 or abs(value) >= 1e5:
            text = f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        if len(text) <= 6:
            return text
    return text[:6]
