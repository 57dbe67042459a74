"""Build a run's committee: the rules of a recipe or script, and the remote members of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oven_learner.link.find_controller import Connection
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.configured_rules import with_configured_rules
from oven_learner.rewards.configured_verifier import with_verifier
from oven_learner.rewards.model_description import ModelDescription
from oven_learner.rewards.remote_members import RemoteMembers
from oven_learner.rewards.reward_shape import RewardShape
from oven_learner.rewards.rule_members import RewardFunction
from oven_runs.settings.committee_members import judge_of


def convene(
    rules: Mapping[str, RewardFunction],
    *,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
    description: ModelDescription | str = "",
    reference: str = "",
    shape: RewardShape | None = None,
    url: str | None = None,
    run: str | None = None,
    creds: str | Path | None = None,
) -> Committee:
    """Build a committee from `rules` and the members of the run's `committee` settings.

    All have weight 1 unless `weights` differs; the verifier has a tenth of the whole. `description` describes the model
    in training. `reference` is the source of answers known to be right (Committee), if the settings name none. `shape`
    controls what members see and how their scores become rewards.

    The stack is found as in `attach`. Raises ConfigError if there is none, or if the settings are invalid.
    """
    there = Connection.find(url, run, creds)
    settings = there.committee
    rules = with_configured_rules(rules, settings.members)
    rules, weights = with_verifier(rules, weights, settings.members, description)
    remote = RemoteMembers(  # even without members: one may be added later
        tuple(settings.judges),
        there.url,
        there.credentials,
        deadline_s=settings.deadline_s,
        judges={name: judge_of(member) for name, member in settings.judges.items()},
    )
    return Committee(
        rules,
        remote=remote,
        weights=weights,
        quorum=settings.quorum,
        rule=settings.rule,
        caution=settings.caution,
        reliability=settings.reliability,
        reference=settings.reference or reference,
        hold_after=settings.hold_after,
        ahead=settings.ahead,
        seed=seed,
        description=description,
        run=there.run,
        shape=shape,
    )
