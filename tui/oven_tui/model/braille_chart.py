"""Draws line charts with braille characters, whose dots form a grid with two by four dots per cell. The result is rows
of styled text."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from oven_tui.model.cell_text import TextRun
from oven_tui.model.metric_series import Bucket

CurveStyle: TypeAlias = Literal["noisy", "measured", "set"]
"""How a curve is drawn. `noisy` draws a bright average over dim raw values, `measured` a line through the points, and
`set` the steps of a knob."""
Grid: TypeAlias = list[bytearray]
"""Rows of cells. Each cell is a byte with one bit per dot."""

# The bit of each dot in a cell, indexed by [column][row from the top], as in the Unicode block U+2800.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_SPANS = tuple([[sum(dots[top : bottom + 1]) for bottom in range(4)] for top in range(4)] for dots in _DOTS)
"""The bits of all dots between two rows of a cell, indexed by [column][upper row][lower row]."""
_BRAILLE = [chr(0x2800 | dots) for dots in range(256)]
_BLANK: TextRun = (" ", "blank")


class Mark(NamedTuple):
    """A vertical line with a glyph at its top."""

    glyph: str
    kind: str


@dataclass(frozen=True)
class Bounds:
    """The values at the bottom and the top of a chart."""

    low: float
    high: float
    log: bool = False

    def height(self, value: float) -> float:
        """Return a value's height, from 0 at the bottom to 1 at the top. Values outside are clipped."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if self.log:
            value = math.log(value) if value > 0 else low
        half_range = high / 2 - low / 2  # halves, because the full range of floats overflows
        return min(1.0, max(0.0, (value / 2 - low / 2) / half_range)) if half_range > 0 else 0.5

    def middle(self) -> float:
        return math.sqrt(self.low * self.high) if self.log else self.low / 2 + self.high / 2


@dataclass(frozen=True)
class TickAxis:
    """The range of ticks that all charts show."""

    first: int
    last: int

    def cell(self, tick: int, width: int) -> int | None:
        """Return the cell of a tick among `width` cells, or None if it is not shown."""
        if not self.first <= tick <= self.last:
            return None
        return int((tick - self.first) * width / (self.last - self.first + 1))


def round_bounds(columns: Sequence[Bucket], style: CurveStyle, log: bool = False) -> Bounds:
    """Return round bounds around all measured values. A knob whose values differ by more than a factor of 20 gets a log
    scale. So does any metric with `log`, if all its values are above 0."""
    low = min((column.low for column in columns if column.low <= column.high), default=0.0)
    high = max((column.high for column in columns if column.low <= column.high), default=1.0)
    has_wide_range = style == "set" and low < high / 20
    if (log or has_wide_range) and 1e-300 < low <= high < 1e300:
        bottom, top = _round_down(low), _round_up(high)
        return Bounds(bottom, top if top > bottom else _round_up(top * 1.5), log=True)
    if low == high:
        margin = abs(low) / 2 or 1.0
        low, high = max(low - margin, -sys.float_info.max), min(high + margin, sys.float_info.max)
    quarter = (high / 2 - low / 2) / 2
    step = _round_up(quarter, (1, 2, 2.5, 5)) if quarter > 0 else 0.0
    if not (math.isfinite(step) and step > 0) or math.floor(low / step) == math.ceil(high / step):
        # No round values fit this range.
        return Bounds(low, high if high > low else math.nextafter(low, math.inf))
    bottom, top = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return Bounds(bottom, top) if -math.inf < bottom < top < math.inf else Bounds(low, high)


def _round_down(value: float) -> float:
    """Round a positive value down to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return next((factor * power for factor in (5, 2, 1) if factor * power <= value * (1 + 1e-9)), power)


def _round_up(value: float, factors: Sequence[float] = (1, 2, 5)) -> float:
    """Round a positive value up to one of the factors times a power of ten."""
    power = 10.0 ** max(-300, math.floor(math.log10(value) + 1e-9))
    return next((factor * power for factor in factors if factor * power >= value * (1 - 1e-9)), 10 * power)


def axis_end(first: int, last: int, horizon: int | None) -> int:
    """Return the last tick of an x-axis. It changes rarely, and leaves at most a third of the axis empty. If
    the tick of the run's end (`horizon`) is known, the axis does not extend beyond it."""
    width = 30.0
    while width < last - first:
        width *= 1.25
    end = first + math.ceil(width)
    return max(last, min(end, horizon)) if horizon is not None else end


def draw_chart(
    columns: Sequence[Bucket],
    bounds: Bounds,
    style: CurveStyle,
    marks: Mapping[int, Mark],
    width: int,
    height: int,
    forecast: Sequence[Bucket] = (),
    crosshair: int | None = None,
) -> list[list[TextRun]]:
    """Return the rows of one metric's chart. The raw values of a noisy metric are drawn behind its average. The keys of
    `marks`, and `crosshair`, are positions in cells."""
    curves = [("change", forecast), ("line", averaged(columns, style))]
    curves += [("raw", columns)] if style == "noisy" else []
    background: dict[int, TextRun] = {} if crosshair is None else {crosshair: ("│", "cross")}
    background |= {x: ("┊", mark.kind) for x, mark in marks.items() if x != crosshair}
    last_row = {column.key >> 1: ("×", "broken") for column in columns if column.broken_count}
    return plot_curves(curves, bounds, style, marks, width, height, last_row, background)


