"""The overlay's widgets: a chart of one metric over several runs, and the legend with a row per run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from oven_runs.log.run_summary import text
from oven_tui.model import overlaid_runs as overlay
from oven_tui.model.braille_chart import Bounds, Mark, Run, label
from oven_tui.model.cell_text import clip, fit, row
from oven_tui.model.overlaid_runs import Axis, By, Overlaid
from oven_tui.widgets.base import Lines

GUTTER = 7
NAME = 24


class OverlayChart(Lines):
    def __init__(self, runs: Sequence[Overlaid], *, id: str) -> None:
        super().__init__(id=id)
        self.runs = runs
        self.metric: str | None = None
        self.by: By = "step"
        self.first, self.last = 0, 30
        self.axes: Mapping[str, Axis] = {}
        self.axis_row = False

    def rows(self, width: int, height: int) -> list[list[Run]]:
        if self.metric is None:
            return [row(width, []) for _ in range(height)]
        inner, tall = width - GUTTER, height - 1 - self.axis_row
        if inner < 8 or tall < 1:
            return [row(width, [(self.metric, "title")]), *(row(width, []) for _ in range(height - 1))]
        kind, curves = overlay.style(self.runs, self.metric), []
        for run in self.runs:
            axis = self.axes[run.name]
            columns = axis.columns(run.view, self.metric, self.first, self.last, inner * 2)
            curves.append((overlay.curve(columns, kind), run.sign[1]))
        scale = overlay.scale_of([columns for columns, _ in curves], kind)
        made = [self._title(width, scale)]
        for y, runs in enumerate(overlay.draw(curves, scale, kind, self._marks(inner), inner, tall)):
            made.append([(self._tick(y, tall, scale), "dim"), *runs])
        if self.axis_row:
            made.append(self._places(width, inner))
        return made

    def _title(self, width: int, scale: Bounds) -> list[Run]:
        assert self.metric is not None
        right: list[Run] = [("log ", "dim")] if scale.log else []
        for run in self.runs:
            series = run.view.series.get(self.metric)
            sign, colour = run.sign
            right.append((f" {sign}", colour))
            if series is None or not series.count:
                right.append(("not measured", "dim"))
            else:
                right.append((label(series.last), "strong" if math.isfinite(series.last) else "broken"))
        return row(width, [(" " * (GUTTER - 1), "blank"), (f" {self.metric}", "title")], [*right, (" ", "blank")])

    def _tick(self, y: int, tall: int, scale: Bounds) -> str:
        value = {0: scale.high, tall - 1: scale.low}.get(y)
        if tall >= 7 and y == tall // 2:
            value = scale.middle()
        return (label(value).rjust(GUTTER - 1) + "┤") if value is not None else " " * (GUTTER - 1) + "│"

    def _marks(self, inner: int) -> dict[int, Mark]:
        """Return the decisions that took effect, at the chart's head, with their run's sign."""
        marks: dict[int, Mark] = {}
        for run in reversed(self.runs):
            axis = self.axes[run.name]
            for tick, _author, fate in run.view.marks.values():
                if fate not in ("applied", "noop"):
                    continue
                position = axis.position(tick)
                if self.first <= position <= self.last:
                    cell = int((position - self.first) * inner / (self.last - self.first + 1))
                    marks[cell] = Mark(*run.sign)
        return marks

    def _places(self, width: int, inner: int) -> list[Run]:
        first_label, middle, right = str(self.first), str((self.first + self.last) // 2), str(self.last)
        line = fit(f"{self.by} {first_label}", inner // 2 - len(middle) // 2) + middle
        line = fit(line, inner - len(right)) + right
        return row(width, [(" " * GUTTER, "blank"), (clip(line, inner), "dim")])


class Legend(Lines):
    """A row per run: its sign, name, state, progress and results."""

    def __init__(self, runs: Sequence[Overlaid]) -> None:
        super().__init__(id="legend")
        self.runs = runs
        self.links: dict[str, tuple[str, str]] = {}
        self.silent_s: dict[str, float] = {}

    def rows(self, width: int, height: int) -> list[list[Run]]:
        names = min(NAME, max(len(run.name) for run in self.runs))
        return [self._run(width, run, names) for run in self.runs][:height]

    def _run(self, width: int, overlaid: Overlaid, names: int) -> list[Run]:
        view, (sign, colour) = overlaid.view, overlaid.sign
        run = view.run
        link, detail = self.links.get(overlaid.name, ("connecting", ""))
        state: str = view.state(self.silent_s.get(overlaid.name, 0.0))
        if link == "down" and state != "ended":
            state = "stack is down"
        elif run.ended is not None:
            state = run.ended.reason
        most = run.started.horizon.max_steps if run.started else None
        left_part: list[Run] = [(f" {sign} ", colour), (fit(overlaid.name, names) + "  ", "strong")]
        if link == "unreadable":
            return row(width, [*left_part, (f"log not readable: {detail}", "bad")])
        if not run.seq:
            return row(width, [*left_part, (f"{link} …", "dim")])
        left_part.append((f"{state}  step {run.step}{f'/{most}' if most else ''}  ", "text"))
        if name := run.target():
            left_part.append((f"{name} {run.first[name]:.3f} → {run.metrics[name]:.3f}  ", "text"))
        left_part.append((f"{run.adopted} adopted, {run.rejected} rejected", "dim"))
        for knob, value in _turned(overlaid):
            left_part.append((f"  {knob} {value}", "dim"))
        return row(width, left_part, [(f"{run.malformed} malformed ", "warn")] if run.malformed else None)


def _turned(overlaid: Overlaid) -> list[tuple[str, str]]:
    run = overlaid.view.run
    specs = run.started.actuators if run.started else ()
    initial = {spec.name: spec.value for spec in specs if spec.kind != "action"}
    return [(name, text(value)) for name, value in run.knobs.items() if name in initial and value != initial[name]]
