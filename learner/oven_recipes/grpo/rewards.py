"""The committee's rules: the answer is exactly right; it looks like an answer; it has the right length.

Only the first has weight. The others are measured, so that a policy that answers in the right form and wrongly is told
from one that has forgotten the form.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from oven_learner.rewards.rule_members import RewardFunction

LogMetric = Callable[[str, float], None]


def exact_match(
    completions: list[str], answer: list[str], level: list[str], log_metric: LogMetric | None = None, **_: Any
) -> list[float | None]:
    """One reward a completion, in the order of the batch; the signature is TRL's.

    The mean of each level is logged as `reward/<level>`. A level that the batch doesn't hold logs nothing: 0 would
    read as a failure.
    """
    rewards = [float(given == right) for given, right in zip(completions, answer, strict=True)]
    if log_metric is not None:
        by_level: defaultdict[str, list[float]] = defaultdict(list)
        for name, reward in zip(level, rewards, strict=True):
            by_level[name].append(reward)
        for name, values in by_level.items():
            log_metric(f"reward/{name}", sum(values) / len(values))
    return [*rewards]  # a fresh list: TRL's type allows None, for a reward that doesn't apply


def looks_right(completions: list[str], **_: Any) -> list[float | None]:
    """1 for digits and nothing else, else 0."""
    return [float(given.isascii() and given.isdigit()) for given in completions]


def right_length(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """1 for as many characters as the right answer has, falling to 0 at none or twice as many."""
    return [
        max(0.0, 1 - abs(len(given) - len(right)) / len(right))
        for given, right in zip(completions, answer, strict=True)
    ]


RULES: dict[str, RewardFunction] = {"exact": exact_match, "format": looks_right, "length": right_length}
WEIGHTS = {"format": 0.0, "length": 0.0}
"""The others, remote members too, have 1 each."""
