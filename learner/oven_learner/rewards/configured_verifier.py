"""The verifier as a member that the settings name (`kind: verifier`), beside a script's own rules and the judges."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping

from oven_core.errors import ConfigError
from oven_learner.rewards.model_description import ModelDescription
from oven_learner.rewards.rule_members import RewardFunction
from oven_runs.settings.committee_settings import MemberSettings

log = logging.getLogger("oven.learner")

TEXT = "text"


def with_verifier(
    rules: Mapping[str, RewardFunction],
    weights: Mapping[str, float] | None,
    members: Mapping[str, MemberSettings],
    description: ModelDescription | str,
) -> tuple[dict[str, RewardFunction], dict[str, float]]:
    """`rules` and `weights` with the verifier, where `members` have one. Its weight is a tenth of the whole unless
    `weights` names it. It compares texts, and is off where the description says that answers are something else.

    Raises ConfigError where there are two, one has the name of a rule, or its sentence model cannot be loaded.
    """
    rules, weights = dict(rules), dict(weights or {})
    found = [name for name, member in members.items() if member.kind == "verifier"]
    if not found:
        return rules, weights
    if len(found) > 1:
        raise ConfigError(
            f"committee.members has the verifiers {', '.join(found)}: one is all there is; leave out the others"
        )
    [name] = found
    if name in rules:
        raise ConfigError(f"the committee has a rule and a verifier named {name!r}; rename one of them")
    if isinstance(description, ModelDescription) and description.modality != TEXT:
        log.warning("the verifier %s is off: it compares texts, and answers here are %s", name, description.modality)
        return rules, weights
    from oven_learner.rewards.draft_verifier import DraftVerifier, sentence_encoder  # torch, which rules need not have

    judges = [other for other, member in members.items() if member.kind != "verifier" and other not in rules]
    weights.setdefault(name, verifier_weight(weights.get(other, 1.0) for other in (*rules, *judges)))
    rules[name] = DraftVerifier(sentence_encoder(members[name].model or None))
    return rules, weights


def verifier_weight(others: Iterable[float]) -> float:
    """What makes it a tenth of the whole beside members of these weights."""
    from oven_learner.rewards.draft_verifier import WEIGHT

    return WEIGHT / (1 - WEIGHT) * math.fsum(others) or 1.0
