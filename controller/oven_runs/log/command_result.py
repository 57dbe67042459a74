"""Track an operator's command in the log: whether it was logged, answered, decided and carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_core.mesh.actuator_values import same_value
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import Decision, LogMessage, Receipt, RunEnded
from oven_core.protocol.operator_actions import expects_receipt
from oven_core.protocol.operator_messages import LEARNER_ACTIONS, CommandAnswer, OperatorCommand
from oven_runs.log.run_summary import format_value

Stage = Literal["asked", "logged", "answered", "done", "refused", "lost"]
"""`answered`: the mesh agreed, and the learner's receipt is pending. `lost`: the command may not have been logged."""


@dataclass
class CommandResult:
    """The messages about one command that have arrived so far."""

    run: str
    command: OperatorCommand
    wait_text: str = ""
    """How long the client waited, as a phrase such as "within 5 s". Empty while it is still waiting."""
    logged_seq: int = 0
    """Sequence number of the command's event in the log; 0 until the command is logged."""
    answer: CommandAnswer | None = None
    decision: Decision | None = None
    receipts: list[Receipt] = field(default_factory=list)
    """All receipts since the command. A receipt may arrive before its decision, which comes through another queue."""
    failure: str = ""
    """Why sending the command failed; empty if it did not fail."""
    run_ended: bool = False
    """Whether the run ended, so that no more messages will follow."""

    def feed(self, body: LogMessage | Malformed) -> bool:
        """Add a message. Return whether it is about the command or ends the run."""
        match body:
            case CommandAnswer() if body.command == self.command.id:
                self.answer = body
            case Decision() if body.command == self.command.id:
                self.decision = body
            case Receipt() if not self.is_final:
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
    def is_final(self) -> bool:
        """Whether the command was carried out or refused, so that later messages cannot change the result."""
        if self.command.action in LEARNER_ACTIONS:
            return self.receipt is not None
        if self.answer is None:
            return False
        return self.receipt is not None or not (self.answer.done and expects_receipt(self.command.action))

    @property
    def code(self) -> int:
        """The exit code of the command line. 0: the command was carried out. 1: it was refused, or another value was
        read back. 3: the result is not known yet."""
        if not self.is_final:
            return 3
        if self.answer is not None and not self.answer.done:
            return 1
        if self.receipt is None:
            return 0
        if self.receipt.status not in ("applied", "noop"):
            return 1
        expected = self.decision.value if self.decision is not None else None
        return 0 if expected is None or same_value(self.receipt.after, expected) else 1

    @property
    def stage(self) -> Stage:
        """The stage that the command reached."""
        if self.is_final:
            return "refused" if self.code else "done"
        if self.failure:
            return "lost"
        if self.answer is not None:
            return "answered"
        return "logged" if self.logged_seq else "asked"

    def line(self) -> str:
        """Describe the result in one line."""
        return f"{self.command.action}: {self.outcome() if self.is_final else self._describe_progress()}"

    def outcome(self) -> str:
        """Describe the outcome. Call this only when the result is final."""
        action, answer, receipt = self.command.action, self.answer, self.receipt
        if answer is not None and not answer.done:
            return f"refused: {answer.reason}"
        if receipt is None:
            assert answer is not None
            return answer.reason
        reason = f": {receipt.reason}" if receipt.reason else ""
        details = f"at step {receipt.step}{reason}"
        if action in LEARNER_ACTIONS:
            return f"{receipt.status} {details}"
        change = f"{receipt.actuator} {format_value(receipt.before)} → {format_value(receipt.after)}"
        # A mesh answers "…, although …" if the command overrides a rule.
        caveat = f" ({answer.reason})" if answer is not None and "although" in answer.reason else ""
        return f"{receipt.status}, {change} {details}{caveat}"

    def _describe_progress(self) -> str:
        """Describe which messages have arrived and which one is missing."""
        logged = f"logged as event {self.logged_seq} of {self.run}"
        if self.run_ended:
            return f"{logged}; the run ended before it was confirmed"
        receipt_hint = "it comes at the end of a step, which may take longer"
        if self.command.action in LEARNER_ACTIONS:
            return f"{logged}; no receipt from the learner {self.wait_text}: {receipt_hint}"
        if self.answer is None:
            mesh_hint = f"a mesh acts on it as soon as it runs; see `oven-controller status {self.run}`"
            return f"{logged}; no answer from the mesh {self.wait_text}: {mesh_hint}"
        decision = self.answer.decision
        return f"{logged} and decided as {decision}; no receipt from the learner {self.wait_text}: {receipt_hint}"

    def fields(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return CommandReport.of_result(self).model_dump(mode="json", exclude={"line"})


class CommandReport(BaseModel):
    """The JSON output for a command."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    command: str = Field(description="id of the command")
    action: str
    logged: int = Field(description="sequence number of the command in the log")
    code: int = Field(description="0: done; 1: refused, or another value was read back; 3: not known yet")
    answer: CommandAnswer | None = Field(description="the mesh's answer; null if the mesh has not answered")
    decision: Decision | None
    receipt: Receipt | None = Field(description="the learner's receipt, with the value that was read back")
    line: str = Field(description="the result in one sentence")

    @classmethod
    def of_result(cls, result: CommandResult) -> CommandReport:
        return cls(
            run=result.run,
            command=result.command.id,
            action=result.command.action,
            logged=result.logged_seq,
            code=result.code,
            answer=result.answer,
            decision=result.decision,
            receipt=result.receipt,
            line=result.line(),
        )
