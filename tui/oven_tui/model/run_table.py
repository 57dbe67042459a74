"""The table of runs: its columns for a width, the cells of a row, and its filter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len

from oven_runs.log.run_row import RunRow
from oven_tui.model.braille_chart import Run, label
from oven_tui.model.cell_text import ago, fit, row
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
"""State → glyph and kind of text."""
NAME = 14
"""Least width of a run's name. Longer names use the remaining width, up to NAME_MOST."""
NAME_MOST = 32


class Column(NamedTuple):
    title: str
    width: int
    wanted_from: int
    """Columns of the terminal from which it is shown."""


STEP = 13
COLUMNS = (
    Column("state", 14, 0),
    Column("run", NAME, 0),
    Column("step", STEP, 56),
    Column("target metric", 29, 74),
    Column("decisions", 9, 96),
    Column("pace", 8, 106),
    Column("age", 7, 114),
    Column("recipe", 12, 144),
)
"""Alerts use the rest of the width at the right."""
ALERTS = 12
"""Least width of the alerts. Narrower, only their number is shown."""


def columns(width: int, names: int) -> list[Column]:
    """Return the columns that fit. Names are as wide as the longest, `names`, if there is room."""
    shown = [column for column in COLUMNS if width >= column.wanted_from]
    spare = width - sum(column.width + 1 for column in shown) - 2 - ALERTS
    grown = max(NAME, min(NAME_MOST, names, NAME + max(0, spare)))
    return [column._replace(width=grown) if column.title == "run" else column for column in shown]


def heading(width: int, names: int) -> list[Run]:
    cells = "".join(fit(column.title, column.width) + " " for column in columns(width, names))
    title = "alerts" if width - cell_len(cells) - 2 >= ALERTS else "⚑"
    return row(width, [("  " + cells + title, "dim")])


def line(run_row: RunRow, now: datetime, width: int, names: int, *, marked: str = "") -> list[Run]:
    """Return a run's row. `marked` is the glyph of a run chosen for an overlay."""
    shown, cells = columns(width, names), _cells(run_row, now)
    runs: list[Run] = [(f"{marked or ' '} ", "strong")]
    runs += [(fit(cells[column.title][0], column.width) + " ", cells[column.title][1]) for column in shown]
    alerts, room = run_row.alerts(now), width - 2 - sum(column.width + 1 for column in shown)
    alert_text = "; ".join(alerts) if room >= ALERTS else f"⚑{len(alerts)}" if alerts else ""
    return row(width, [*runs, (alert_text, "warn" if run_row.status == "running" or run_row.fault else "dim")])


def _cells(run_row: RunRow, now: datetime) -> dict[str, Run]:
    state, silent, age = run_row.state(now), run_row.silent_s(now), run_row.age_s(now)
    glyph, kind = STATES.get(state, ("○", "dim"))
    words = f"silent {ago(silent)}" if state == "stalled" and silent is not None else state
    return {
        "state": (f"{glyph} {words}", kind),
        "run": (run_row.run, "warn" if run_row.drill else "strong"),
        "step": (steps(run_row), "text"),
        "target metric": (target(run_row), "text"),
        "decisions": (decisions(run_row), "text"),
        "pace": (pace(run_row.pace_s), "dim"),
        "age": (ago(age) if age is not None else "", "dim"),
        "recipe": (run_row.recipe, "dim"),
    }


def steps(run_row: RunRow) -> str:
    """Return steps as in "120/200 60%"; a dash if unknown."""
    if run_row.step is None:
        return "–"
    if not run_row.max_steps:
        return str(run_row.step)
    whole = f"{run_row.step}/{run_row.max_steps}"
    return f"{whole} {run_row.progress:.0%}" if len(whole) + 5 <= STEP else whole


def target(run_row: RunRow) -> str:
    """Return the target as in "eval/accuracy .1 → .93", with a dash for a missing measurement."""
    if not run_row.target:
        return "no metric yet" if run_row.status == "running" else "no metric"
    now = label(run_row.now) if run_row.now is not None else "–"
    if run_row.first is None or run_row.first == run_row.now:
        return f"{run_row.target} {now}"
    return f"{run_row.target} {label(run_row.first)} → {now}"


def decisions(run_row: RunRow) -> str:
    """Return decisions as in "12 ✔ 3 – 2 ○": adopted, rejected, would set. An ellipsis while they are counted."""
    if run_row.adopted is None:
        return "…" if not run_row.fault else "–"
    others = ((run_row.rejected, "–"), (run_row.would_set, "○"))
    return f"{run_row.adopted} ✔" + "".join(f" {count} {sign}" for count, sign in others if count)


def pace(seconds: float | None) -> str:
    """Return observations per second, or seconds per observation if they are rare."""
    if seconds is None or seconds <= 0:
        return ""
    return f"{1 / seconds:.3g}/s" if seconds <= 1 else f"{seconds:.3g} s"


def matching(words: str, now: datetime) -> Callable[[RunRow], bool]:
    """Return a filter with the fields `state:`, `recipe:` and `run:`."""
    fields: dict[str, Callable[[RunRow], str]] = {
        "state": lambda run_row: run_row.state(now),
        "recipe": lambda run_row: run_row.recipe,
        "run": lambda run_row: run_row.run,
    }
    return word_filter(words, lambda run_row: _text(run_row, now), fields)


def _text(run_row: RunRow, now: datetime) -> str:
    alerts = run_row.alerts(now)
    names = (run_row.run, run_row.location, run_row.recipe, run_row.state(now), run_row.drill, run_row.target)
    return " ".join((*names, *alerts))
