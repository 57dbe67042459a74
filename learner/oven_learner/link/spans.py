"""Trace spans of the learner's messages, made in the link's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from oven_core.protocol.messages import LearnerMessage, Observation, Receipt
from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute, Span


@dataclass(frozen=True, slots=True, eq=False)
class TracedReceipt:
    """A receipt for `Link.send`, with the Unix times in ns between which the decision was applied. The training thread
    only reads the clock."""

    receipt: Receipt
    began_ns: int
    ended_ns: int

    def __call__(self) -> Receipt:
        return self.receipt


def span_of(make: object, message: LearnerMessage, contexts: tracing.Contexts) -> Callable[[], Span] | None:
    """Return what makes the message's span: an observation starts a trace, a receipt ends its decision's trace."""
    if isinstance(message, Observation):
        attributes: dict[str, Attribute] = {"oven.tick": message.tick, "oven.step": message.step}
        return partial(tracing.span, "observe", attributes=attributes, kind="producer")
    if not isinstance(make, TracedReceipt):
        return None
    receipt = make.receipt
    attributes = {
        "oven.tick": receipt.tick,
        "oven.actuator": receipt.actuator,
        "oven.decision_id": receipt.decision_id,
        "oven.verdict": "adopted",
        "oven.status": receipt.status,
    }
    parent = contexts.get(receipt.decision_id)
    times = {"began_ns": make.began_ns, "ended_ns": make.ended_ns}
    return partial(tracing.span, "apply", parent, attributes, kind="consumer", **times)
