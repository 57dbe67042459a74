"""Withheld controls: passed decisions that are left undone, as a baseline for the others.

Which ones is drawn by the hash of the decision's id: the same on every replica, checkable by everybody, and nothing
that a state has to remember. Actions are never withheld: they answer something that is wrong now (a rollback, a hold, a
stop), and the harm of leaving one undone is not what anybody wants to measure. Nor is what an operator asked for.
"""

from __future__ import annotations

import hashlib

from oven_core.protocol.messages import ActuatorSpec, Decision


def drawn(decision_id: str, share: float) -> bool:
    """Whether the decision of this id is a control, for a share of 0..1."""
    number = int.from_bytes(hashlib.sha256(decision_id.encode()).digest()[:8], "big")
    return number < share * 2.0**64


def withheld(decision: Decision, share: float, spec: ActuatorSpec | None) -> Decision:
    """The decision itself, or if it is drawn the same one left undone. Its target is measured all the same."""
    if decision.verdict != "adopted" or decision.command or spec is None or spec.kind == "action":
        return decision
    if not drawn(decision.id, share):
        return decision
    told = f"withheld as a control (a share of {share:.3g}): nothing is changed, {decision.target} is measured"
    update = {"verdict": "withheld", "snapshot_first": False, "reason": f"{decision.reason}; {told}"}
    return decision.model_copy(update=update)
