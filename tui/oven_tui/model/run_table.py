"""Lays out the table of runs: its columns for a given width, its rows, and its filter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len

from oven_runs.log.run_row import RunRow
from oven_tui.model.braille_chart import axis_number
from oven_tui.model.cell_text import TextRun, duration_text, fit, row
from oven_tui.model.word_filter import word_filter

STATES = {
    "live": ("●", "good"),
    "held": ("‖", "warn"),
    "stalled": ("◌", "bad"),
    "waiting": ("○", "dim"),
    "ending": ("■", "dim"),
    "completed": ("■", "dim"),
    "stopped": ("■", "dim"),
    "failed": ("✗", "bad"),
    "interrupted": ("✗", "warn"),
}
"""Glyph and kind of text for each state."""
MIN_NAME_CELLS = 14
"""Minimum width of a run's name. Longer names use the remaining width, up to MAX_NAME_CELLS."""
MAX_NAME_CELLS = 32


class Column(NamedTuple):
    title: str
    width: int
    min_terminal_width: int
    """Minimum width of the terminal for this column."""


STEP_CELLS = 13
COLUMNS = (
    Column("state", 14, 0),
    Column("run", MIN_NAME_CELLS, 0),
    Column("step", STEP_CELLS, 56),
    Column("target metric", 29, 74),
    Column("decisions", 9, 96),
    Column("pace", 8, 106),
    Column("age", 7, 114),
    Column("recipe", 12, 144),
)
"""The alerts use the remaining width at the right."""
MIN_ALERT_CELLS = 12
"""Minimum width of the alerts. If there is less space, only their number is shown."""


def choose_columns(width: int, longest_name: int) -> list[Column]:
    """Return the columns that fit. If there is enough space, the column of names fits the longest name."""
    fitting = [column for column in COLUMNS if width >= column.min_terminal_width]
    spare = width - sum(column.width + 1 for column in fitting) - 2 - MIN_ALERT_CELLS
    name_width = max(MIN_NAME_CELLS, min(MAX_NAME_CELLS, longest_name, MIN_NAME_CELLS + max(0, spare)))
    return [column._replace(width=name_width) if column.title == "run" else column for column in fitting]


def heading(width: int, longest_name: int) -> list[TextRun]:
    cells = "".join(fit(column.title, column.width) + " " for column in choose_columns(width, longest_name))
    title = "alerts" if width - cell_len(cells) - 2 >= MIN_ALERT_CELLS else "!"
    return row(width, [("  " + cells + title, "dim")])


def line(run_row: RunRow, now: datetime, width: int, longest_name: int, *, mark: str = "") -> list[TextRun]:
    """Return a run's row. `mark` is the glyph of a run that is marked for an overlay."""
    fitting, cells = choose_columns(width, longest_name), _make_cells(run_row, now)
    runs: list[TextRun] = [(f"{mark or ' '} ", "strong")]
    for column in fitting:
        text, kind = cells[column.title]
        runs.append((fit(text, column.width) + " ", kind))
    alerts, free_cells = run_row.alerts(now), width - 2 - sum(column.width + 1 for column in fitting)
    alert_count = f"!{len(alerts)}" if alerts else ""
    alert_text = "; ".join(alerts) if free_cells >= MIN_ALERT_CELLS else alert_count
    return row(width, [*runs, (alert_text, "warn" if run_row.status == "running" or run_row.fault else "dim")])


def _make_cells(run_row: RunRow, now: datetime) -> dict[str, TextRun]:
    state, silent, age = run_row.state(now), run_row.silent_s(now), run_row.age_s(now)
    symbol, kind = STATES.get(state, ("○", "dim"))
    words = f"silent {duration_text(silent)}" if state == "stalled" and silent is not None else state
    return {
        "state": (f"{symbol} {words}", kind),
        "run": (run_row.run, "warn" if run_row.drill else "strong"),
        "step": (format_steps(run_row), "text"),
        "target metric": (format_target(run_row), "text"),
        "decisions": (format_decisions(run_row), "text"),
        "pace": (format_pace(run_row.pace_s), "dim"),
        "age": (duration_text(age) if age is not None else "", "dim"),
        "recipe": (run_row.recipe, "dim"),
    }


def format_steps(run_row: RunRow) -> str:
    """Return the steps, such as "120/200 60%", or a dash if they are unknown."""
    if run_row.step is None:
        return "–"
    if not run_row.max_steps:
        return str(run_row.step)
    count = f"{run_row.step}/{run_row.max_steps}"
    return f"{count} {run_row.progress:.0%}" if len(count) + 5 <= STEP_CELLS else count


def format_target(run_row: RunRow) -> str:
    """Return the target metric and its values, such as "eval/accuracy 0.1 → 0.93"."""
    if not run_row.target:
        return "no metric yet" if run_row.status == "running" else "no metric"
    value = axis_number(run_row.newest_value) if run_row.newest_value is not None else "–"
    if run_row.first_value is None or run_row.first_value == run_row.newest_value:
        return f"{run_row.target} {value}"
    return f"{run_row.target} {axis_number(run_row.first_value)} → {value}"


def format_decisions(run_row: RunRow) -> str:
    """Return the numbers of adopted, rejected and "would set" decisions, such as "12 ✔ 3 – 2 ○"."""
    if run_row.adopted is None:
        return "…" if not run_row.fault else "–"
    others = ((run_row.rejected, "–"), (run_row.would_set, "○"))
    return f"{run_row.adopted} ✔" + "".join(f" {count} {symbol}" for count, symbol in others if count)


def format_pace(seconds: float | None) -> str:
    """Return the observations per second, or the seconds per observation if that is at least 1 s."""
    if seconds is None or seconds <= 0:
        return ""
    return f"{1 / seconds:.3g}/s" if seconds <= 1 else f"{seconds:.3g} s"


def matching(words: str, now: datetime) -> Callable[[RunRow], bool]:
    """Return a filter that supports the fields `state:`, `recipe:` and `run:`."""
    fields: dict[str, Callable[[RunRow], str]] = {
        "state": lambda run_row: run_row.state(now),
        "recipe": lambda run_row: run_row.recipe,
        "run": lambda run_row: run_row.run,
    }
    return word_filter(words, lambda run_row: _join_texts(run_row, now), fields)


def _join_texts(run_row: RunRow, now: datetime) -> str:
    alerts = run_row.alerts(now)
    names = (run_row.run, run_row.location, run_row.recipe, run_row.state(now), run_row.drill, run_row.target)
    return " ".join((*names, *alerts))
