"""A rule for training losses that step down whenever the data repeat."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import MIN_IMPROVED, Curve, held_out_curves, noise_of, objective_curve
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective
from oven_agents.stats.robust_statistics import MAD_FACTOR

EPOCH: Final = "epoch"
MIN_BORDERS: Final = 2
"""Minimum number of borders between passes over the data (epochs). A single step may have another cause."""
MIN_PASS: Final = 12
"""Minimum number of readings of a pass."""
WINDOW_SHARE: Final = 6
"""A level before or after a border comes from this part of the shortest pass."""
MIN_WINDOW: Final = 5
"""Minimum number of readings for such a level."""
MAX_WINDOW: Final = 50
"""Maximum number of readings for such a level."""
MIN_STEP: Final = 0.05
"""Minimum step at each border, as a share of the level before it."""
NOISES: Final = 4.0
"""Minimum step in standard deviations of the same difference within passes."""
MIN_SHOWN: Final = 0.005
"""Change of the loss within an epoch, as a share of it, below which it hardly changes."""


def steps_at_epochs(record: RunRecord) -> Evidence | None:
    """The training loss falls at the beginning of each new pass over the data, and hardly in between."""
    if objective(record.started).name == "reward" or EPOCH not in record.series:
        return None
    curve = objective_curve(record)
    borders = _borders(_passes(record, curve))
    if len(borders) < MIN_BORDERS:
        return None
    shortest = min(end - start for start, end in pairwise((0, *borders)))
    width = min(MAX_WINDOW, max(MIN_WINDOW, shortest // WINDOW_SHARE))
    borders = [border for border in borders if border + width < len(curve.values)]
    if shortest < MIN_PASS or len(borders) < MIN_BORDERS:
        return None
    falls = [_fall(curve.values, border, width, skipped=1) for border in borders]
    usual = _falls_within_passes(curve.values, borders, width)
    trend = max(0.0, median(usual))
    spread = max(
        MAD_FACTOR * median(abs(fall - median(usual)) for fall in usual),
        noise_of(curve.values) * math.sqrt(2 / width),
    )
    levels = [fmean(curve.values[border - width : border]) for border in borders]
    if any(
        fall - trend < max(NOISES * spread, MIN_STEP * abs(level)) for fall, level in zip(falls, levels, strict=True)
    ):
        return None
    first = curve.ticks[borders[0]]
    drop = median(fall / abs(level) for fall, level in zip(falls, levels, strict=True))
    epochs = f"epochs 2 {'and' if len(borders) == 2 else 'to'} {len(borders) + 1}"
    text = (
        f"the training loss drops {drop:.0%} each time an epoch starts ({epochs}), but "
        f"{_change_text(median(usual) / abs(levels[0]))} over the same number of steps within an epoch. That often "
        "means that the model remembers the examples"
    )
    weight, held_out, remedy = _held_out_verdict(record, first)
    return Evidence(
        "memorising", weight, first, text + held_out, remedy=remedy, level=levels[-1] - falls[-1], bound=levels[0],
    )  # fmt: skip


def _change_text(fall: float) -> str:
    """Return a fall within an epoch in words."""
    if abs(fall) < MIN_SHOWN:
        return "hardly changes"
    return f"only {fall:.1%}" if fall > 0 else f"rises {-fall:.1%}"


def _passes(record: RunRecord, curve: Curve) -> list[int]:
    """Return the pass of each reading, counted in any way that grows by 1 per pass. A fraction says how much of the
    pass is done, so 1.0 is the end of the first pass if there are fractions, and otherwise any part of the second."""
    points = record.finite(EPOCH)
    ticks, epochs = [tick for tick, _ in points], [epoch for _, epoch in points]
    count = math.floor if all(epoch.is_integer() for epoch in epochs) else math.ceil
    indices = [bisect_right(ticks, tick) - 1 for tick in curve.ticks]
    return [count(epochs[index]) if index >= 0 else 0 for index in indices]


def _borders(passes: Sequence[int]) -> list[int]:
    """Return the indices of the first readings of all passes but the first. The list is empty if a pass was repeated,
    as in a resumed run, or if readings are rarer than passes."""
    borders = [index for index, (before, after) in enumerate(pairwise(passes), 1) if after != before]
    return borders if all(passes[index] == passes[index - 1] + 1 for index in borders) else []


def _fall(values: Sequence[float], index: int, width: int, skipped: int = 0) -> float:
    """Return the fall of the level at an index. The `skipped` readings from it on may be means over both sides."""
    after = index + skipped
    return fmean(values[index - width : index]) - fmean(values[after : after + width])


def _falls_within_passes(values: Sequence[float], borders: Sequence[int], width: int) -> list[float]:
    """Return the falls at indices that are not near a border. There is at least one in each pass."""
    return [
        _fall(values, index, width)
        for start, end in pairwise((0, *borders, len(values)))
        for index in range(start + width, end - width + 1, max(1, width // 2))
    ]


def _held_out_verdict(record: RunRecord, first: int) -> tuple[float, str, str]:
    """Return the weight of the evidence, what the held-out metrics say about the repeated epochs, which begin at tick
    `first`, and what to do. One metric that improved is enough to justify these epochs."""
    flat = ""
    for curve in held_out_curves(record):
        before, after = curve.split(first - 1)
        if not before or not after:
            continue
        best_before, best_after = min(before), min(after)
        levels = f"The best {curve.name} was {curve.show(best_before)} in the first epoch"
        if best_before - best_after >= MIN_IMPROVED * abs(best_before):
            text = f". {levels}, and improved to {curve.show(best_after)} later"
            return 0.3, text, f"no action needed; stop when {curve.name} no longer improves"
        flat = flat or f". {levels} and {curve.show(best_after)} later"
    if flat:
        return 0.55, flat, "stop after the first epoch, or add training data"
    text = ". The log has no metric on held-out data that would show it"
    return 0.4, text, "measure the loss on held-out data in each epoch; if it does not improve, train for fewer epochs"
