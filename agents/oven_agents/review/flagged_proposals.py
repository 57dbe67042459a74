"""Groups an agent's repeated proposals into flags, and judges whether each is a likely false alarm.

The recorded run did not make the change. So a flag is judged by the median of its target over the second half of its
horizon, compared with the horizon before it (for a rollback, before the tick to go back to). If the median is not worse
by two standard errors, the run did well without the change, and the flag is a false alarm. Otherwise something was
wrong, which does not mean that the change would have helped. `HOW_JUDGED` lists the cases that cannot be judged.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from oven_agents.review.open_loop_replay import CastVote
from oven_core.mesh.measurements import median, sigma
from oven_core.protocol.actuators import ROLLBACK
from oven_core.protocol.evidence import read_symptoms
from oven_core.protocol.messages import MetricSpec
from oven_core.protocol.rules import Rules

MIN_ERRORS: Final = 2.0
"""Number of standard errors by which a target must get worse to count as harm."""
MEDIAN_ERROR_RATIO: Final = 1.2533
"""Ratio between the standard errors of a median and of a mean. Medians are used because they ignore brief symptoms."""
SEARCHED_HORIZONS: Final = 5
"""Number of horizons before and after a flag that are searched for measurements of a rarely measured target."""
SLOW_SYMPTOMS: Final = frozenset({"gradients_aligned", "starved_level", "loss_plateau", "reward_plateau"})
"""Symptoms of a healthy run that could learn faster."""
FlagKind = Literal["false alarm", "harm", "unknown"]

HOW_JUDGED: Final = (
    "A flag looks like a false alarm if its target did not get worse although nothing was changed: the median over the "
    "second half of its horizon, compared with the horizon before it (for a rollback: before the tick to go back to), "
    "is within two standard errors. Harm: it got worse by more than that. A recording cannot show whether the change "
    "would have helped. Unknown: there were too few measurements, the run was changed or restarted in the meantime, or "
    "it was only slow."
)
"""Explanation of how flags are judged, for readers of a report."""


@dataclass
class Flag:
    """A proposal and its repetitions. Each plan in `plans` has the votes of one tick."""

    agent: str
    plans: list[list[CastVote]]
    likely_kind: FlagKind = "unknown"
    afterwards: str = ""
    """A sentence about the development of the target after the flag."""

    @property
    def first(self) -> CastVote:
        """The first vote of the first plan. All votes of a plan have the same target."""
        return self.plans[0][0]

    @property
    def tick(self) -> int:
        return self.first.tick

    @property
    def step(self) -> int:
        return self.first.step

    @property
    def last(self) -> CastVote:
        """The first vote of the last plan."""
        return self.plans[-1][0]

    @property
    def confidence(self) -> float:
        return max(cast.vote.confidence for cast in self.plans[0])

    @property
    def adopted(self) -> bool:
        """Whether any of the flag's votes would have been adopted."""
        return any(cast.decision and cast.decision.verdict == "adopted" for plan in self.plans for cast in plan)

    @property
    def verdict(self) -> str:
        """The verdicts on the first plan: adopted, advised or rejected."""
        verdicts = dict.fromkeys(cast.decision.verdict if cast.decision else "not counted" for cast in self.plans[0])
        return " and ".join(verdicts)

    @property
    def symptoms(self) -> list[str]:
        return list(read_symptoms(entry for cast in self.plans[0] for entry in cast.vote.evidence))

    @property
    def rollback_tick(self) -> int | None:
        """The tick to which the plan rolls back, or None without a rollback."""
        values = [cast.vote.value for cast in self.plans[0] if cast.vote.actuator == ROLLBACK]
        return int(values[0]) if values and isinstance(values[0], int | float) else None


def group_into_flags(votes: Iterable[CastVote], rules: Rules) -> list[Flag]:
    """Return the flags in tick order. A proposal repeats the last flag with the same agent, actuators and directions.
    It begins a new flag if the last repetition is more than a horizon and more than a decision's lifetime ago."""
    latest: dict[tuple[str, frozenset[tuple[str, str]]], Flag] = {}
    flags: list[Flag] = []
    lifetime = rules.apply_delay_ticks + rules.expire_ticks + rules.cooldown_ticks
    plans: dict[tuple[int, str], list[CastVote]] = {}
    for cast in votes:
        plans.setdefault((cast.tick, cast.agent), []).append(cast)
    for (tick, agent), plan in plans.items():
        key = agent, frozenset(cast.change for cast in plan)
        flag = latest.get(key)
        if flag is not None and tick - flag.last.tick <= max(lifetime, flag.first.vote.horizon):
            flag.plans.append(plan)
            continue
        latest[key] = flag = Flag(agent, [plan])
        flags.append(flag)
    return flags


