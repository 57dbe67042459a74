"""A screen with one decision in full: votes and weights, reason, evidence, receipt and outcome."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from oven_controller.log.run_summary import text
from oven_controller.log.trial_findings import Trial, changes
from oven_controller.protocol.messages import Outcome, TallyLine, Vote
from oven_controller.terminal_text import clean
from oven_tui.bindings import bindings
from oven_tui.model.cell_text import FATES
from oven_tui.model.decisions import Decided, Entry, Note, Open


class DecisionScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = bindings("paper")

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self._entry = entry

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="paper") as paper:
            paper.border_title = clean(heading(self._entry))
            paper.border_subtitle = "escape: back"
            yield Static(Group(*content(self._entry)))


def heading(entry: Entry) -> str:
    match entry:
        case Note():
            return entry.author
        case Open():
            return f"open ballot on {entry.opened.actuator}"
        case Decided():
            return f"{entry.decision.actuator}: {entry.decision.verdict}"


def content(entry: Entry) -> list[RenderableType]:
    match entry:
        case Note():
            return [Text(clean(entry.text)), _fact("logged", f"event {entry.seq}, at step {entry.step}")]
        case Open():
            return _open(entry)
        case Decided():
            return _decided(entry)


def _open(entry: Open) -> list[RenderableType]:
    opened = entry.opened
    waiting = [name for name in opened.eligible if name not in entry.votes]
    parts: list[RenderableType] = [
        _fact("proposal", f"{text(opened.proposal)} by {opened.opened_by}"),
        _fact("opened", f"at tick {opened.tick}, closes at tick {opened.closes_at_tick}"),
        _fact("not heard yet", ", ".join(waiting) or "none"),
    ]
    for name, vote in sorted(entry.votes.items()):
        parts += _vote(name, vote)
    return parts


def _decided(entry: Decided) -> list[RenderableType]:
    decision = entry.decision
    merged = f"{text(decision.before)} → {text(decision.value)}"
    parts: list[RenderableType] = [
        _fact("asked for" if decision.verdict == "rejected" else "merged value", merged),
        _fact(
            "decided", f"at tick {decision.tick} (step {entry.step}), decision {decision.id}, ballot {decision.ballot}"
        ),
    ]
    if entry.trial is not None:
        parts.append(_fact("trial", entry.finding))
    if decision.verdict == "tried":
        parts.append(_fact("receipt", _receipt(entry)))
    if decision.verdict == "adopted":
        risky = ", after a snapshot: it is risky" if decision.snapshot_first else ""
        due = f"from tick {decision.apply_at_tick}, lapses after tick {decision.expires_at_tick}{risky}"
        parts += [_fact("in force", due), _fact("receipt", _receipt(entry))]
    if decision.verdict == "advised":
        parts.append(_fact("approve", f"oven-controller approve {decision.id}" if not entry.approved else "approved"))
    if entry.outcome is not None:
        parts += [_fact("outcome", _outcome(entry.outcome))]
    if entry.trial is not None:
        parts += _trial(entry.trial, entry.arm)
    parts += [
        _section("Why"),
        Text(clean(decision.reason)),
        _section("Tally"),
        _tally(decision.tally),
    ]
    for line in decision.tally:
        if line.agent in entry.votes:
            parts += _vote(line.agent, entry.votes[line.agent])
        elif line.rationale:
            parts += [_section(line.agent), Text(clean(line.rationale))]
    return parts


def _receipt(entry: Decided) -> str:
    receipt = entry.receipt
    if receipt is None:
        return "none yet"
    change = f"{text(receipt.before)} → {text(receipt.after)}, read back at step {receipt.step} (tick {receipt.tick})"
    why = f": {receipt.reason}" if receipt.reason else ""
    return f"{FATES[entry.fate][0]} {receipt.status}  {change}{why}"


def _trial(trial: Trial, arm: int) -> list[RenderableType]:
    """The arms side by side, and what the trial took."""
    started, readings = trial.started, trial.ended.arms if trial.ended is not None else ()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("arm", "changes"):
        table.add_column(name)
    for name in (started.reading, "examples", "against the control"):
        table.add_column(name, justify="right")
    table.add_column("")
    for index, tried in enumerate(started.arms):
        reading = readings[index] if index < len(readings) else None
        cells = [str(index), changes(tried) + (" (this one)" if index == arm and len(started.arms) > 2 else "")]
        if reading is None or reading.mean is None:
            cells += ["", "", ""]
        else:
            error = f" ± {reading.error:.2g}" if reading.error is not None else ""
            cells += [f"{reading.mean:.4g}{error}", str(reading.examples), trial.difference(index)]
        cells.append("kept" if trial.kept(index) else reading.reason if reading is not None else "")
        table.add_row(*(Text(clean(cell)) for cell in cells), style="bold" if trial.kept(index) else "")
    found: list[RenderableType] = [_section(f"Trial {started.id}"), table, _fact("terms", trial.terms())]
    if cost := trial.cost():
        found.append(_fact("it took", cost))
    return found


def _outcome(outcome: Outcome) -> str:
    if not outcome.scored or outcome.gain is None:
        return f"{outcome.target}: not scored, {outcome.reason}"
    forecast = f", forecast {outcome.forecast:+.3g}" if outcome.forecast is not None else ""
    moved = ", ".join(f"{line.agent} {line.before:.2f} → {line.after:.2f}" for line in outcome.lines)
    gain = "" if outcome.measured else f" {outcome.gain:+.3g}{forecast}"  # its reason has the figures
    said = f"{outcome.target}{gain}; {outcome.reason}"
    return said + (f"; {moved}" if moved else "")


def _tally(lines: tuple[TallyLine, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("agent", "stance", "value"):
        table.add_column(name)
    for name in ("confidence", "reputation", "weight"):
        table.add_column(name, justify="right")
    for line in lines:
        mark = " (shadow)" if line.shadow else " (newcomer)" if line.newcomer and line.stance != "silent" else ""
        cells = (line.agent, line.stance + mark, text(line.value))
        figures = ("", "", "") if line.stance == "silent" else _figures(line)
        table.add_row(*(Text(clean(cell)) for cell in (*cells, *figures)), style="dim" if not line.weight else "")
    for name, side in (("for", ("propose", "for")), ("against", ("against",))):
        weight = sum(line.weight for line in lines if line.stance in side)
        table.add_row(Text("together"), Text(name), "", "", "", f"{weight:.3g}", style="bold")
    return table


def _figures(line: TallyLine) -> tuple[str, str, str]:
    return f"{line.confidence:.2f}", f"{line.reputation:.3g}", f"{line.weight:.3g}"


def _vote(name: str, vote: Vote) -> list[RenderableType]:
    what = f"{vote.stance} {text(vote.value)}" if vote.value is not None else vote.stance
    parts: list[RenderableType] = [
        _section(f"{name}: {what}"),
        Text(clean(vote.rationale) or "no reason was given"),
    ]
    if vote.target:
        parts.append(_fact("expects", f"{vote.target} {vote.expected_change:+.3g} within {vote.horizon} ticks"))
    parts += [_fact("evidence", item) for item in vote.evidence]
    return parts


def _section(name: str) -> Text:
    return Text(f"\n{clean(name)}", style="bold")


def _fact(name: str, value: str) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=13, style="dim")
    grid.add_column()
    grid.add_row(Text(name), Text(clean(value)))
    return grid
