"""The outcome of an operator's command, as the commands' `--json` prints it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import Decision, Receipt
from oven_core.protocol.operator_messages import CommandAnswer
from oven_runs.log.command_result import CommandResult


class CommandReport(BaseModel):
    """The command, and what the log has said of it so far."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    command: str = Field(description="its id")
    action: str
    logged: int = Field(description="sequence of the command in the log")
    code: int = Field(description="0: done; 1: the answer is no; 3: the log has not said yet")
    answer: CommandAnswer | None = Field(description="the mesh's; null where the learner alone answers, or not yet")
    decision: Decision | None
    receipt: Receipt | None = Field(description="with the value that was read back")
    line: str = Field(description="the same in words")

    @classmethod
    def of(cls, result: CommandResult) -> CommandReport:
        return cls.model_validate(result.fields() | {"line": result.line()})
