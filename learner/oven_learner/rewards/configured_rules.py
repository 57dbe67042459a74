"""Rules in the settings (`kind: rule`), in addition to those of a script or recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oven_core import plugins
from oven_core.errors import ConfigError
from oven_learner.rewards.rule_members import RewardFunction
from oven_runs.settings.committee_settings import MemberSettings


def with_configured_rules(
    rules: Mapping[str, RewardFunction], members: Mapping[str, MemberSettings]
) -> dict[str, RewardFunction]:
    """Return `rules` plus the rules in `members`. Raises ConfigError for one that cannot be loaded or has a duplicate
    name."""
    combined = dict(rules)
    for name, member in members.items():
        if member.kind != "rule":
            continue
        if name in combined:
            raise ConfigError(f"the committee has two members named {name}; rename the one in committee.members")
        combined[name] = load_rule(name, member.rule)
    return combined


def load_rule(name: str, rule: str) -> RewardFunction:
    """Load an entry point of the group oven.rewards, or a function given as FILE:FUNCTION. Raises ConfigError or
    UnknownNameError."""
    called = f"the rule of the committee member {name!r}"
    return plugins.load_function("rewards", "rule", rule, called=called, module=f"oven_rule_{name}")


def exact(completions: list[Any], answer: list[str | None] | None = None, **_: Any) -> list[float | None]:
    """The entry point `exact`: 1 if the answer equals the data's column `answer`, ignoring outer white space, else 0.

    Abstains without a reference answer.
    """
    from oven_learner.completions.plain_text import as_text

    if answer is None:
        return [None] * len(completions)
    return [
        None if right is None else float(as_text(completion).strip() == str(right).strip())
        for completion, right in zip(completions, answer, strict=True)
    ]
