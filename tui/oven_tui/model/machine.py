"""Speed and machine of a run: the newest values of the metrics that its learner publishes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import wrapped
from oven_tui.model.monitor_view import MonitorView

PARTS: Final = ("generate", "reward", "train", "optimizer", "evaluate")
"""Parts of a step (`time/<part>`), in their order."""
SIGNS: Final = dict(zip(PARTS, "▓▒█░▞", strict=True))
BAR: Final = 30
"""Cells of the bar of a step's parts."""
LEAST_BAR: Final = 8
OLD_TICKS: Final = 50
"""Ticks without a measurement after which a part no longer belongs to the step: an evaluation is occasional."""


@dataclass(frozen=True)
class Machine:
    """Metric → newest value."""

    values: Mapping[str, float]
    pace_s: float
    """Seconds per observation from the log; 0 if unknown."""

    @classmethod
    def from_view(cls, view: MonitorView) -> Machine:
        """Return the machine's figures from the view."""
        values = {
            name: series.last
            for name, series in view.series.items()
            if name.startswith(("time/", "machine/")) or name in ("tokens_per_s", "step_time")
            if series.count and math.isfinite(series.last) and view.run.tick - series.last_tick <= OLD_TICKS
        }
        if values.get("time/evaluate") is not None and view.series["time/evaluate"].last_tick < view.run.tick - 1:
            values.pop("time/evaluate")
        return cls(values, view.pace_s)

    def rows(self, width: int) -> list[list[Run]]:
        """Return the rows; none if nothing was measured."""
        rows: list[list[Run]] = []
        for part in (self._speed(), self._machine(), *self._parts(width)):
            if rows and cell_len("".join(text for text, _ in (*rows[-1], *part))) <= width:
                rows[-1] += part
            elif part:
                rows.append(part)
        return rows

    def _speed(self) -> list[Run]:
        step = self.values.get("time/step", self.values.get("step_time"))
        runs: list[Run] = []
        if step is not None:
            runs += [("step ", "dim"), (seconds(step), "strong"), ("  ", "blank")]
        if (tokens := self.values.get("tokens_per_s")) is not None:
            runs += [(short(tokens), "strong"), (" tokens/s  ", "dim")]
        if (controller := self.values.get("time/controller")) is not None:
            runs += [("controller ", "dim"), (f"{seconds(controller)}  ", "text")]
        return runs

    def _parts(self, width: int) -> list[list[Run]]:
        """Return a bar of the step's parts and their shares in words. Unmeasured time stays white."""
        whole = self.values.get("time/step")
        spent = {part: self.values[f"time/{part}"] for part in PARTS if f"time/{part}" in self.values}
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

    def _machine(self) -> list[Run]:
        runs: list[Run] = []
        if (memory := self.values.get("machine/memory_gib")) is not None:
            runs += [("learner ", "dim"), (f"{memory:.2f} GiB  ", "text")]
        for index in range(64):
            used, use = (self.values.get(f"machine/gpu{index}_{what}") for what in ("memory_gib", "use"))
            if used is not None and use is not None:
                runs += [(f"GPU {index} ", "dim"), (f"{use:.0%} {used:.1f} GiB  ", "text")]
        return runs


def seconds(value: float) -> str:
    """Return a duration in its own unit."""
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"


def short(value: float) -> str:
    """Return a count in at most five characters."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
