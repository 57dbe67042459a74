"""Reads the changes that agents proposed as evidence for a cause: a raise of the rate that helped says it was too low.

The controller's own changes are never faults. Changes that only the autonomy level prevented count like changes whose
outcome is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.levels import collapse_kind
from oven_agents.diagnosis.run_record import Intervention, RunRecord
from oven_agents.stats.optimizer_gauges import LR_SCALE, ROLLBACK
from oven_core.mesh.actuator_values import direction, show

COLLAPSE: Final = "reward_collapse"
APPLIED_WEIGHT: Final = 0.6
"""Weight of a change that was made, or that only the autonomy level prevented, without a scored outcome."""
REJECTED_WEIGHT: Final = 0.3
"""Weight of a proposal that was rejected or never applied: the view of one agent, which others did not share."""
MAX_WEIGHT: Final = 0.95
"""Weight of a change whose outcome certainly beat doing nothing. The gain may still have another cause."""

MIN_BEAT: Final = 0.3
"""Probability of having beaten doing nothing below which a change was probably wrong."""


class Treatment(NamedTuple):
    """A change that is evidence for a kind of finding."""

    actuator: str
    directions: tuple[str, ...]
    kind: str
    symptoms: tuple[str, ...]
    """The change is evidence only if it was proposed for one of these symptoms."""


TREATMENTS: Final = (
    Treatment(LR_SCALE, ("up",), "lr_too_low", ("gradients_aligned", "slow_progress", "update_ratio_low")),
    Treatment(
        LR_SCALE, ("down",), "lr_too_high",
        ("update_ratio_high", "gradients_opposed", "loss_creeps_up", "loss_oscillates"),
    ),
    Treatment(LR_SCALE, ("down",), COLLAPSE, ("policy_collapse",)),
    Treatment(ROLLBACK, ("set",), COLLAPSE, ("policy_collapse",)),
    Treatment("data.mixture", ("set",), "skewed_mixture", ("starved_level",)),
    Treatment("teacher.active", ("set",), "weak_teacher", ("kl_anchor_binds", "reward_plateau")),
    Treatment("grpo.beta", ("down",), "kl_penalty_too_strong", ("kl_anchor_binds",)),
    Treatment("grpo.beta", ("up",), "kl_penalty_too_weak", ("kl_runaway",)),
    Treatment("optimizer.weight_decay", ("down",), "weight_decay_too_high", ("weights_shrink",)),
    Treatment("reward.weights", ("set",), "reward_hacked", ("reward_up_heldout_down",)),
)  # fmt: skip


def read_interventions(record: RunRecord) -> Iterator[Evidence]:
    """Yield one piece of evidence per kind from all changes that the agents proposed for it. Only scored outcomes count
    if there are any, and repeated proposals do not add up."""
    by_kind: dict[str, list[Intervention]] = {}
    for intervention in record.interventions.values():
        if kind := _treated_kind(intervention, record):
            by_kind.setdefault(kind, []).append(intervention)
    for kind, interventions in by_kind.items():
        scored = [intervention for intervention in interventions if intervention.beat is not None]
        best = max(scored or interventions, key=_weight)
        was_right = best.is_applied and (best.beat is None or best.beat >= MIN_BEAT)
        knob = best.decision.actuator if was_right else ""
        yield Evidence(kind, _weight(best), interventions[0].decision.tick, _describe(best, record), knob)


def _treated_kind(intervention: Intervention, record: RunRecord) -> str:
    """Return the kind of finding that the change treats, or an empty string."""
    decision = intervention.decision
    if decision.actuator == ROLLBACK and LR_SCALE in decision.plan:
        return ""  # the cut that belongs to the rollback is the evidence
    for treatment in TREATMENTS:
        if treatment.actuator == decision.actuator and _matches(treatment, intervention, record):
            is_collapse = treatment.kind == COLLAPSE
            return collapse_kind(record, decision.tick) if is_collapse else treatment.kind
    return ""


def _matches(treatment: Treatment, intervention: Intervention, record: RunRecord) -> bool:
    """Return whether the change treats this kind of finding. A scalar must end beyond the user's own value: a cut after
    the controller's own raise does not say that the user's value was too high."""
    decision = intervention.decision
    if not set(treatment.symptoms) & set(intervention.symptoms):
        return False
    first = record.first_values.get(decision.actuator)
    before = first if decision.before is None else decision.before  # a decision without a quorum does not state it
    return all(direction(value, decision.value) in treatment.directions for value in (before, first))


def _describe(intervention: Intervention, record: RunRecord) -> str:
    """Return who proposed the change, why, and its result."""
    decision, outcome = intervention.decision, intervention.outcome
    if not intervention.is_applied:
        result = "which waits for approval" if decision.verdict == "advised" else "which was not made"
    elif intervention.beat is not None and outcome is not None:
        result = f"and after it {outcome.reason}"
    else:
        result = "which was made"
    return (
        f"{_reason(intervention.rationale)}; so {' and '.join(intervention.agents)} proposed {decision.actuator} "
        f"{show(decision.before)} → {show(decision.value)} at step {record.step_at(decision.tick)}, {result}"
    )


def _weight(intervention: Intervention) -> float:
    if intervention.is_applied:
        # Squared, because an outcome that is barely better than doing nothing says less than one that is still unknown.
        return APPLIED_WEIGHT if intervention.beat is None else MAX_WEIGHT * intervention.beat**2
    return APPLIED_WEIGHT if intervention.is_withheld else REJECTED_WEIGHT


def _reason(rationale: str) -> str:
    """Return a rationale without its change, which follows the last colon outside of parentheses."""
    reason, _, _ = rationale.rpartition(": ")
    return reason if reason and reason.count("(") == reason.count(")") else rationale
