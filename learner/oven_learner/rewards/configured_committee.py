"""Builds a run's committee from the script's own rules and the members in the run's settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from oven_core import plugins
from oven_core.errors import ConfigError
from oven_learner.link.find_controller import Connection
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.model_description import ModelDescription
from oven_learner.rewards.remote_members import RemoteMembers
from oven_learner.rewards.verdicts import RewardFunction
from oven_runs.settings.committee_members import judge_of
from oven_runs.settings.committee_settings import MemberSettings

if TYPE_CHECKING:  # at run time it would import numpy, which rules and judges do not need
    from oven_learner.rewards.calibrated_reward import CalibratedReward

log = logging.getLogger("oven.learner")


def convene(
    rules: Mapping[str, RewardFunction],
    *,
    weights: Mapping[str, float] | None = None,
    quorum: int | None = None,
    seed: int = 0,
    description: ModelDescription | str = "",
    reference: str = "",
    calibration: CalibratedReward | None = None,
    url: str | None = None,
    run: str | None = None,
    creds: str | Path | None = None,
) -> Committee:
    """Build a committee from `rules` and the members of the run's `committee` settings. The default weights are 1 for
    each member, and a tenth of the total for the verifier. The settings take precedence over `quorum` and
    `reference`. `url`, `run` and `creds` locate the stack as for `attach`. The other arguments are those of Committee.
    Raises ConfigError if there is no stack, or if the settings are invalid."""
    connection = Connection.find(url, run, creds)
    settings = connection.committee
    rules, weights = with_configured_members(rules, weights, settings.members, description)
    remote = RemoteMembers(  # needed even without members, because one may be added later
        tuple(settings.judges),
        connection.url,
        connection.credentials,
        deadline_s=settings.deadline_s,
        judges={name: judge_of(member) for name, member in settings.judges.items()},
    )
    return Committee(
        rules,
        remote=remote,
        weights=weights,
        quorum=quorum if settings.quorum is None else settings.quorum,
        rule=settings.rule,
        caution=settings.caution,
        reliability=settings.reliability,
        reference=settings.reference or reference,
        hold_after=settings.hold_after,
        ahead=settings.ahead,
        seed=seed,
        description=description,
        run=connection.run,
        calibration=calibration,
    )


def with_configured_members(
    rules: Mapping[str, RewardFunction],
    weights: Mapping[str, float] | None,
    members: Mapping[str, MemberSettings],
    description: ModelDescription | str,
) -> tuple[dict[str, RewardFunction], dict[str, float]]:
    """Add the rules and the verifier in `members` to `rules` and `weights`. A verifier gets a tenth of the total weight
    unless `weights` contains it. It compares strings, so it is off if the description has another modality.
    Raises ConfigError for two verifiers, a duplicate name, or a rule or sentence model that cannot be loaded."""
    rules, weights = dict(rules), dict(weights or {})
    duplicates = [name for name, member in members.items() if member.kind != "llm" and name in rules]
    if duplicates:
        raise ConfigError(f"the committee has two members named {duplicates[0]!r}; rename the one in committee.members")
    rules |= {name: load_rule(name, member.rule) for name, member in members.items() if member.kind == "rule"}
    verifiers = [name for name, member in members.items() if member.kind == "verifier"]
    if len(verifiers) > 1:
        raise ConfigError(
            f"committee.members has the verifiers {', '.join(verifiers)}, but at most one is allowed; remove the others"
        )
    for name in verifiers:
        if isinstance(description, ModelDescription) and description.modality != "text":
            modality = description.modality
            log.warning("the verifier %s is off, because it compares strings and the modality is %s", name, modality)
            continue
        # This imports torch, which rules do not need.
        from oven_learner.rewards.draft_verifier import DraftVerifier, load_sentence_encoder

        judges = [judge for judge, member in members.items() if member.kind == "llm"]
        weights.setdefault(name, verifier_weight(weights.get(member, 1.0) for member in (*rules, *judges)))
        rules[name] = DraftVerifier(load_sentence_encoder(members[name].model or None))
    return rules, weights


def load_rule(name: str, rule: str) -> RewardFunction:
    """Load a rule, given as an entry point of the group oven.rewards or as FILE:FUNCTION. Raises ConfigError or
    UnknownNameError if it cannot be loaded."""
    description = f"the rule of the committee member {name!r}"
    return plugins.load_function("rewards", "rule", rule, description=description, module=f"oven_rule_{name}")


def verifier_weight(others: Iterable[float]) -> float:
    """Return the verifier's weight, which is a tenth of the total, or 1 if the `others` have no weight."""
    from oven_learner.rewards.draft_verifier import DEFAULT_SHARE

    return DEFAULT_SHARE / (1 - DEFAULT_SHARE) * math.fsum(others) or 1.0
