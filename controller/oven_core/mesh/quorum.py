"""Whether the supporters of a change are enough: two votes with independent kinds of evidence, with three exceptions.

1. An agent that may decide alone on this actuator, by a grant of the settings or an operator, needs no other vote.
2. If harm is beyond doubt (oven_core.mesh.certain_harm), one trusted proposal is enough.
3. A change that does not affect the training at once, such as a measurement, needs one trusted proposal.

The knowledge graph has no measurements of its own: it answers to the symptom that the proposer names. So it may be the
second kind of evidence only for a small change, and a larger change is limited to a small one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from oven_core.mesh.actuator_values import number, shares
from oven_core.mesh.value_merge import WeightedVote
from oven_core.protocol.evidence import GRAPH
from oven_core.protocol.messages import ActuatorSpec, Value
from oven_core.protocol.rules import Rules


@dataclass(frozen=True, slots=True)
class Quorum:
    """The result of the check. `reason` is a part of the decision's reason."""

    is_reached: bool
    reason: str
    only_small: bool = False
    """Whether the supporters are enough only for a small change."""


def check_quorum(
    spec: ActuatorSpec, before: Value, side: Sequence[WeightedVote], rules: Rules, harm: str, needs_person: bool
) -> Quorum:
    """Return whether the votes of the winning side are a quorum for a change of the actuator from the value `before`.

    `side` has only votes that may count. `harm` describes harm beyond doubt; it is empty without any. If the change
    `needs_person`, because only newcomers propose it or autonomy is `advise`, that person is the second voice."""
    proposals = [vote for vote in side if vote.line.stance == "propose"]
    if not proposals:
        return Quorum(False, "no quorum: no trusted agent proposes it")
    confidence, minimum = max(vote.line.confidence for vote in proposals), rules.quorum_confidence
    sole_deciders = [vote for vote in proposals if vote.decides_alone]
    decider = max(sole_deciders, key=lambda vote: vote.line.confidence, default=None)
    if decider is not None and decider.line.confidence >= minimum:
        return Quorum(True, f"{decider.agent} may decide alone at {minimum:.3g}")
    if rules.evidence_kinds == 1 or harm or needs_person or not spec.intervenes:
        if confidence >= minimum:
            return Quorum(True, f"one proposal at {minimum:.3g} is enough" + (f", because {harm}" if harm else ""))
        return Quorum(False, f"no quorum: the proposal has confidence {confidence:.3g}, {minimum:.3g} required")
    by_stance = sorted(side, key=lambda vote: vote.line.stance != "propose")  # the reason names a proposal first
    signals = [(vote, vote.signal) for vote in by_stance if vote.signal is not None]
    measured = [(vote, signal) for vote, signal in signals if signal.kind != GRAPH]
    for (vote, signal), (other_vote, other_signal) in combinations(measured, 2):
        is_confident = max(vote.line.confidence, other_vote.line.confidence) >= minimum
        if is_confident and signal.is_independent_of(other_signal):
            kinds = f"{signal.kind} ({vote.agent}) and {other_signal.kind} ({other_vote.agent})"
            return Quorum(True, f"independent evidence: {kinds}")
    confident = next(((vote, signal) for vote, signal in measured if vote.line.confidence >= minimum), None)
    if confident is not None and len(measured) < len(signals) and _has_size(spec, before):
        kinds = f"{confident[1].kind} ({confident[0].agent}) and the knowledge graph"
        return Quorum(True, f"{kinds}: enough for a small change", only_small=True)
    kinds = ", ".join(sorted({signal.kind for _, signal in signals})) or "none"
    required = f"two independent kinds required, one of them at {minimum:.3g}"
    if decider is not None:
        required += f", or {decider.agent} alone at {minimum:.3g}, not {decider.line.confidence:.3g}"
    return Quorum(False, f"no quorum: evidence in favour: {kinds}; {required}")


def _has_size(spec: ActuatorSpec, before: Value) -> bool:
    """Return whether a change of the actuator can be limited to a small one."""
    if spec.kind == "simplex":
        return bool(shares(before))
    is_bounded = spec.scale == "log" or (spec.low is not None and spec.high is not None)
    return spec.kind == "scalar" and is_bounded and number(before) is not None
