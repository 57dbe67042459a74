"""Flags: what an agent proposed, said once however often it repeated it, and whether it looks like a false alarm.

A false alarm is judged by what its target metric did in the recording, in which nothing was changed: by the median of
the second half of the flag's horizon against that of the horizon before it (for a rollback: before the tick that it
would have gone back to). Where it is not lower by two standard errors in the better direction, the run kept its level
or continued improving by itself: a false alarm. Where it is, there was something to flag, which does not say that the
change would have helped. Nothing can be said where too little was measured on either side, where the recorded run was
changed or started again meanwhile, and of a flag that names nothing wrong, but something slow: what a change would have
gained is not in the recording.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from oven_agents.review.open_loop_replay import CastVote
from oven_agents.sdk.alternative_plans import SYMPTOM
from oven_core.mesh.measurements import median, sigma
from oven_core.protocol.actuator_names import ROLLBACK
from oven_core.protocol.messages import MetricSpec
from oven_core.protocol.rules import Rules

ERRORS: Final = 2.0
"""Standard errors by which a target has to be worse."""
MEDIAN: Final = 1.2533
"""Standard error of a median over that of a mean, under a normal law. Medians, because the ticks before a flag hold
what it was raised for."""
PATIENCE: Final = 5
"""Horizons for which a target that is measured rarely is looked back on, and waited for."""
SLOW: Final = frozenset({"gradients_aligned", "starved_level", "loss_plateau", "reward_plateau"})
"""Symptoms of a run with which nothing is wrong, but that could learn faster."""
Likely = Literal["false alarm", "harm", "unknown"]

JUDGED: Final = (
    "A flag looks like a false alarm where its target, with nothing changed, did not get worse: the median over the "
    "second half of its horizon against that of the horizon before it (of a rollback: before the tick to go back to), "
    "within two standard errors. Harm: it got worse by more; whether the change would have helped, no recording can "
    "say. Unknown: too few measurements, the run was changed or restarted meanwhile, or nothing was wrong, only slow."
)
"""The same for a report's reader."""


@dataclass
class Flag:
    """An agent's proposals, and the same ones repeated: `plans` holds those of each tick together."""

    agent: str
    plans: list[list[CastVote]]
    likely: Likely = "unknown"
    afterwards: str = ""
    """What the target did afterwards, in a sentence."""

    @property
    def first(self) -> CastVote:
        """The proposal that names its target: the first of the plan, all of which name the same."""
        return self.plans[0][0]

    @property
    def tick(self) -> int:
        return self.first.tick

    @property
    def step(self) -> int:
        return self.first.step

    @property
    def last(self) -> CastVote:
        return self.plans[-1][0]

    @property
    def confidence(self) -> float:
        return max(cast.vote.confidence for cast in self.plans[0])

    @property
    def adopted(self) -> bool:
        """Whether any of it would have been."""
        return any(cast.decision and cast.decision.verdict == "adopted" for plan in self.plans for cast in plan)

    @property
    def verdict(self) -> str:
        """Of its first proposals: adopted, advised, rejected; where several differ, all of them."""
        verdicts = dict.fromkeys(cast.decision.verdict if cast.decision else "not counted" for cast in self.plans[0])
        return " and ".join(verdicts)

    @property
    def symptoms(self) -> list[str]:
        entries = (entry for cast in self.plans[0] for entry in cast.vote.evidence)
        return list(dict.fromkeys(e.removeprefix(SYMPTOM) for e in entries if e.startswith(SYMPTOM)))

    @property
    def back(self) -> int | None:
        """The tick that it would have gone back to, if to one."""
        values = [cast.vote.value for cast in self.plans[0] if cast.vote.actuator == ROLLBACK]
        return int(values[0]) if values and isinstance(values[0], int | float) else None


