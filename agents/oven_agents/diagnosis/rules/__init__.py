"""Rules that judge a run's curves: each returns the evidence of one kind of fault, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules import (
    generalisation,
    learning,
    memorising,
    policy,
    preferences,
    resources,
    schedule,
    stability,
    warm_up,
)
from oven_agents.diagnosis.run_record import RunRecord

RULES: Final[Sequence[Callable[[RunRecord], Evidence | None]]] = (
    stability.not_finite, stability.diverged, learning.dead, learning.stuck, learning.flat_reward,
    generalisation.overfit, memorising.steps_at_epochs,
    policy.truncated, policy.changed_lengths, policy.constant_answers, policy.reward_collapse,
    generalisation.reward_hacked, policy.equal_groups, preferences.chosen_falls,
    warm_up.missing_warm_up, schedule.zero_rate, schedule.ended_early, schedule.always_clipped,
    schedule.never_evaluated, schedule.several_parts, resources.slower, resources.memory_grows,
)  # fmt: skip


def read_curves(record: RunRecord) -> Iterator[Evidence]:
    """Yield evidence from the curves of the run's metrics."""
    for rule in RULES:
        evidence = rule(record)
        if evidence is not None:
            yield evidence
