"""The verifier as a member in the settings (`kind: verifier`)."""

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
    """Return `rules` and `weights` plus the verifier, if `members` has one.

    Its weight is a tenth of the whole unless `weights` names it. It compares texts, and is off if the description names
    another modality. Raises ConfigError for two verifiers, a duplicate name, or a sentence model that cannot be loaded.
    """
    rules, weights = dict(rules), dict(weights or {})
    verifiers = [name for name, member in members.items() if member.kind == "verifier"]
    if not verifiers:
        return rules, weights
    if len(verifiers) > 1:
        raise ConfigError(
            f"committee.members has the verifiers {', '.join(verifiers)}: expected at most one; remove the others"
        )
    [name] = verifiers
    if name in rules:
        raise ConfigError(f"the committee has a rule and a verifier named {name!r}; rename one of them")
    if isinstance(description, ModelDescription) and description.modality != TEXT:
        log.warning("the verifier %s is off: it compares texts, and the modality is %s", name, description.modality)
        return rules, weights
    # Imports torch, which rules do not need.
    from oven_learner.rewards.draft_verifier import DraftVerifier, sentence_encoder

    judges = [judge for judge, member in members.items() if member.kind != "verifier" and judge not in rules]
    weights.setdefault(name, verifier_weight(weights.get(member, 1.0) for member in (*rules, *judges)))
    rules[name] = DraftVerifier(sentence_encoder(members[name].model or None))
    return rules, weights


def verifier_weight(others: Iterable[float]) -> float:
    """Return the weight that is a tenth of the whole next to members with these weights."""
    from oven_learner.rewards.draft_verifier import WEIGHT

    return WEIGHT / (1 - WEIGHT) * math.fsum(others) or 1.0
