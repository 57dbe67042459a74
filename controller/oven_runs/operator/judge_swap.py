"""An operator's swap of a judge: the model is offered, which has it probed, and then chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oven_core.protocol.judge_spec import JudgeSpec, actuator_of
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import carried_out, new_command

BESIDE_S = 10.0
"""Beyond the committee's deadline, which a probe has: for the step boundaries before and after it."""
JOIN_S = 30.0
"""For the process of a member that is added, as the learner waits for it."""


@dataclass(frozen=True)
class Swapped:
    """The outcome of both. `chosen` None: the offer was not taken, and the judge before stays."""

    offered: CommandResult
    chosen: CommandResult | None

    @property
    def code(self) -> int:
        """As a CommandResult's."""
        return self.offered.code if self.chosen is None else self.chosen.code

    def line(self) -> str:
        """One line for people."""
        if self.chosen is not None:
            return self.chosen.line()
        receipt = self.offered.receipt
        if receipt is None:
            return self.offered.line()
        return f"swap: {receipt.status}, {receipt.after} stays: {receipt.reason}"

    def fields(self) -> dict[str, Any]:
        """The same for scripts."""
        chosen = self.chosen.fields() if self.chosen is not None else None
        return {"code": self.code, "offered": self.offered.fields(), "chosen": chosen}


async def swapped(access: RunAccess, member: str, model: JudgeSpec, deadline_s: float, reason: str = "") -> Swapped:
    """Offer the model to the member, and choose it if it answered within `deadline_s`. Raises BusError where a command
    does not get into the log."""
    name = actuator_of(member)
    offer = new_command("offer", actuator=name, judge=model, reason=reason)
    offered = await carried_out(access, offer, deadline_s + BESIDE_S)
    if offered.code:
        return Swapped(offered, None)
    choice = new_command("set", actuator=name, value=model.identity, reason=reason)
    return Swapped(offered, await carried_out(access, choice))
