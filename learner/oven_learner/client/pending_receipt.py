"""A decision's receipt that waits until an optimizer step has shown whether the change was used."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oven_controller.protocol.messages import Decision
from oven_learner.actuators import Actuators, Applied, Proof


@dataclass(slots=True)
class PendingReceipt:
    """What was done at a tick and a step, and by which proof it will show; without one it waits for its turn alone."""

    decision: Decision
    applied: Applied
    began_ns: int
    tick: int
    step: int
    proof: Proof | None = None


def final(owed: PendingReceipt, actuators: Actuators) -> Applied:
    """What can be said of it once no more steps will come."""
    verdict = owed.proof.verdict(ended=True) if owed.proof is not None else ""
    if verdict == "":
        return owed.applied
    if verdict is None:
        return replace(owed.applied, status="unknown", reason="it was written, and the run ended before a step used it")
    return refuted(owed, actuators, verdict)


def refuted(owed: PendingReceipt, actuators: Actuators, why: str) -> Applied:
    """It did not take: what is in force is in the receipt."""
    return replace(owed.applied, status="rejected", after=actuators.read(owed.decision.actuator), reason=why)
