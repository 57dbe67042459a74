"""The header of the dashboard, with three rows: the run and its state, its progress, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from oven_core.protocol.messages import Value
from oven_runs.log.open_advice import format_remaining_time, is_near_end, pending_advice
from oven_runs.log.run_summary import format_value
from oven_tui.model.cell_text import TextRun, duration_text, row
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base_widgets import Lines

STATES = {"live": ("●", "good"), "held": ("‖", "warn"), "stalled": ("◌", "bad"), "ended": ("■", "dim")}


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run from its folder, which the log does not contain."""

    run: str
    recipe: str = ""
    start: str = ""
    drill: str = ""


class Header(Lines):
    def __init__(self, facts: RunFacts, view: MonitorView) -> None:
        super().__init__(id="header")
        self.facts = facts
        self.view = view
        self.link = ("connecting", "")  # state of the connection, as in log_feed.LinkState, and a detail
        self.silent_s = 0.0  # seconds since the last event
        self.preparation = ""
        """What the learner is doing before the run starts."""
        self.events_behind: int | None = None
        """Number of events since the display was frozen, or None if it is not frozen."""

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        return [self._identity_row(width), self._progress_row(width), self._results_row(width)][:height]

    def _identity_row(self, width: int) -> list[TextRun]:
        facts, run = self.facts, self.view.run
        recipe = run.started.recipe if run.started else facts.recipe
        left_part: list[TextRun] = [(facts.run, "strong"), (f"  {recipe}", "text")]
        if facts.drill:
            left_part += [("  ", "blank"), (f" DRILL {facts.start.removeprefix('drill:')} ", "drill")]
        elif facts.start:
            left_part.append((f"  start {facts.start}", "dim"))
        return row(width, left_part, [("  ", "blank"), *self._state(), ("  ", "blank"), *self._connection()])

    def _state(self) -> list[TextRun]:
        state = self.view.state(self.silent_s)
        if self.link[0] in ("down", "checking while down") and state != "ended":
            return [("■ stack is down", "bad")]
        symbol, kind = STATES.get(state, ("○", "dim"))
        if state == "ended" and self.view.run.ended:
            reason = self.view.run.ended.reason
            return [(f"{symbol} {reason}", "bad" if reason == "failed" else kind)]
        words = f"{symbol} {state}"
        if state == "live":
            words += f", {duration_text(self.silent_s)} ago"
        elif state == "stalled":
            words += f" for {duration_text(self.silent_s)}"
        return [(words, kind)]

    def _connection(self) -> list[TextRun]:
        name, detail = self.link
        if name in ("connected", "down"):
            return []
        words = {
            "no mesh": "no mesh: no decisions are made",
            "unreadable": f"cannot read the log: {detail}",
            "reconnecting": f"reconnecting {detail}",
            "refused": f"key refused {detail}",
            "checking": f"preview; checking the log {detail}",
            "checking while down": f"preview; checking the log {detail}",
        }.get(name, name)
        return [(words[: max(20, self.content_size.width // 2)], "warn"), (" ", "blank")]

    def _progress_row(self, width: int) -> list[TextRun]:
        run = self.view.run
        if run.started is None and self.preparation:
            return row(width, [(f"preparing: {self.preparation}", "text")])
        words = f" {run.progress:.0%}  step {run.step}{f'/{run.max_steps}' if run.max_steps else ''}  tick {run.tick}"
        if self.view.pace_s > 0 and run.ended is None:
            words += f"  {1 / self.view.pace_s:.3g}/s"
        if run.hold_reason:
            words += f"  held: {run.hold_reason}"
        if run.ended_with:
            words += f"  {run.ended_with}"
        right_part: list[TextRun] = []
        if self.events_behind is not None:
            right_part.append((f" FROZEN +{self.events_behind} ", "drill"))
        bar_width = min(40, max(10, width // 4))
        filled = round(bar_width * run.progress)
        return row(width, [("━" * filled, "good"), ("─" * (bar_width - filled), "raw"), (words, "text")], right_part)

    def _results_row(self, width: int) -> list[TextRun]:
        run, left_part = self.view.run, []
        if name := run.target():
            start, current = run.first_values[name], run.metrics[name]
            left_part += [
                (f"{name} ", "dim"),
                (f"{start:.3f} → {current:.3f}", "strong"),
                (f" ({current - start:+.3f})  ", "text"),
            ]
        counts = run.decision_counts()
        left_part.append((counts, "text") if not self.view.is_preview else ("reading its decisions", "dim"))
        right_part: list[TextRun] = []
        if (advised := pending_advice(run)) and is_near_end(advised[0], run.tick):
            time_left = format_remaining_time(advised[0], run.tick, self.view.pace_s)
            right_part = [(f"  ? {advised[0].actuator} lapses in {time_left}", "warn")]
        for count, words in ((run.malformed, "malformed"), (self.view.omitted_count, "omitted")):
            right_part += [(f"  {count} {words}", "warn")] if count else []
        free_cells = width - sum(cell_len(words) for words, _ in (*left_part, *right_part))
        return row(width, [*left_part, *_list_knobs(run.changed_knobs(), free_cells)], right_part)


def _list_knobs(changed_knobs: Sequence[tuple[str, Value]], free_cells: int) -> list[TextRun]:
    """Return as many changed knobs with their values as fit, and the number of the others."""
    runs: list[TextRun] = []
    for index, (name, value) in enumerate(changed_knobs):
        cells = (f"  {name} ", format_value(value))
        more = len(changed_knobs) - index - 1
        if sum(map(cell_len, cells)) + (len(f"  +{more}") if more else 0) > free_cells:
            knobs = f"{more + 1} knob{'s' * (more > 0)}"
            rest = f"  +{knobs}" if runs else f"  {knobs} changed"
            return [*runs, (rest if len(rest) <= free_cells else "", "dim")]
        runs += [(cells[0], "dim"), (cells[1], "text")]
        free_cells -= sum(map(cell_len, cells))
    return runs
