"""Load the rules that are named in the settings (`kind: rule`)."""

from __future__ import annotations

from typing import Any

from oven_core import plugins
from oven_learner.completions.plain_text import as_text
from oven_learner.rewards.scores import RewardFunction


def load_rule(name: str, rule: str) -> RewardFunction:
    """Load an entry point of the group oven.rewards, or a function given as FILE:FUNCTION. Raises ConfigError or
    UnknownNameError."""
    called = f"the rule of the committee member {name!r}"
    return plugins.load_function("rewards", "rule", rule, called=called, module=f"oven_rule_{name}")


def exact(completions: list[Any], answer: list[str | None] | None = None, **_: Any) -> list[float | None]:
    """The entry point `exact`: 1 if the answer equals the data's column `answer`, ignoring outer white space, else 0.

    Abstains without a reference answer.
    """
    pairs = zip(completions, answer or [None] * len(completions), strict=True)
    return [None if right is None else float(as_text(text).strip() == str(right).strip()) for text, right in pairs]
