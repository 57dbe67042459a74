"""A rule for training on preferences (DPO and its relatives) that makes the preferred answers less likely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final, NamedTuple

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import has_progressed
from oven_agents.diagnosis.run_record import RunRecord

PAIRS: Final = (("rewards/chosen", "rewards/rejected"), ("logps/chosen", "logps/rejected"))
"""Metrics of chosen and rejected answers. Implicit rewards come first: they compare each answer with the reference
model, so they vary less than log-probabilities, which depend on the length of the answers."""
MIN_READINGS: Final = 12
"""Minimum number of readings, a third of which gives a level."""
ERRORS: Final = 4.0
"""Minimum fall of a level in standard errors."""
MOSTLY: Final = 0.5
"""Minimum fall of the chosen answers as a share of that of the rejected ones, from which the training mostly lowers
both."""

IF_ANSWERS_SUFFER: Final = (
    "no action needed if the model's own answers stay good; otherwise halve the learning rate, or double beta"
)


class _Fall(NamedTuple):
    """The levels of a metric in the first and the last third of a run."""

    first: float
    last: float
    is_sure: bool

    @property
    def size(self) -> float:
        return self.first - self.last


def chosen_falls(record: RunRecord) -> Evidence | None:
    """The chosen answers become less likely together with the rejected ones."""
    for chosen, rejected in PAIRS:
        points, rejected_values = record.finite(chosen), record.values(rejected)
        readings = min(len(points), len(rejected_values))
        if readings < MIN_READINGS or not has_progressed(record, readings):
            continue
        fall, rejected_fall = _fall([value for _, value in points]), _fall(rejected_values)
        if not fall.is_sure or not rejected_fall.is_sure:
            return None
        text = (
            f"mean {chosen} fell from {fall.first:.3g} in the first third to {fall.last:.3g} in the last, and "
            f"{rejected} from {rejected_fall.first:.3g} to {rejected_fall.last:.3g}, so the preferred answers become "
            "less likely, too"
        )
        falls_mostly = fall.size >= MOSTLY * rejected_fall.size
        weight, remedy = (0.5, "") if falls_mostly else (0.4, IF_ANSWERS_SUFFER)
        return Evidence(
            "chosen_less_likely", weight, points[0][0], text, metric=chosen, remedy=remedy, level=fall.last,
            bound=fall.first,
        )  # fmt: skip
    return None


def _fall(values: Sequence[float]) -> _Fall:
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    error = math.hypot(stdev(first), stdev(last)) / math.sqrt(third)
    return _Fall(fmean(first), fmean(last), fmean(first) - fmean(last) > ERRORS * error)
