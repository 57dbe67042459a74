"""The committee that a run was configured with: the rules of a recipe or script, and the settings' remote members."""

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
    """`rules` with the members of the run's `committee` settings; everybody has weight 1 unless `weights` says
    otherwise, and the verifier a tenth of the whole. `description` says whose answers they score and what for.
    `reference` is where an answer known to be right comes from (Committee), where the settings do not say, and `shape`
    what the members are shown and what becomes of their scores.

    The stack is found as `attach` finds it. Raises ConfigError when there is none, or the settings cannot work.
    """
    there = Connection.find(url, run, creds)
    settings = there.committee
    rules = with_configured_rules(rules, settings.members)
    rules, weights = with_verifier(rules, weights, settings.members, description)
    remote = RemoteMembers(  # also where there is none yet: one may be added
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
