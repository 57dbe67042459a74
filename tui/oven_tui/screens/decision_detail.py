"""The page with one decision in full: votes and weights, reason, evidence, receipt and outcome."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from oven_core.protocol.messages import Outcome, TallyLine, Vote
from oven_core.terminal_text import clean
from oven_runs.log.cited_paths import cited_paths, parse_path
from oven_runs.log.run_summary import format_value, verdict_text
from oven_tui.key_bindings import key_line
from oven_tui.model import decision_chart
from oven_tui.model.cell_text import FATE_LABELS
from oven_tui.model.decision_entries import DecisionEntry, Entry, Note, OpenBallot
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.path_picture import picture
from oven_tui.screens.help import TextScreen
from oven_tui.widgets.base_widgets import Picture


class DecisionScreen(TextScreen):
    """The page of one decision, open ballot or note."""

    def __init__(self, entry: Entry, view: MonitorView | None = None) -> None:
        """`view` contains the metric that judges the decision."""
        super().__init__()
        self._entry, self._view = entry, view

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="paper") as paper:
            paper.border_title = clean(heading(self._entry))
            paper.border_subtitle = key_line("paper")
            yield Static(Group(*content(self._entry)))
            if isinstance(self._entry, DecisionEntry):
                yield from self._make_pictures(self._entry)
            if votes := _describe_votes(self._entry):
                yield Static(Group(*votes))

    def _make_pictures(self, entry: DecisionEntry) -> Iterator[Widget]:
        """Yield a chart of the metric around the decision, and pictures of the graph paths that votes cite."""
        view = self._view
        if view is not None and decision_chart.chart(view, entry, 80):
            yield Static("")
            yield Picture(lambda width: decision_chart.chart(view, entry, width), id="decision-chart")
        if paths := cited_paths(entry.votes):
            yield Static(Group(_section("Knowledge graph")))
            yield Picture(lambda width: [row for path in paths for row in picture(path, width)], id="paths")


def heading(entry: Entry) -> str:
    match entry:
        case Note():
            return entry.author
        case OpenBallot():
            return f"open ballot on {entry.opened.actuator}"
        case DecisionEntry():
            decision = entry.decision
            return f"{decision.actuator}: {verdict_text(decision.verdict, decision.reason)}"


def content(entry: Entry) -> list[RenderableType]:
    """Return the facts of the entry. Charts and votes follow separately."""
    match entry:
        case Note():
            return [Text(clean(entry.text)), _row("logged", f"event {entry.seq}, at step {entry.step}")]
        case OpenBallot():
            return _describe_ballot(entry)
        case DecisionEntry():
            return _describe_decision(entry)


def _describe_ballot(entry: OpenBallot) -> list[RenderableType]:
    opened = entry.opened
    waiting = [name for name in opened.eligible if name not in entry.votes]
    return [
        _row("proposal", f"{format_value(opened.proposal)} by {opened.opened_by}"),
        _row("opened", f"at tick {opened.tick}, closes at tick {opened.closes_at_tick}"),
        _row("not voted", ", ".join(waiting) or "none"),
    ]


def _describe_votes(entry: Entry) -> list[RenderableType]:
    match entry:
        case Note():
            return []
        case OpenBallot():
            return [part for name, vote in sorted(entry.votes.items()) for part in _describe_vote(name, vote)]
        case DecisionEntry():
            parts: list[RenderableType] = [_section("Tally"), _make_tally_table(entry.decision.tally)]
            if silent := [line.agent for line in entry.decision.tally if line.stance == "silent"]:
                parts.append(Text(clean(f"silent: {', '.join(silent)}"), style="dim"))
            for line in entry.decision.tally:
                if line.agent in entry.votes:
                    parts += _describe_vote(line.agent, entry.votes[line.agent])
                elif line.rationale:
                    parts += [_section(line.agent), Text(clean(line.rationale))]
            return parts


def _describe_decision(entry: DecisionEntry) -> list[RenderableType]:
    decision = entry.decision
    change = f"{format_value(decision.before)} → {format_value(decision.value)}"
    parts: list[RenderableType] = [
        _row("proposal" if decision.verdict == "rejected" else "merged value", change),
        _row("decided", f"tick {decision.tick} (step {entry.step}), decision {decision.id}, ballot {decision.ballot}"),
    ]
    if decision.verdict == "adopted":
        snapshot = ", after a snapshot because it is risky" if decision.snapshot_first else ""
        period = f"from tick {decision.apply_at_tick}, lapses after tick {decision.expires_at_tick}{snapshot}"
        parts += [_row("in force", period), _row("receipt", _format_receipt(entry))]
    if decision.verdict == "advised":
        parts.append(_row("approve", f"oven-controller approve {decision.id}" if not entry.approved else "approved"))
    if entry.outcome is not None:
        parts += [_row("outcome", _format_outcome(entry.outcome))]
    return [*parts, _section("Reason"), Text(clean(decision.reason))]


def _format_receipt(entry: DecisionEntry) -> str:
    receipt = entry.receipt
    if receipt is None:
        return "none yet"
    values = f"{format_value(receipt.before)} → {format_value(receipt.after)}"
    change = f"{values}, confirmed at step {receipt.step} (tick {receipt.tick})"
    reason = f": {receipt.reason}" if receipt.reason else ""
    return f"{FATE_LABELS[entry.fate][0]} {receipt.status}  {change}{reason}"


def _format_outcome(outcome: Outcome) -> str:
    if not outcome.scored or outcome.gain is None:
        return f"{outcome.target}: not scored, {outcome.reason}"
    forecast = f", forecast {outcome.forecast:+.3g}" if outcome.forecast is not None else ""
    reputations = ", ".join(f"{line.agent} {line.before:.2f} → {line.after:.2f}" for line in outcome.lines)
    outcome_text = f"{outcome.target} {outcome.gain:+.3g}{forecast}; {outcome.reason}"
    return outcome_text + (f"; {reputations}" if reputations else "")


def _make_tally_table(lines: tuple[TallyLine, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("agent", "stance", "value"):
        table.add_column(name)
    for name in ("confidence", "reputation", "weight"):
        table.add_column(name, justify="right")
    for line in lines:
        if line.stance == "silent":
            continue
        mark = " (shadow)" if line.shadow else " (newcomer)" if line.newcomer else ""
        figures = (f"{line.confidence:.2f}", f"{line.reputation:.3g}", f"{line.weight:.3g}")
        cells = (line.agent, line.stance + mark, format_value(line.value), *figures)
        table.add_row(*(Text(clean(cell)) for cell in cells), style="dim" if not line.weight else "")
    for name, stances in (("for", ("propose", "for")), ("against", ("against",))):
        weight = sum(line.weight for line in lines if line.stance in stances)
        table.add_row(Text("total"), Text(name), "", "", "", f"{weight:.3g}", style="bold")
    return table


def _describe_vote(name: str, vote: Vote) -> list[RenderableType]:
    stance = f"{vote.stance} {format_value(vote.value)}" if vote.value is not None else vote.stance
    parts: list[RenderableType] = [
        _section(f"{name}: {stance}"),
        Text(clean(vote.rationale) or "no reason given"),
    ]
    if vote.target:
        parts.append(_row("expects", f"{vote.target} {vote.expected_change:+.3g} within {vote.horizon} ticks"))
    texts = [item for item in vote.evidence if parse_path(item) is None]  # _make_pictures draws the paths
    parts += [_row("evidence", text) for text in texts]
    return parts


def _section(name: str) -> Text:
    return Text(f"\n{clean(name)}", style="bold")


def _row(name: str, value: str) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=13, style="dim")
    grid.add_column()
    grid.add_row(Text(name), Text(clean(value)))
    return grid
