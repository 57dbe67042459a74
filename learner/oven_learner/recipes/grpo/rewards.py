"""The reward: 1 for exactly the right answer, else 0."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

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
