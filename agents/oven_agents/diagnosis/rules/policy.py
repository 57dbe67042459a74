"""Rules for policies that are trained on rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median, stdev
from typing import Final, NamedTuple

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.kinds import lower_rate_from
from oven_agents.diagnosis.rules.curve import MIN_READINGS, Curve, has_progressed, objective_curve
from oven_agents.diagnosis.rules.stability import find_rise, last_good_tick
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective
from oven_agents.stats.symptoms import COMPLETION_LENGTH

CLIPPED: Final = ("completions/clipped_ratio", "response_length/clip_ratio", "truncated_ratio")
"""Names of the share of truncated completions in TRL, verl, and others."""
MIN_CLIPPED: Final = 0.5
"""Median share of truncated completions above which most answers are lost."""
CERTAIN_CLIPPED: Final = 0.75
"""The same, above which hardly any answer is complete."""
MIN_CONSTANT_SHARE: Final = 0.5
"""Minimum share of the last readings of a quality that are exactly the same."""
MIN_QUALITY_LOST: Final = 0.1
"""Minimum loss of a quality before it became constant, as a share of its best reading."""
MIN_REWARD_LOST: Final = 0.5
"""Minimum share of the gain in reward that a collapsed run has lost at its end."""
EARLIER_FALLS: Final = 1.5
"""Minimum fall of a collapsed reward as a multiple of earlier falls from which it came back."""
EQUAL_GROUPS: Final = "frac_reward_zero_std"
MAX_EQUAL_GROUPS: Final = 0.8
"""Share of groups without a difference in reward above which hardly any prompt teaches anything."""
EMPTY_TOKENS: Final = 2.0
"""Mean length up to which completions are empty. Some trainers count the token that ends a completion."""
MIN_SHRINKAGE: Final = 5.0
"""Minimum ratio of the lengths at the start and at the end. Tasks whose answers are single tokens are always short."""
MIN_LENGTHS: Final = 24
"""Minimum number of lengths that show steady growth."""
LENGTH_PARTS: Final = 4
"""Number of parts of the run. Completions must be longer in each than in the one before."""
MIN_LENGTHENING: Final = 2.0
"""Minimum ratio of the lengths in the last part and in the first."""
REWARD_ERRORS: Final = 3.0
"""Minimum rise of the reward in standard errors for which changed lengths may be the reason."""

EMPTY_WEIGHTS: Final = {True: 0.4, None: 0.6, False: 0.85}
"""Weight of empty completions, by whether the reward rose."""
EMPTY_REWARDED: Final = (
    "read some completions; if they are empty, the reward favours empty answers: give them the lowest reward"
)
IF_BETTER: Final = (
    "no action needed if the long answers are better; read some, and penalise the length if they are padding"
)


class _RewardGain(NamedTuple):
    """Whether the reward rose by more than noise; None if that is unknown."""

    rises: bool | None
    text: str


def truncated(record: RunRecord) -> Evidence | None:
    """Most completions reach the limit on tokens."""
    name = next((name for name in CLIPPED if name in record.series), CLIPPED[0])
    points = record.finite(name)
    if len(points) < MIN_READINGS:
        return None
    level = median(value for _, value in points[len(points) // 2 :])
    if level < MIN_CLIPPED:
        return None
    onset = next(tick for tick, value in points if value >= MIN_CLIPPED)
    text = (
        f"{level:.0%} of the completions (median in the second half of the run) are cut off at the token limit, so "
        f"they are incomplete ({name})"
    )
    return Evidence(
        "truncated", 0.9 if level >= CERTAIN_CLIPPED else 0.7, onset, text, metric=name, level=level, bound=MIN_CLIPPED
    )


def changed_lengths(record: RunRecord) -> Evidence | None:
    """Completions become empty, or longer and longer, and the reward does not rise with that."""
    points = record.finite(COMPLETION_LENGTH)
    lengths = [value for _, value in points]
    if len(lengths) < MIN_LENGTHS or not has_progressed(record, len(lengths)):
        return None
    parts = [median(part) for part in _parts(lengths)]
    gain = _reward_gain(record)
    first, last = f"{parts[0]:.3g} tokens in the first quarter", f"{parts[-1]:.3g} in the last, and {gain.text}"
    if parts[-1] <= EMPTY_TOKENS and parts[0] >= MIN_SHRINKAGE * parts[-1]:
        onset = next(tick for tick, value in points if value <= EMPTY_TOKENS)
        text = f"the mean length of completions fell from {first} of the run to {last}"
        return Evidence(
            "empty_completions", EMPTY_WEIGHTS[gain.rises], onset, text, metric=COMPLETION_LENGTH,
            remedy=EMPTY_REWARDED if gain.rises else "", level=parts[-1], bound=EMPTY_TOKENS,
        )  # fmt: skip
    is_steady = all(after > before for before, after in pairwise(parts))
    if not is_steady or parts[-1] < MIN_LENGTHENING * parts[0]:
        return None
    is_harmful = gain.rises is False
    text = f"the mean length of completions grew from quarter to quarter of the run, from {first} to {last}"
    return Evidence(
        "length_drift", 0.55 if is_harmful else 0.2, points[0][0], text, metric=COMPLETION_LENGTH,
        remedy="" if is_harmful else IF_BETTER, level=parts[-1], bound=parts[0],
    )  # fmt: skip


def _parts(values: Sequence[float]) -> list[Sequence[float]]:
    borders = [index * len(values) // LENGTH_PARTS for index in range(LENGTH_PARTS + 1)]
    return [values[start:end] for start, end in pairwise(borders)]


def _reward_gain(record: RunRecord) -> _RewardGain:
    """Compare the reward in the last quarter of the run with that in the first."""
    rewards = record.values("reward")
    if len(rewards) < MIN_LENGTHS:
        return _RewardGain(None, "the log has too few rewards to compare")
    first, *_, last = _parts(rewards)
    error = math.hypot(stdev(first) / math.sqrt(len(first)), stdev(last) / math.sqrt(len(last)))
    rises = fmean(last) - fmean(first) > REWARD_ERRORS * error
    return _RewardGain(rises, "the reward rose" if rises else "the reward did not rise")


def constant_answers(record: RunRecord) -> Evidence | None:
    """A quality fell and is exactly constant since: the policy gives the same answer to every prompt."""
    if objective(record.started).name != "reward":
        return None
    for spec in record.started.metrics:
        if spec.better != "up" or spec.name == "reward":
            continue
        points = record.finite(spec.name)
        values = [value for _, value in points]
        constant = next((n for n, value in enumerate(reversed(values)) if value != values[-1]), len(values))
        if len(values) < MIN_READINGS or not MIN_CONSTANT_SHARE * len(values) <= constant < len(values):
            continue
        best = max(values)
        if best - values[-1] < MIN_QUALITY_LOST * abs(best) or values.index(best) > len(values) // 2:
            continue
        middle = (best + values[-1]) / 2
        best_index = values.index(best)
        fallen = next(index for index in range(best_index, len(values)) if values[index] < middle)
        ticks = [tick for tick, _ in points]
        steps = [f"{record.step_at(tick):,}" for tick in (ticks[best_index], ticks[fallen], ticks[-constant])]
        middle_text = f" to {values[fallen]:.3g} (step {steps[1]})" if fallen < len(values) - constant else ""
        text = (
            f"{spec.name} fell from {best:.3g} (step {steps[0]}){middle_text}, and has been exactly {values[-1]:.3g} "
            f"since step {steps[2]}, as if the policy always gave the same answer"
        )
        remedy, cost = lower_rate_from(record.steps, record.step_at(ticks[fallen - 1]))
        return Evidence(
            "reward_collapse",
            0.85,
            ticks[fallen],
            text,
            metric=spec.name,
            remedy=remedy,
            cost=cost,
            level=values[-1],
            bound=best,
        )
    return None


def reward_collapse(record: RunRecord) -> Evidence | None:
    """The reward lost most of what it had gained, and stayed there until the end."""
    if objective(record.started).name != "reward":
        return None
    curve = objective_curve(record)
    if len(curve.values) < 2 * MIN_READINGS:
        return None
    rise = find_rise(curve, MIN_REWARD_LOST)
    if rise is None:
        return None
    onset, best, last = rise
    if last - best < EARLIER_FALLS * _largest_fall_before(curve, best):
        return None  # rewards drift, and this one has come back from such a fall before
    fall_step = record.step_at(curve.block_ticks[onset])
    text = (
        f"the reward fell from {curve.show(best)} before step {fall_step:,} to {curve.show(last)} at the end, without "
        "coming back in between"
    )
    remedy, cost = lower_rate_from(record.steps, record.step_at(last_good_tick(curve, onset)))
    return Evidence(
        "reward_collapse", 0.6, curve.block_ticks[onset], text, remedy=remedy, cost=cost, level=-last, bound=-best
    )


def _largest_fall_before(curve: Curve, best: float) -> float:
    """Return the largest fall of the reward before its best level."""
    before = curve.levels[: curve.levels.index(best)]
    highest = accumulate(before, min)  # rewards are negated
    return max((level - high for level, high in zip(before, highest, strict=True)), default=0.0)


def equal_groups(record: RunRecord) -> Evidence | None:
    """In most groups, all completions of a prompt get the same reward, so they teach nothing."""
    points = record.finite(EQUAL_GROUPS)
    if len(points) < MIN_READINGS:
        return None
    level = median(value for _, value in points[len(points) // 2 :])
    if level < MAX_EQUAL_GROUPS:
        return None
    onset = next(tick for tick, value in points if value >= MAX_EQUAL_GROUPS)
    text = f"in {level:.0%} of the groups all completions get the same reward"
    return Evidence("zero_advantage_groups", 0.45, onset, text, metric=EQUAL_GROUPS)
