"""An operator's swap of a judge: offer a model to the committee member, which probes it, then choose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oven_core.protocol.judge_spec import JudgeSpec, actuator_of
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import carried_out, new_command

MARGIN_S = 10.0
"""Added to the committee's deadline for a probe, for the step boundaries before and after it."""
JOIN_S = 30.0
"""For the process of a new member to start; the learner waits as long."""


@dataclass(frozen=True)
class SwapResult:
    """The results of the offer and the choice. `chosen` is None if the offer failed, so the old judge stays."""

    offered: CommandResult
    chosen: CommandResult | None

    @property
    def code(self) -> int:
        """The exit code, as of CommandResult."""
        return self.offered.code if self.chosen is None else self.chosen.code

    def line(self) -> str:
        """The result in one sentence."""
        if self.chosen is not None:
            return self.chosen.line()
        receipt = self.offered.receipt
        if receipt is None:
            return self.offered.line()
        return f"swap: {receipt.status}, {receipt.after} stays: {receipt.reason}"

    def fields(self) -> dict[str, Any]:
        """The result as JSON values."""
        chosen = self.chosen.fields() if self.chosen is not None else None
        return {"code": self.code, "offered": self.offered.fields(), "chosen": chosen}


async def swap_judge(
    access: RunAccess, member: str, model: JudgeSpec, deadline_s: float, reason: str = ""
) -> SwapResult:
    """Offer the model to the member, and choose it if it answers within `deadline_s`.

    Raises BusError if a command does not get into the log.
    """
    name = actuator_of(member)
    offer = new_command("offer", actuator=name, judge=model, reason=reason)
    offered = await carried_out(access, offer, deadline_s + MARGIN_S)
    if offered.code:
        return SwapResult(offered, None)
    choice = new_command("set", actuator=name, value=model.identity, reason=reason)
    return SwapResult(offered, await carried_out(access, choice))
