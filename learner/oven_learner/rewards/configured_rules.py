"""Rules that the settings name (`kind: rule`), beside those of a script or recipe."""

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
    """`rules` and those of `members` that are rules. Raises ConfigError for one that cannot be loaded, or that has the
    name of another."""
    found = dict(rules)
    for name, member in members.items():
        if member.kind != "rule":
            continue
        if name in found:
            raise ConfigError(f"the committee has two members named {name}; rename the one in committee.members")
        found[name] = load_rule(name, member.rule)
    return found


def load_rule(name: str, rule: str) -> RewardFunction:
    """An entry point of the group oven.rewards, or the function of FILE:FUNCTION, whose file is imported. Raises
    ConfigError or UnknownNameError."""
    called = f"the rule of the committee member {name!r}"
    return plugins.load_function("rewards", "rule", rule, called=called, module=f"oven_rule_{name}")


def exact(completions: list[Any], answer: list[str | None] | None = None, **_: Any) -> list[float | None]:
    """The entry point `exact`: 1 for the text of the data's column `answer`, without white space around it, else 0. It
    abstains where there is no answer to compare with."""
    from oven_learner.completions.plain_text import as_text

    if answer is None:
        return [None] * len(completions)
    return [
        None if right is None else float(as_text(given).strip() == str(right).strip())
        for given, right in zip(completions, answer, strict=True)
    ]
