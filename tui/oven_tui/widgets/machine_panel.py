"""The panel with the speed and the machine's load, from the newest values that the learner published."""

from __future__ import annotations

import math
from typing import Final

from rich.cells import cell_len
from textual.geometry import Size

from oven_tui.model.cell_text import TextRun, row, wrapped
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base_widgets import Lines, Panel

PARTS: Final = ("generate", "reward", "train", "optimizer", "evaluate")
"""Parts of a step, in order. Each has a metric `time/<part>`."""
SYMBOLS: Final = dict(zip(PARTS, "▓▒█░▞", strict=True))
MAX_BAR_CELLS: Final = 30
"""Maximum width of the bar with a step's parts, in cells."""
MIN_BAR_CELLS: Final = 8
MAX_AGE_TICKS: Final = 50
"""Ticks without a new measurement after which a value is hidden."""
MAX_GPUS: Final = 64


class MachinePanel(Lines, Panel):
    """The panel with speed and machine load. It is hidden while there are no measurements."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="machine")
        self.view = view
        self.border_title = "machine"
        self._drawn_row_count = -1

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(_build_rows(self.view, width))

    def redraw(self) -> None:
        row_count = len(_build_rows(self.view, max(1, self.content_size.width)))
        if row_count != self._drawn_row_count:
            self._drawn_row_count = row_count
            self.set_class(row_count > 0, "-measured")
            self.refresh(layout=True)
        super().redraw()

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        return [row(width, runs) for runs in _build_rows(self.view, width)[:height]]


def _build_rows(view: MonitorView, width: int) -> list[list[TextRun]]:
    """Return the rows, or an empty list if nothing was measured."""
    values = {}
    for name, series in view.series.items():
        if not name.startswith(("time/", "machine/")) and name not in ("tokens_per_s", "step_time"):
            continue
        if series.count and math.isfinite(series.last) and view.run.tick - series.last_tick <= MAX_AGE_TICKS:
            values[name] = series.last
    if "time/evaluate" in values and view.series["time/evaluate"].last_tick < view.run.tick - 1:
        del values["time/evaluate"]  # the last step had no evaluation
    rows: list[list[TextRun]] = []
    for part in (_describe_speed(values), _describe_machine(values), *_draw_parts(values, width)):
        if rows and cell_len("".join(text for text, _ in (*rows[-1], *part))) <= width:
            rows[-1] += part
        elif part:
            rows.append(part)
    return rows


def _describe_speed(values: dict[str, float]) -> list[TextRun]:
    step = values.get("time/step", values.get("step_time"))
    runs: list[TextRun] = []
    if step is not None:
        runs += [("step ", "dim"), (_format_seconds(step), "strong"), ("  ", "blank")]
    if (tokens := values.get("tokens_per_s")) is not None:
        runs += [(_abbreviate(tokens), "strong"), (" tokens/s  ", "dim")]
    if (controller := values.get("time/controller")) is not None:
        runs += [("controller ", "dim"), (f"{_format_seconds(controller)}  ", "text")]
    return runs


def _draw_parts(values: dict[str, float], width: int) -> list[list[TextRun]]:
    """Return a bar with the parts of a step, and their shares as text. The rest of the bar is unmeasured time."""
    step = values.get("time/step")
    seconds = {part: values[f"time/{part}"] for part in PARTS if f"time/{part}" in values}
    if not step or not seconds:
        return []
    shares = {part: duration / step for part, duration in seconds.items()}
    other_share = max(0.0, 1 - sum(shares.values()))
    labels = [f"{SYMBOLS[part]} {part} {share:.0%}" for part, share in shares.items()]
    words = "  ".join([*labels, f"· other {other_share:.0%}"])
    bar_width = min(MAX_BAR_CELLS, width - cell_len(words) - 2)
    if bar_width < MIN_BAR_CELLS:
        return [[(line, "dim")] for line in wrapped(words, width)]
    bar = "".join(SYMBOLS[part] * round(bar_width * min(1.0, share)) for part, share in shares.items())
    return [[(bar[:bar_width].ljust(bar_width, "·") + "  ", "line"), (words, "dim")]]


def _describe_machine(values: dict[str, float]) -> list[TextRun]:
    runs: list[TextRun] = []
    if (learner_memory := values.get("machine/memory_gib")) is not None:
        runs += [("learner ", "dim"), (f"{learner_memory:.2f} GiB  ", "text")]
    for index in range(MAX_GPUS):
        memory = values.get(f"machine/gpu{index}_memory_gib")
        usage = values.get(f"machine/gpu{index}_use")
        if memory is not None and usage is not None:
            runs += [(f"GPU {index} ", "dim"), (f"{usage:.0%} {memory:.1f} GiB  ", "text")]
    return runs


def _format_seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"


def _abbreviate(value: float) -> str:
    """Format a number in at most five characters."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
