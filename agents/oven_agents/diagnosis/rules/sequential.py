"""A sequential test of whether readings have risen above a limit, with a bound on false alarms over a whole run.

The test may be repeated after each reading. It is an e-detector (Shin, Ramdas & Rinaldo 2022, arXiv 2203.03532): the
average, over all starting points, of the likelihood ratio between a mean above the limit and the limit itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

ERROR_RATE: Final = 0.001
"""Probability that one test raises an alarm anywhere in a run whose mean stays within the limit, for normal noise."""
SHIFT: Final = 1.0
"""Shift in standard deviations for which the test is most sensitive."""
MAX_SURPRISE: Final = 3.0
"""Limit on the deviation of one reading, in standard deviations, so that no single outlier raises an alarm."""


def first_excess(values: Sequence[float], limit: float, deviation: float, error_rate: float = ERROR_RATE) -> int | None:
    """Return the index of the first reading at which it is certain that the mean has risen above `limit`, or None.

    `deviation` is the standard deviation of one reading, above 0. The bound on false alarms holds for heavy tails, too,
    because readings are clipped. It does not hold for an estimate that ignores the tails: for Student's t with three
    degrees of freedom and a deviation from the median absolute deviation, false alarms are ten times as frequent."""
    evidence = 0.0  # the sum of the likelihood ratios from all starting points until now
    for index, value in enumerate(values):
        surprise = min((value - limit) / deviation, MAX_SURPRISE)
        evidence = (evidence + 1 / len(values)) * math.exp(SHIFT * surprise - SHIFT**2 / 2)
        if evidence >= 1 / error_rate:
            return index
    return None
