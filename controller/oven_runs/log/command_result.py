"""Follow an operator's command through the log: whether it was logged, answered, decided and carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_core.mesh.actuator_values import same_value
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import Decision, LogMessage, Receipt, RunEnded
from oven_core.protocol.operator_actions import expects_receipt
from oven_core.protocol.operator_messages import LEARNER_ACTIONS, CommandAnswer, OperatorCommand
from oven_runs.log.run_summary import text

Stage = Literal["asked", "logged", "answered", "done", "refused", "lost"]
"""`answered`: the mesh agreed, and the learner's receipt is pending. `lost`: the command may not be in the log."""


@dataclass
class CommandResult:
    """The messages in the log about one command, so far."""

    run: str
    command: OperatorCommand
    waited: str = ""
    """The waiting time as a phrase that completes "no receipt from the learner"; empty while the client still waits."""
    logged: int = 0
    """Sequence number of the command itself."""
    answer: CommandAnswer | None = None
    decision: Decision | None = None
    receipts: list[Receipt] = field(default_factory=list)
    """All receipts since the command. Each subject has its own queue, so a receipt may overtake its decision."""
    failed: str = ""
    """The reason why the command was not logged."""
    run_ended: bool = False
    """Whether the run ended, so that no more messages will follow."""

    def feed(self, body: LogMessage | Malformed) -> bool:
        """Add a message and return whether it is about the command."""
        match body:
            case CommandAnswer() if body.command == self.command.id:
                self.answer = body
            case Decision() if body.command == self.command.id:
                self.decision = body
            case Receipt() if not self.whole:
                self.receipts.append(body)
                return self.receipt is body
            case RunEnded():
                self.run_ended = True
            case _:
                return False
        return True

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the command, or of the decision that it led to."""
        decision = self.decision.id if self.decision is not None else None
        return next((r for r in self.receipts if r.command == self.command.id or r.decision_id == decision), None)

    @property
    def whole(self) -> bool:
        """Whether the result is final."""
        if self.command.action in LEARNER_ACTIONS:
            return self.receipt is not None
        if self.answer is None:
            return False
        return self.receipt is not None or not (self.answer.done and expects_receipt(self.command.action))

    @property
    def code(self) -> int:
        """The exit code: 0 if it was done, 1 if it was refused or another value was read back, 3 if the log does not
        say yet."""
        if not self.whole:
            return 3
        if self.answer is not None and not self.answer.done:
            return 1
        receipt, wanted = self.receipt, self.decision.value if self.decision is not None else None
        if receipt is None:
            return 0
        return int(
            receipt.status not in ("applied", "noop") or not (wanted is None or same_value(receipt.after, wanted))
        )

    @property
    def stage(self) -> Stage:
        """The stage that the command reached."""
        if self.whole:
            return "refused" if self.code else "done"
        if self.failed:
            return "lost"
        if self.answer is not None:
            return "answered"
        return "logged" if self.logged else "asked"

    def line(self) -> str:
        """Describe the result in one line."""
        return f"{self.command.action}: {self.outcome() if self.whole else self._lacking()}"

    def outcome(self) -> str:
        """The outcome, once the result is final."""
        action, answer, receipt = self.command.action, self.answer, self.receipt
        if answer is not None and not answer.done:
            return f"refused: {answer.reason}"
        if receipt is None:
            assert answer is not None
            return answer.reason
        why = f": {receipt.reason}" if receipt.reason else ""
        when = f"at step {receipt.step}{why}"
        if action in LEARNER_ACTIONS:
            return f"{receipt.status} {when}"
        change = f"{receipt.actuator} {text(receipt.before)} → {text(receipt.after)}"
        caveat = f" ({answer.reason})" if answer is not None and "although" in answer.reason else ""
        return f"{receipt.status}, {change} {when}{caveat}"

    def _lacking(self) -> str:
        logged = f"logged as event {self.logged} of {self.run}"
        if self.run_ended:
            return f"{logged}; the run ended before it was confirmed"
        slow = "it comes at the end of a step, which may take longer"
        if self.command.action in LEARNER_ACTIONS:
            return f"{logged}; no receipt from the learner {self.waited}: {slow}"
        if self.answer is None:
            later = f"a mesh acts on it when it reads it; `oven-controller status {self.run}` shows whether one is up"
            return f"{logged}; no answer from the mesh {self.waited}: {later}"
        return f"{logged}, decision {self.answer.decision} too; no receipt from the learner {self.waited}: {slow}"

    def fields(self) -> dict[str, Any]:
        """The result as JSON values."""
        return CommandReport.of_result(self).model_dump(mode="json", exclude={"line"})


class CommandReport(BaseModel):
    """The JSON output for a command."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    command: str = Field(description="its id")
    action: str
    logged: int = Field(description="sequence of the command in the log")
    code: int = Field(description="0: done; 1: refused, or another value was read back; 3: the log does not say yet")
    answer: CommandAnswer | None = Field(description="the mesh's answer; null if only the learner answers, or not yet")
    decision: Decision | None
    receipt: Receipt | None = Field(description="with the value that was read back")
    line: str = Field(description="the result in one sentence")

    @classmethod
    def of_result(cls, result: CommandResult) -> CommandReport:
        return cls(
            run=result.run,
            command=result.command.id,
            action=result.command.action,
            logged=result.logged,
            code=result.code,
            answer=result.answer,
            decision=result.decision,
            receipt=result.receipt,
            line=result.line(),
        )
