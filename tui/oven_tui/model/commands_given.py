"""Operators' commands, from this monitor and others, and their progress: sent, logged, answered, applied."""

from __future__ import annotations

from typing import Final

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Receipt
from oven_core.protocol.operator_messages import LEARNER_ACTIONS, CommandAnswer, OperatorCommand
from oven_runs.log.command_result import CommandResult, Stage
from oven_runs.log.run_summary import text
from oven_tui.model.braille_chart import Run

KEPT: Final = 256
"""Commands whose progress is known. Of older ones the list only shows the request."""
SIGNS: Final[dict[Stage, tuple[str, str, str]]] = {
    "asked": ("◌", "asked", "warn"),
    "logged": ("◌", "logged", "warn"),
    "answered": ("◌", "answered", "warn"),
    "done": ("✔", "done", "good"),
    "refused": ("✗", "refused", "bad"),
    "lost": ("✗", "not sent", "bad"),
}
"""Stage → sign, words, kind of text."""


class CommandsGiven:
    """Add the log's events in order. This monitor's own commands are added before the log has them."""

    def __init__(self) -> None:
        self.by_id: dict[str, CommandResult] = {}
        self.unlogged: dict[str, CommandResult] = {}
        """Commands that the log does not have yet, as far as it was read."""
        self.version = 0

    def ask(self, result: CommandResult) -> None:
        """Add a command that is about to be sent. The sender updates its result and calls `moved`."""
        self.unlogged[result.command.id] = self._keep(result)
        self.version += 1

    def moved(self) -> None:
        self.version += 1

    def feed(self, event: Event) -> None:
        body = event.body
        if isinstance(body, OperatorCommand):
            self.unlogged.pop(body.id, None)
            result = self.by_id.get(body.id) or self._keep(CommandResult(event.subject.split(".")[1], body))
            result.logged = result.logged or event.seq
            result.failed = ""
            self.version += 1
        elif isinstance(body, CommandAnswer | Receipt) or (isinstance(body, Decision) and body.command):
            for result in self.by_id.values():
                if not result.whole and result.feed(body):
                    self.version += 1

    def under_way(self, subject: str) -> CommandResult | None:
        """Return the newest unfinished command about a decision or a ballot."""
        newest_first = reversed(self.by_id.values())
        return next((r for r in newest_first if r.command.subject_id == subject and not r.whole), None)

    def _keep(self, result: CommandResult) -> CommandResult:
        self.by_id[result.command.id] = result
        if len(self.by_id) > KEPT:
            gone = next(iter(self.by_id))
            del self.by_id[gone]
            self.unlogged.pop(gone, None)
        return result


def request_text(command: OperatorCommand) -> str:
    words = " ".join(part for part in (command.action, object_of(command), value_of(command)) if part)
    return f"{words}: {command.reason}" if command.reason else words


def object_of(command: OperatorCommand) -> str:
    """Return what the command is about: a decision, an actuator, an agent; empty for the run itself."""
    on = ", ".join(command.actuators)
    return " ".join(part for part in (command.subject_id, command.actuator, command.agent, on) if part)


def value_of(command: OperatorCommand) -> str:
    """Return the value that it sets, in words; empty if it sets none."""
    return command.autonomy or ("" if command.value is None else text(command.value))


def sign_of(result: CommandResult) -> Run:
    """Return the stage as a cell, with the step of the receipt if there is one."""
    sign, words, kind = SIGNS[result.stage]
    if result.stage == "done" and (receipt := result.receipt) is not None:
        words = f"step {receipt.step}"
    return f"{sign} {words}", kind


def progress_text(result: CommandResult) -> str:
    """Return the command's progress in a sentence: its receipt or refusal, or what it waits for."""
    command = result.command
    match result.stage:
        case "done" | "refused":
            return result.outcome()
        case "lost":
            return result.failed
        case "asked":
            return "not in the log yet"
        case _ if result.waited:
            return result.line()
        case "answered":
            return f"event {result.logged}; the mesh said yes, the learner's receipt comes at the end of a step"
        case _:
            whose = "the learner's receipt" if command.action in LEARNER_ACTIONS else "the mesh's answer"
            return f"event {result.logged}; {whose} is awaited"
