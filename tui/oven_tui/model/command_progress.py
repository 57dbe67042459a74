"""Tracks the progress of operators' commands, from this monitor and others, until they are applied or refused."""

from __future__ import annotations

from typing import Final

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Receipt
from oven_core.protocol.operator_messages import LEARNER_ACTIONS, CommandAnswer, OperatorCommand
from oven_runs.log.command_result import CommandResult, Stage
from oven_runs.log.run_summary import format_value
from oven_tui.model.cell_text import TextRun

MAX_COMMANDS: Final = 256
"""Maximum number of commands to track. Older commands are shown without their progress."""
SYMBOLS: Final[dict[Stage, tuple[str, str, str]]] = {
    "asked": ("◌", "sent", "warn"),
    "logged": ("◌", "logged", "warn"),
    "answered": ("◌", "answered", "warn"),
    "done": ("✔", "done", "good"),
    "refused": ("✗", "refused", "bad"),
    "lost": ("✗", "not sent", "bad"),
}
"""Symbol, label and kind of text for each stage."""


class CommandProgress:
    """The newest commands and their progress. Add the log's events in order with `feed`."""

    def __init__(self) -> None:
        self.by_id: dict[str, CommandResult] = {}
        self.unlogged_commands: dict[str, CommandResult] = {}
        """This monitor's commands that are not in the log yet."""
        self.version = 0  # increases with every change

    def add_sent(self, result: CommandResult) -> None:
        """Add a command of this monitor. The sender updates its result and calls `mark_changed`."""
        self.unlogged_commands[result.command.id] = self._add(result)
        self.version += 1

    def mark_changed(self) -> None:
        self.version += 1

    def feed(self, event: Event) -> None:
        body = event.body
        if isinstance(body, OperatorCommand):
            self.unlogged_commands.pop(body.id, None)
            _, run, *_ = event.subject.split(".")
            result = self.by_id.get(body.id) or self._add(CommandResult(run, body))
            result.logged_seq = result.logged_seq or event.seq
            result.failure = ""
            self.version += 1
        elif isinstance(body, CommandAnswer | Receipt) or (isinstance(body, Decision) and body.command):
            for result in self.by_id.values():
                if not result.is_final and result.feed(body):
                    self.version += 1

    def newest_unfinished(self, subject: str) -> CommandResult | None:
        """Return the newest unfinished command about a decision or a ballot."""
        newest_first = (result for result in reversed(self.by_id.values()) if result.command.subject_id == subject)
        return next((result for result in newest_first if not result.is_final), None)

    def _add(self, result: CommandResult) -> CommandResult:
        self.by_id[result.command.id] = result
        if len(self.by_id) > MAX_COMMANDS:
            oldest_id = next(iter(self.by_id))
            del self.by_id[oldest_id]
            self.unlogged_commands.pop(oldest_id, None)
        return result


def request_text(command: OperatorCommand) -> str:
    words = " ".join(part for part in (command.action, subject_text(command), value_text(command)) if part)
    return f"{words}: {command.reason}" if command.reason else words


def subject_text(command: OperatorCommand) -> str:
    """Return the decision, actuator or agent that the command is about, or an empty string for the run itself."""
    actuators = ", ".join(command.actuators)
    return " ".join(part for part in (command.subject_id, command.actuator, command.agent, actuators) if part)


def value_text(command: OperatorCommand) -> str:
    """Return the value that the command sets, or an empty string if there is none."""
    return command.autonomy or ("" if command.value is None else format_value(command.value))


def stage_text(result: CommandResult) -> TextRun:
    """Return the command's stage, or the step at which it was applied."""
    symbol, words, kind = SYMBOLS[result.stage]
    if result.stage == "done" and (receipt := result.receipt) is not None:
        words = f"step {receipt.step}"
    return f"{symbol} {words}", kind


def progress_text(result: CommandResult) -> str:
    """Describe the command's progress: its receipt, its refusal, or what it is waiting for."""
    command = result.command
    match result.stage:
        case "done" | "refused":
            return result.outcome()
        case "lost":
            return result.failure
        case "asked":
            return "not logged yet"
        case _ if result.wait_text:
            return result.line()
        case "answered":
            return f"event {result.logged_seq}; accepted by the mesh, waiting for the learner's receipt after the step"
        case _:
            awaited = "the learner's receipt" if command.action in LEARNER_ACTIONS else "the mesh's answer"
            return f"event {result.logged_seq}; waiting for {awaited}"
