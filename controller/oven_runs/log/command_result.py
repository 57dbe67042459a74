"""What the log says of an operator's command: logged, answered, decided, carried out. A pure fold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import Decision, LogMessage, Receipt
from oven_core.protocol.operator_actions import expects_receipt
from oven_core.protocol.operator_messages import TO_LEARNER, CommandAnswer, OperatorCommand
from oven_runs.log.run_summary import text

Stage = Literal["asked", "logged", "answered", "done", "refused", "lost"]
"""`answered`: the mesh has said yes, and the learner's receipt is awaited. `lost`: it is not known to be in the log."""


@dataclass
class CommandResult:
    """What the log has said of a command so far."""

    run: str
    command: OperatorCommand
    waited: str = ""
    """How long it was waited for, completing "no receipt from the learner"; empty while somebody still waits."""
    logged: int = 0
    """Sequence of the command itself."""
    answer: CommandAnswer | None = None
    decision: Decision | None = None
    receipts: list[Receipt] = field(default_factory=list)
    """All that came meanwhile: each subject has its own queue, so a receipt may overtake its decision."""
    failed: str = ""
    """Why it did not get into the log."""

    def take(self, body: LogMessage | Malformed) -> bool:
        """Whether it has to do with the command."""
        match body:
            case CommandAnswer() if body.command == self.command.id:
                self.answer = body
            case Decision() if body.command == self.command.id:
                self.decision = body
            case Receipt() if not self.whole:
                self.receipts.append(body)
                return self.receipt is body
            case _:
                return False
        return True

    @property
    def receipt(self) -> Receipt | None:
        """The command's own, or that of the decision which it led to."""
        led_to = self.decision.id if self.decision is not None else None
        mine = (one for one in self.receipts if one.command == self.command.id or one.decision_id == led_to)
        return next(mine, None)

    @property
    def whole(self) -> bool:
        """Whether nothing more is to be waited for."""
        if self.command.action in TO_LEARNER:
            return self.receipt is not None
        if self.answer is None:
            return False
        return self.receipt is not None or not (self.answer.done and expects_receipt(self.command.action))

    @property
    def code(self) -> int:
        """The exit code: 0 done, 1 the answer is no, 3 the log has not said."""
        if not self.whole:
            return 3
        if self.answer is not None and not self.answer.done:
            return 1
        return 1 if self.receipt is not None and self.receipt.status not in ("applied", "noop") else 0

    @property
    def stage(self) -> Stage:
        """How far it has come."""
        if self.whole:
            return "refused" if self.code else "done"
        if self.failed:
            return "lost"
        if self.answer is not None:
            return "answered"
        return "logged" if self.logged else "asked"

    def line(self) -> str:
        """One line for people."""
        return f"{self.command.action}: {self.outcome() if self.whole else self._lacking()}"

    def outcome(self) -> str:
        """The outcome, once the result is whole."""
        action, answer, receipt = self.command.action, self.answer, self.receipt
        if answer is not None and not answer.done:
            return f"refused: {answer.reason}"
        if receipt is None:
            assert answer is not None
            return answer.reason
        why = f": {receipt.reason}" if receipt.reason else ""
        at = f"at step {receipt.step}{why}"
        if action in TO_LEARNER:
            return f"{receipt.status} {at}"
        change = f"{receipt.actuator} {text(receipt.before)} → {text(receipt.after)}"
        beside = f" ({answer.reason})" if answer is not None and "although" in answer.reason else ""
        return f"{receipt.status}, {change} {at}{beside}"

    def _lacking(self) -> str:
        logged = f"logged as event {self.logged} of {self.run}"
        slow = "it comes at the end of a step, which may last longer"
        if self.command.action in TO_LEARNER:
            return f"{logged}; no receipt from the learner {self.waited}: {slow}"
        if self.answer is None:
            later = f"it counts as soon as a mesh reads it; `oven-controller status {self.run}` shows whether one runs"
            return f"{logged}; no answer from the mesh {self.waited}: {later}"
        return f"{logged}, decision {self.answer.decision} too; no receipt from the learner {self.waited}: {slow}"

    def fields(self) -> dict[str, Any]:
        """The same for scripts."""
        parts = {"answer": self.answer, "decision": self.decision, "receipt": self.receipt}
        return {
            "run": self.run,
            "command": self.command.id,
            "action": self.command.action,
            "logged": self.logged,
            "code": self.code,
            **{name: part.model_dump(mode="json") if part is not None else None for name, part in parts.items()},
        }
