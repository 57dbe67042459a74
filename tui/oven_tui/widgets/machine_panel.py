"""The panel of speed and machine: the newest values of the metrics that the run's learner publishes."""

from __future__ import annotations

import math
from typing import Final

from rich.cells import cell_len
from textual.geometry import Size

from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import row, wrapped
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base import Lines, Panel

PARTS: Final = ("generate", "reward", "train", "optimizer", "evaluate")
"""Parts of a step (`time/<part>`), in their order."""
SIGNS: Final = dict(zip(PARTS, "▓▒█░▞", strict=True))
BAR: Final = 30
"""Cells of the bar of a step's parts."""
LEAST_BAR: Final = 8
OLD_TICKS: Final = 50
"""Ticks without a measurement after which a part no longer belongs to the step: an evaluation is occasional."""


class MachinePanel(Lines, Panel):
    """The machine's measurements, one per row. Without measurements there is no heading either."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="machine")
        self.view = view
        self.border_title = "machine"
        self._rows_drawn = -1

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(_rows(self.view, width))

    def redraw(self) -> None:
        rows = len(_rows(self.view, max(1, self.content_size.width)))
        if rows != self._rows_drawn:
            self._rows_drawn = rows
            self.set_class(rows > 0, "-said")
            self.refresh(layout=True)
        super().redraw()

    def rows(self, width: int, height: int) -> list[list[Run]]:
        return [row(width, runs) for runs in _rows(self.view, width)[:height]]


def _rows(view: MonitorView, width: int) -> list[list[Run]]:
    """Return the rows; none if nothing was measured."""
    values = {
        name: series.last
        for name, series in view.series.items()
        if name.startswith(("time/", "machine/")) or name in ("tokens_per_s", "step_time")
        if series.count and math.isfinite(series.last) and view.run.tick - series.last_tick <= OLD_TICKS
    }
    if "time/evaluate" in values and view.series["time/evaluate"].last_tick < view.run.tick - 1:
        del values["time/evaluate"]
    rows: list[list[Run]] = []
    for part in (_speed(values), _machine(values), *_parts(values, width)):
        if rows and cell_len("".join(text for text, _ in (*rows[-1], *part))) <= width:
            rows[-1] += part
        elif part:
            rows.append(part)
    return rows


def _speed(values: dict[str, float]) -> list[Run]:
    step = values.get("time/step", values.get("step_time"))
    runs: list[Run] = []
    if step is not None:
        runs += [("step ", "dim"), (_seconds(step), "strong"), ("  ", "blank")]
    if (tokens := values.get("tokens_per_s")) is not None:
        runs += [(_short(tokens), "strong"), (" tokens/s  ", "dim")]
    if (controller := values.get("time/controller")) is not None:
        runs += [("controller ", "dim"), (f"{_seconds(controller)}  ", "text")]
    return runs


def _parts(values: dict[str, float], width: int) -> list[list[Run]]:
    """Return a bar of the step's parts and their shares in words. Unmeasured time stays white."""
    whole = values.get("time/step")
    spent = {part: values[f"time/{part}"] for part in PARTS if f"time/{part}" in values}
    if not whole or not spent:
        return []
    rest = max(0.0, 1 - sum(spent.values()) / whole)
    words = "  ".join(
        (*(f"{SIGNS[part]} {part} {took / whole:.0%}" for part, took in spent.items()), f"· other {rest:.0%}")
    )
    long = min(BAR, width - cell_len(words) - 2)
    if long < LEAST_BAR:
        return [[(line, "dim")] for line in wrapped(words, width)]
    bar = "".join(SIGNS[part] * round(long * min(1.0, took / whole)) for part, took in spent.items())
    return [[(bar[:long].ljust(long, "·") + "  ", "line"), (words, "dim")]]


def _machine(values: dict[str, float]) -> list[Run]:
    runs: list[Run] = []
    if (memory := values.get("machine/memory_gib")) is not None:
        runs += [("learner ", "dim"), (f"{memory:.2f} GiB  ", "text")]
    for index in range(64):
        used, use = (values.get(f"machine/gpu{index}_{what}") for what in ("memory_gib", "use"))
        if used is not None and use is not None:
            runs += [(f"GPU {index} ", "dim"), (f"{use:.0%} {used:.1f} GiB  ", "text")]
    return runs


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"


def _short(value: float) -> str:
    """Return a count in at most five characters."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
