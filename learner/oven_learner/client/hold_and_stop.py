"""What a hold, a resume and a stop do to a run. No mesh is needed: the learner obeys, and answers itself."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.actuators import Applied

OBEYED = {"hold": "run.hold", "resume": "run.hold", "stop": "run.stop"}
"""The commands that the learner obeys, with the actuator that their receipts name; the mesh deals with the others."""
LOCAL = "local-"
"""How the ids of the learner's own commands begin."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Why the run is held, and why training should stop after this step; empty where it is not, and should not."""

    held: str = ""
    stopping: str = ""

    def after(self, command: OperatorCommand) -> tuple[RunState, Applied]:
        """The state from now on, and what the receipt says of the change."""
        why = command.reason or "an operator asked for it"
        match command.action:
            case "hold" if self.held:
                return self, Applied("noop", reason=f"it is held already: {self.held}")
            case "hold":
                return replace(self, held=why), Applied("applied", reason=why)
            case "resume" if not self.held:
                return self, Applied("noop", reason="it is not held")
            case "resume":
                return replace(self, held=""), Applied("applied", reason=f"it goes on: {why}")
            case _ if self.stopping:
                return self, Applied("noop", reason=f"it stops already: {self.stopping}")
        return replace(self, stopping=why), Applied("applied", reason=f"it stops after this step: {why}")


def has_unanswered_command(orders: Iterable[object], answered: Container[str]) -> bool:
    """Whether a command is among them that the learner has to obey, and has not answered yet. It needs no mesh, so in
    lockstep it does not wait for one to close the tick."""
    commands = (order for order in orders if isinstance(order, OperatorCommand) and order.action in OBEYED)
    return any(command.id not in answered for command in commands)