def averaged(columns: Sequence[Bucket], style: CurveStyle) -> Sequence[Bucket]:
    """Return the columns to draw as a line: the average of a noisy metric, or the values of any other."""
    if style != "noisy":
        return columns
    return [
        Bucket(column.key, column.smooth, column.smooth, column.smooth, column.smooth, column.broken_count)
        if column.low <= column.high
        else column
        for column in columns
    ]


def plot_curves(
    curves: Sequence[tuple[str, Sequence[Bucket]]],
    bounds: Bounds,
    style: CurveStyle,
    marks: Mapping[int, Mark],
    width: int,
    height: int,
    last_row: Mapping[int, TextRun] | None = None,
    background: Mapping[int, TextRun] | None = None,
) -> list[list[TextRun]]:
    """Return `height` rows of text, each `width` cells wide. Each curve is a pair of a kind of text and its columns,
    whose keys are positions in dots (two per cell). The first curve is in front. `last_row` replaces cells of the last
    row, and `background` contains cells to draw behind the curves."""
    max_dot = height * 4 - 1

    def dot_row(value: float) -> int:
        return max_dot - round(bounds.height(value) * max_dot)

    def draw_curve(columns: Sequence[Bucket]) -> Grid:
        grid = [bytearray(width) for _ in range(height)]
        previous_point: tuple[int, int] | None = None
        for column in columns:
            if column.low > column.high or column.key >= 2 * width:
                previous_point = None  # no finite value, so the line has a gap
                continue
            top = dot_row(column.high)
            bottom = top if column.low == column.high else dot_row(column.low)
            _draw_vertical(grid, column.key, top, bottom)
            point = (column.key, top if column.last == column.high else dot_row(column.last))
            _draw_line(grid, previous_point or point, point, style)
            previous_point = None if column.broken_count else point
        return grid

    grids = [(draw_curve(columns), kind) for kind, columns in curves if columns]
    mark_cells = {x: (mark.glyph, mark.kind) for x, mark in marks.items()}
    rows = []
    for y in range(height):
        cells = [(grid[y], kind) for grid, kind in grids if any(grid[y])]
        foreground = dict(last_row or {}) if y == height - 1 else {}
        if y == 0:
            foreground |= mark_cells
        rows.append(_join_layers(cells, foreground, background or {}, width))
    return rows


def value_label(y: int, height: int, bounds: Bounds, gutter: int, *, show_middle: bool = True) -> str:
    """Return the left edge of a chart's row, with the value of the top, the bottom or, in a high chart, the middle."""
    value = {0: bounds.high, height - 1: bounds.low}.get(y)
    if show_middle and height >= 7 and y == height // 2:
        value = bounds.middle()
    return (axis_number(value).rjust(gutter - 1) + "┤") if value is not None else " " * (gutter - 1) + "│"


def _draw_vertical(grid: Grid, x: int, top: int, bottom: int) -> None:
    """Draw the dots of a column from `top` to `bottom`, both in dots."""
    cell, spans = x >> 1, _SPANS[x & 1]
    first, last = top >> 2, bottom >> 2
    if first == last:
        grid[first][cell] |= spans[top & 3][bottom & 3]
        return
    grid[first][cell] |= spans[top & 3][3]
    for y in range(first + 1, last):
        grid[y][cell] |= spans[0][3]
    grid[last][cell] |= spans[0][bottom & 3]


def _draw_line(grid: Grid, start: tuple[int, int], end: tuple[int, int], style: CurveStyle) -> None:
    """Draw the line between two points. For a knob it is a step: first horizontal, then vertical."""
    (x0, y0), (x1, y1) = start, end
    dx, dy = x1 - x0, y1 - y0
    if style == "set":
        for x in range(x0, x1 + 1):
            grid[y0 >> 2][x >> 1] |= _DOTS[x & 1][y0 & 3]
        _draw_vertical(grid, x1, min(y0, y1), max(y0, y1))
    elif abs(dy) <= dx:
        slope = dy / dx if dx else 0.0
        for x in range(x0, x1 + 1):
            y = y0 + round(slope * (x - x0))
            grid[y >> 2][x >> 1] |= _DOTS[x & 1][y & 3]
    else:
        y, direction = y0, 1 if dy > 0 else -1
        for x in range(x0, x1):
            column_end = y0 + round(dy * (x - x0 + 0.5) / dx)
            _draw_vertical(grid, x, min(y, column_end), max(y, column_end))
            y = column_end + direction
        _draw_vertical(grid, x1, min(y, y1), max(y, y1))


def _join_layers(
    layers: Sequence[tuple[bytearray, str]],
    foreground: Mapping[int, TextRun],
    background: Mapping[int, TextRun],
    width: int,
) -> list[TextRun]:
    """Return one row of text. The foreground hides the layers, and a layer hides those after it and the background."""
    chars: list[str] = []
    runs: list[TextRun] = []
    current_kind = ""
    for x in range(width):
        if x in foreground:
            char, kind = foreground[x]
        else:
            for cells, layer_kind in layers:
                if cells[x]:
                    char, kind = _BRAILLE[cells[x]], layer_kind
                    break
            else:
                char, kind = background.get(x, _BLANK)
        if kind != current_kind:
            if chars:
                runs.append(("".join(chars), current_kind))
            chars, current_kind = [], kind
        chars.append(char)
    runs.append(("".join(chars), current_kind))
    return runs


def axis_number(value: float) -> str:
    """Format a number for an axis, in at most six characters."""
    if not math.isfinite(value):
        return str(value)
    for digits in (3, 2, 1):
        text = f"{value:.{digits}g}"
        if 0 < abs(value) < 1e-3 or abs(value) >= 1e5:
            text = f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        if len(text) <= 6:
            return text
    return text[:6]
