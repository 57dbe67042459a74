"""What the monitor shows of advice, outcomes and an operator's commands."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from tests.support.mesh_log import LR
from tests.support.monitor_log import recorded
from tests.unit.tui.test_monitor_view import decided, fold

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Message, Outcome, OutcomeLine, TallyLine
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_tui.model.command_progress import progress_text
from oven_tui.model.decision_entries import DecisionEntry, Note, matching
from oven_tui.model.monitor_view import MonitorView
from oven_tui.screens.decision_detail import content

BASE = recorded()


def view_after(*messages: tuple[str, Message]) -> MonitorView:
    last = BASE[-1]
    events = [
        Event.read(last.seq + n, f"oven.r.{subject}", body.wire(), last.time)
        for n, (subject, body) in enumerate(messages, 1)
    ]
    return fold([*BASE, *events])


def decision(number: int, verdict: str, **more: Any) -> tuple[str, Decision]:
    body = Decision(
        id=f"{900000 + number:012d}-00", ballot="", actuator=LR, verdict=verdict, value=0.5, before=1.0,
        reason="why", tally=(TallyLine(agent="lr", stance="propose", value=0.5, confidence=0.9, weight=0.9),),
        tick=100, apply_at_tick=101, expires_at_tick=120, **more,
    )  # fmt: skip
    return f"decision.{body.id}", body


def paper(entry: DecisionEntry) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(Group(*content(entry)))
    return capture.get()


def test_what_is_advised_says_how_to_approve_it_until_somebody_does() -> None:
    advised = decision(1, "advised")
    entry = decided(view_after(advised))[-1]
    assert entry.fate == "advised" and f"oven-controller approve {advised[1].id}" in paper(entry)
    *_, entry, followed = decided(view_after(advised, decision(2, "adopted", of=advised[1].id, command="c")))
    assert (entry.fate, followed.fate) == ("approved", "pending")
    assert matching("approved")(entry) and not matching("approved")(followed)


def outcome(decision: Decision, **more: Any) -> tuple[str, Outcome]:
    return f"outcome.{decision.id}", Outcome(
        decision_id=decision.id,
        actuator=LR,
        target="eval/accuracy",
        from_tick=101,
        tick=121,
        reason="as forecast",
        **more,
    )


def test_an_outcome_stands_with_its_decision_and_moves_the_reputations_shown() -> None:
    subject, body = decision(1, "adopted")
    line = OutcomeLine(agent="lr", stance="propose", confidence=0.9, success=1.0, merit=0.98, before=1.0, after=1.46)
    view = view_after((subject, body), outcome(body, scored=True, gain=0.05, forecast=0.04, lines=(line,)))
    entry = decided(view)[-1]
    assert entry.outcome is not None and "eval/accuracy +0.05, forecast +0.04" in paper(entry)
    assert "lr 1.00 → 1.46" in paper(entry) and view.reputations["lr"] == 1.46
    unscored = decided(view_after((subject, body), outcome(body, scored=False)))[-1]
    assert "not scored, as forecast" in paper(unscored)


def test_commands_say_what_they_ask_for_and_what_came_of_it() -> None:
    command = OperatorCommand(id="c1", action="set", actuator=LR, value=0.5, reason="too fast")
    refused = CommandAnswer(
        command="c1", operator="kim", action="set", done=False, reason="0.5 lies outside 1 to 2", tick=9
    )
    command_message = ("operator.kim", command)
    view = view_after(command_message)
    (row,) = [entry for entry in view.entries if isinstance(entry, Note) and entry.command == "c1"]
    assert (row.author, row.text) == ("operator kim", f"set {LR} 0.5: too fast")
    assert progress_text(view.commands.by_id["c1"]).endswith("waiting for the mesh's answer")
    view = view_after(command_message, ("answer.000000900001-00", refused))
    assert progress_text(view.commands.by_id["c1"]) == "refused: 0.5 lies outside 1 to 2"