@dataclass
class Series:
    """One metric's measurements."""

    ticks: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, tick: int, value: float) -> None:
        self.ticks.append(tick)
        self.values.append(value)

    def count_until(self, tick: int) -> int:
        """Return the number of measurements up to and including the tick."""
        return bisect_right(self.ticks, tick)

    def begin_index(self, end: int, horizon: int, min_samples: int) -> int:
        """Return where the last `horizon` ticks before position `end` begin, or earlier for at least `min_samples`."""
        if not end:
            return 0
        horizon_begin = bisect_left(self.ticks, self.ticks[end - 1] - horizon + 1)
        return min(horizon_begin, max(0, end - min_samples))


def judge(
    flag: Flag,
    metrics: Mapping[str, MetricSpec],
    series_by_metric: Mapping[str, Series],
    changes: Sequence[tuple[int, str]],
    min_samples: int,
) -> tuple[FlagKind, str]:
    """Return the likely kind of a flag, and a sentence about the development of its target afterwards."""
    vote = flag.first.vote
    if not vote.target or not vote.horizon:
        return "unknown", "it has no target and horizon, so it cannot be judged"
    if set(flag.symptoms) & SLOW_SYMPTOMS:
        return "unknown", "the run was only slow, and the recording does not show what the change would have gained"
    sign = _better_direction(metrics.get(vote.target), vote.target, vote.expected_change)
    series = series_by_metric.get(vote.target)
    if series is None:
        return "unknown", f"{vote.target} was not measured"
    if not sign:
        return "unknown", f"it is unknown whether a higher {vote.target} is better"
    return _compare(flag, series, sign, changes, min_samples)


def _compare(
    flag: Flag, series: Series, sign: int, changes: Sequence[tuple[int, str]], min_samples: int
) -> tuple[FlagKind, str]:
    """Compare a flag's target before and after the flag. `sign` is 1 if higher is better, otherwise −1."""
    target, horizon = flag.first.vote.target, flag.first.vote.horizon
    from_tick = flag.tick if flag.rollback_tick is None else min(flag.rollback_tick, flag.tick)
    before_end = series.count_until(from_tick)
    before_begin = series.begin_index(before_end, horizon, min_samples)
    before = [value for value in series.values[before_begin:before_end] if math.isfinite(value)]
    if len(before) < min_samples or series.ticks[before_begin] < from_tick - SEARCHED_HORIZONS * horizon:
        return "unknown", f"{target} was measured too rarely before it"
    after_begin = series.count_until(flag.tick + horizon // 2)
    after_end = max(series.count_until(flag.tick + horizon), after_begin + min_samples)
    after = series.values[after_begin:after_end]
    last_needed_index = after_begin + min_samples - 1
    if len(after) < min_samples or series.ticks[last_needed_index] > flag.tick + SEARCHED_HORIZONS * horizon:
        return "unknown", f"{target} was measured too rarely after it, or the run ended first"
    first_tick, last_tick = series.ticks[before_begin], series.ticks[after_begin + len(after) - 1]
    run_change = next((description for tick, description in changes if first_tick < tick <= last_tick), "")
    if run_change:
        return "unknown", f"{run_change} before its horizon ended"
    invalid = [value for value in after if not math.isfinite(value)]
    if invalid:
        return "harm", f"{target} was {invalid[0]:g} within {horizon} ticks"
    old, new = median(before), median(after)
    noise = MEDIAN_ERROR_RATIO * sigma(before) * math.sqrt(1 / len(before) + 1 / len(after))
    comparison = f"{target} {old:.4g} before, {new:.4g} after (± {noise:.2g})"
    gain = sign * (new - old)
    if gain < -MIN_ERRORS * noise:
        return "harm", f"{comparison}: it got worse"
    course = "improved" if gain > MIN_ERRORS * noise else "stayed the same"
    return "false alarm", f"{comparison}: it {course} without the change"


def _better_direction(spec: MetricSpec | None, name: str, expected: float) -> int:
    """Return 1 if higher is better, −1 if lower is better (announced, usual or forecast), or 0 if unknown."""
    if spec is not None and spec.better != "neither":
        return 1 if spec.better == "up" else -1
    if name in ("reward", "loss"):
        return 1 if name == "reward" else -1
    if expected > 0:
        return 1
    return -1 if expected < 0 else 0