def flags(votes: Iterable[CastVote], rules: Rules) -> list[Flag]:
    """In the order of their ticks. What an agent proposes again, the same actuators in the same directions, belongs to
    its last flag for as long as it could only repeat itself: a horizon, or the life of a decision."""
    open_: dict[tuple[str, frozenset[tuple[str, str]]], Flag] = {}
    flags_so_far: list[Flag] = []
    lapse = rules.apply_delay_ticks + rules.expire_ticks + rules.cooldown_ticks
    plans: dict[tuple[int, str], list[CastVote]] = {}
    for cast in votes:
        plans.setdefault((cast.tick, cast.agent), []).append(cast)
    for (tick, agent), plan in plans.items():
        key = agent, frozenset(cast.change for cast in plan)
        flag = open_.get(key)
        if flag is not None and tick - flag.last.tick <= max(lapse, flag.first.vote.horizon):
            flag.plans.append(plan)
            continue
        open_[key] = flag = Flag(agent, [plan])
        flags_so_far.append(flag)
    return flags_so_far


@dataclass
class Series:
    """One metric's measurements."""

    ticks: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, tick: int, value: float) -> None:
        self.ticks.append(tick)
        self.values.append(value)

    def until(self, tick: int) -> int:
        """How many were measured up to the tick."""
        return bisect_right(self.ticks, tick)


def judge(
    flag: Flag,
    metrics: Mapping[str, MetricSpec],
    measured: Mapping[str, Series],
    changes: Sequence[tuple[int, str]],
    least: int,
) -> None:
    """Fills in `likely` and `afterwards`. `least` measurements are needed on either side."""
    flag.likely, flag.afterwards = _judged(flag, metrics, measured, changes, least)


def _judged(
    flag: Flag,
    metrics: Mapping[str, MetricSpec],
    measured: Mapping[str, Series],
    changes: Sequence[tuple[int, str]],
    least: int,
) -> tuple[Likely, str]:
    vote, horizon = flag.first.vote, flag.first.vote.horizon
    if not vote.target or not horizon:
        return "unknown", "it names no target and horizon to hold it against"
    if set(flag.symptoms) & SLOW:
        return "unknown", "nothing was wrong, only slow; what the change would have gained is not in the recording"
    sign = _sign(metrics.get(vote.target), vote.target, vote.expected_change)
    series = measured.get(vote.target)
    if series is None or not sign:
        return "unknown", f"{vote.target} was not measured" if series is None else f"no side of {vote.target} is better"
    from_tick = flag.tick if flag.back is None else min(flag.back, flag.tick)
    end = series.until(from_tick)
    begin = min(bisect_left(series.ticks, series.ticks[end - 1] - horizon + 1), max(0, end - least)) if end else 0
    before = [value for value in series.values[begin:end] if math.isfinite(value)]
    if len(before) < least or series.ticks[begin] < from_tick - PATIENCE * horizon:
        return "unknown", f"{vote.target} was measured too rarely before it"
    start = series.until(flag.tick + horizon // 2)
    until = max(series.until(flag.tick + horizon), start + least)
    after = series.values[start:until]
    if len(after) < least or series.ticks[start + least - 1] > flag.tick + PATIENCE * horizon:
        return "unknown", f"{vote.target} was measured too rarely after it, or the run ended first"
    last = series.ticks[start + len(after) - 1]
    changed = next((what for tick, what in changes if series.ticks[begin] < tick <= last), "")
    if changed:
        return "unknown", f"{changed} before its horizon was over"
    spoiled = [value for value in after if not math.isfinite(value)]
    if spoiled:
        return "harm", f"{vote.target} was {spoiled[0]:g} within {horizon} ticks"
    was, now = median(before), median(after)
    noise = MEDIAN * sigma(before) * math.sqrt(1 / len(before) + 1 / len(after))
    comparison = f"{vote.target} {was:.4g} before, {now:.4g} after (± {noise:.2g})"
    gain = sign * (now - was)
    if gain < -ERRORS * noise:
        return "harm", f"{comparison}: it got worse"
    return (
        "false alarm",
        f"{comparison}: it {'improved' if gain > ERRORS * noise else 'kept its level'} with nothing changed",
    )


def _sign(spec: MetricSpec | None, name: str, expected: float) -> int:
    """1 where more is better; by what the run announces, else by what the proposal forecast; 0: no one says."""
    if spec is not None and spec.better != "neither":
        return 1 if spec.better == "up" else -1
    usual = {"reward": 1, "loss": -1}.get(name, 0)
    return usual or (1 if expected > 0 else -1 if expected < 0 else 0)
