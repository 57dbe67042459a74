"""The table of runs: its columns for a width, the cells of a row, and its filter."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len

from oven_runs.log.run_row import RunRow
from oven_tui.model.braille_chart import Run, label
from oven_tui.model.cell_text import ago, fit, row

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
    """One column of the table."""

    title: str
    width: int
    wanted_from: int
    """Columns of the terminal from which it is shown."""


STATE, STEP, TARGET, DECISIONS = 14, 13, 29, 9
COLUMNS = (
    Column("state", STATE, 0),
    Column("run", NAME, 0),
    Column("step", STEP, 56),
    Column("target metric", TARGET, 74),
    Column("decisions", DECISIONS, 96),
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
    left = width - sum(column.width + 1 for column in shown) - 2 - ALERTS
    grown = max(NAME, min(NAME_MOST, names, NAME + max(0, left)))
    return [column._replace(width=grown) if column.title == "run" else column for column in shown]


def heading(width: int, names: int) -> list[Run]:
    """Return the first row."""
    cells = "".join(fit(column.title, column.width) + " " for column in columns(width, names))
    title = "alerts" if width - cell_len(cells) - 2 >= ALERTS else "⚑"
    return row(width, [("  " + cells + title, "dim")])


def line(found: RunRow, now: datetime, width: int, names: int, *, marked: str = "") -> list[Run]:
    """Return a run's row. `marked` is the glyph of a run chosen for an overlay."""
    cells: list[Run] = [(f"{marked or ' '} ", "strong")]
    for column in columns(width, names):
        text, kind = _cell(column.title, found, now)
        cells.append((fit(text, column.width) + " ", kind))
    alerts = found.alerts(now)
    room = width - 2 - sum(column.width + 1 for column in columns(width, names))
    said = "; ".join(alerts) if room >= ALERTS else f"⚑{len(alerts)}" if alerts else ""
    cells.append((said, "warn" if found.status == "running" or found.fault else "dim"))
    return row(width, cells)


def _cell(title: str, found: RunRow, now: datetime) -> Run:
    match title:
        case "state":
            state = found.state(now)
            glyph, kind = STATES.get(state, ("○", "dim"))
            silent = found.silent_s(now)
            told = f"{glyph} {state}"
            if state == "stalled" and silent is not None:
                told = f"{glyph} silent {ago(silent)}"
            return told, kind
        case "run":
            return found.run, "warn" if found.drill else "strong"
        case "step":
            return steps(found), "text"
        case "target metric":
            return target(found), "text"
        case "decisions":
            return decisions(found), "text"
        case "pace":
            return pace(found.pace_s), "dim"
        case "age":
            age = found.age_s(now)
            return ago(age) if age is not None else "", "dim"
        case _:
            return found.recipe, "dim"


def steps(found: RunRow) -> str:
    """Return steps as in "120/200 60%"; a dash if unknown."""
    if found.step is None:
        return "–"
    if not found.max_steps:
        return str(found.step)
    whole = f"{found.step}/{found.max_steps}"
    return f"{whole} {found.progress:.0%}" if len(whole) + 5 <= STEP else whole


def target(found: RunRow) -> str:
    """Return the target as in "eval/accuracy .1 → .93"; a dash for what was not measured."""
    if not found.target:
        return "no metric yet" if found.status == "running" else "no metric"
    now = label(found.now) if found.now is not None else "–"
    if found.first is None or found.first == found.now:
        return f"{found.target} {now}"
    return f"{found.target} {label(found.first)} → {now}"


def decisions(found: RunRow) -> str:
    """Return decisions as in "12 + 3 no": adopted and rejected. An ellipsis while they are being counted."""
    if found.adopted is None:
        return "…" if not found.fault else "–"
    return f"{found.adopted} ✔" + (f" {found.rejected} –" if found.rejected else "")


def pace(seconds: float | None) -> str:
    """Return observations per second, or seconds per observation if they are rare."""
    if seconds is None or seconds <= 0:
        return ""
    return f"{1 / seconds:.3g}/s" if seconds <= 1 else f"{seconds:.3g} s"


def matching(filter_text: str, now: datetime) -> Callable[[RunRow], bool]:
    """Return a filter: `state:live`, `recipe:grpo`, `run:NAME`, otherwise anywhere in the row; `!` before a word
    negates it. All words must match. An invalid regular expression is taken literally."""
    tests = [_word(word, now) for word in filter_text.split()]
    return lambda found: all(test(found) for test in tests)


def _word(word: str, now: datetime) -> Callable[[RunRow], bool]:
    inverse, word = word.startswith("!"), word.removeprefix("!")
    key, colon, rest = word.partition(":")
    fields: dict[str, Callable[[RunRow], str]] = {
        "state": lambda found: found.state(now),
        "recipe": lambda found: found.recipe,
        "run": lambda found: found.run,
    }
    read = fields.get(key) if colon else None
    try:
        pattern = re.compile(rest if read else word, re.IGNORECASE)
    except re.error:
        pattern = re.compile(re.escape(rest if read else word), re.IGNORECASE)
    read = read or (lambda found: _text(found, now))
    return lambda found: bool(pattern.search(read(found))) != inverse


def _text(found: RunRow, now: datetime) -> str:
    words = (found.run, found.location, found.recipe, found.state(now), found.drill, found.target, *found.alerts(now))
    return " ".join(words)
