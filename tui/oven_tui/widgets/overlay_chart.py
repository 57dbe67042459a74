"""The charts of an overlay, with one curve per run, and a legend with one row per run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from oven_runs.log.run_summary import format_value
from oven_tui.model import overlaid_runs as overlay
from oven_tui.model.braille_chart import Bounds, Mark, averaged, axis_number, plot_curves, round_bounds
from oven_tui.model.cell_text import TextRun, fit, row
from oven_tui.model.overlaid_runs import AxisUnit, OverlaidRun, RunAxis
from oven_tui.widgets.base_widgets import Lines
from oven_tui.widgets.plot import Plot

MAX_NAME_CELLS = 24


class OverlayChart(Plot):
    def __init__(self, runs: Sequence[OverlaidRun], *, id: str) -> None:
        super().__init__(id=id)
        self.runs = runs
        self.axis_unit: AxisUnit = "step"
        self.first, self.last = 0, 30
        self.axes: Mapping[str, RunAxis] = {}

    def plot_rows(self, metric: str, width: int, height: int) -> tuple[Bounds, list[list[TextRun]]]:
        """Return the chart's bounds and rows. If curves meet in a cell, the later run is in front."""
        style, curves = overlay.style(self.runs, metric), []
        for run in reversed(self.runs):
            columns = self.axes[run.name].columns(run.view, metric, self.first, self.last, width * 2)
            curves.append((run.symbol[1], averaged(columns, style)))
        bounds = round_bounds([column for _, columns in curves for column in columns], style)
        return bounds, plot_curves(curves, bounds, style, self._place_marks(width), width, height)

    def figures(self, metric: str, bounds: Bounds | None) -> list[TextRun]:
        runs: list[TextRun] = [("log ", "dim")] if bounds and bounds.log else []
        for run in self.runs:
            series = run.view.series.get(metric)
            symbol, colour = run.symbol
            runs.append((f" {symbol}", colour))
            if series is None or not series.count:
                runs.append(("not measured", "dim"))
            else:
                runs.append((axis_number(series.last), "strong" if math.isfinite(series.last) else "broken"))
        return [*runs, (" ", "blank")]

    def axis_labels(self) -> tuple[str, str, str]:
        return f"{self.axis_unit} {self.first}", str((self.first + self.last) // 2), str(self.last)

    def _place_marks(self, width: int) -> dict[int, Mark]:
        """Return a mark for each decision that took effect, with the symbol of its run."""
        marks: dict[int, Mark] = {}
        for run in reversed(self.runs):
            axis = self.axes[run.name]
            for tick, _author, fate in run.view.marks.values():
                if fate not in ("applied", "noop"):
                    continue
                position = axis.position(tick)
                if self.first <= position <= self.last:
                    cell = int((position - self.first) * width / (self.last - self.first + 1))
                    marks[cell] = Mark(*run.symbol)
        return marks


class Legend(Lines):
    """A legend with each run's symbol, name, state, progress and results."""

    def __init__(self, runs: Sequence[OverlaidRun]) -> None:
        super().__init__(id="legend")
        self.runs = runs
        self.links: dict[str, tuple[str, str]] = {}
        self.silent_s: dict[str, float] = {}

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        name_width = min(MAX_NAME_CELLS, max(len(run.name) for run in self.runs))
        return [self._run_row(width, run, name_width) for run in self.runs][:height]

    def _run_row(self, width: int, overlaid: OverlaidRun, name_width: int) -> list[TextRun]:
        view, (symbol, colour) = overlaid.view, overlaid.symbol
        run = view.run
        link, detail = self.links.get(overlaid.name, ("connecting", ""))
        state: str = view.state(self.silent_s.get(overlaid.name, 0.0))
        if link == "down" and state != "ended":
            state = "stack is down"
        elif run.ended is not None:
            state = run.ended.reason
        left_part: list[TextRun] = [(f" {symbol} ", colour), (fit(overlaid.name, name_width) + "  ", "strong")]
        if link == "unreadable":
            return row(width, [*left_part, (f"cannot read the log: {detail}", "bad")])
        if not run.seq:
            return row(width, [*left_part, (f"{link} …", "dim")])
        left_part.append((f"{state}  step {run.step}{f'/{run.max_steps}' if run.max_steps else ''}  ", "text"))
        if name := run.target():
            left_part.append((f"{name} {run.first_values[name]:.3f} → {run.metrics[name]:.3f}  ", "text"))
        left_part.append((run.decision_counts(), "dim"))
        for knob, value in run.changed_knobs():
            left_part.append((f"  {knob} {format_value(value)}", "dim"))
        return row(width, left_part, [(f"{run.malformed} malformed ", "warn")] if run.malformed else None)
