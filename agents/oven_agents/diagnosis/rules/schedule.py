"""Rules for the learning rate, the clipping of gradients, and what the run measures at all."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective
from oven_agents.stats.robust_statistics import quantile
from oven_core.mesh.actuator_values import number

LEARNING_RATE, GRAD_NORM, CLIP = "learning_rate", "grad_norm", "grad.clip"
MIN_READINGS: Final = 20
"""Minimum number of readings for a verdict on a schedule."""
MAX_ENDED_SHARE: Final = 0.2
"""Share of the run for which a finished schedule is normal. A cosine is below ENDED_RATE for its last 6 %."""
ENDED_RATE: Final = 0.01
"""Share of its usual value below which a rate no longer changes the model."""
USUAL_QUANTILE: Final = 0.75
"""Quantile of the rates that is usual. A few first rates may be far higher, if the warm-up goes down."""
CLIPPED_SHARE: Final = 0.95
"""Share of steps with a clipped gradient from which the clip sets the length of every step."""
CLIPPED_TOLERANCE: Final = 1e-3
"""Maximum distance of a clipped norm from the clip, as a share of it. PyTorch divides by the norm plus 1e-6."""
LOG_BEFORE_CLIPPING: Final = (
    "no action needed if the run learns well; otherwise log the norm before clipping, and raise the clip to its median"
)
SEVERAL_RUNS: Final = (
    "the file probably has several runs: split it where the steps start again, and review each part, because the "
    "checks treat all of it as one run"
)
MAX_ROWS: Final = 4
"""Maximum number of restarts that are listed."""
RESTART_NOTE: Final = 0.3
"""Weight of the evidence that a log has several parts, which may be intended."""


def ended_early(record: RunRecord) -> Evidence | None:
    """The rate is almost 0 for a large part of the run's end, so these steps change nothing."""
    points = record.finite(LEARNING_RATE)
    if len(points) < MIN_READINGS:
        return None
    peak = quantile([rate for _, rate in points], USUAL_QUANTILE)
    if peak <= 0:
        return None
    last_trained = max(index for index, (_, rate) in enumerate(points) if rate > ENDED_RATE * peak)
    idle = len(points) - 1 - last_trained
    if idle <= MAX_ENDED_SHARE * len(points):
        return None
    share = idle / len(points)
    text = f"the learning rate is below {ENDED_RATE:.0%} of its usual value in the last {share:.0%} of the run"
    return Evidence(
        "schedule_ended", 0.6, points[last_trained + 1][0], text, metric=LEARNING_RATE,
        level=points[-1][1], bound=ENDED_RATE * peak,
    )  # fmt: skip


def zero_rate(record: RunRecord) -> Evidence | None:
    """The rate is 0 in all readings."""
    points = record.finite(LEARNING_RATE)
    if len(points) < MIN_READINGS or any(rate != 0 for _, rate in points):
        return None
    text = f"the learning rate is 0 in all {len(points)} readings"
    return Evidence("zero_rate", 0.9, points[0][0], text, metric=LEARNING_RATE, level=0.0, bound=0.0)


def always_clipped(record: RunRecord) -> Evidence | None:
    """The gradient is clipped in nearly every step, so its norm no longer matters."""
    clip = number(record.first_values.get(CLIP))
    points = record.finite(GRAD_NORM, end=record.first_change(CLIP))
    if len(points) < MIN_READINGS:
        return None
    if not clip:
        return _clipped_norms(points)
    clipped = sum(norm > clip for _, norm in points) / len(points)
    if clipped < CLIPPED_SHARE:
        return None
    usual = median(norm for _, norm in points)
    text = f"the gradient's norm is above the clip of {clip:g} in {clipped:.0%} of the steps, usually {usual:.3g}"
    return Evidence("always_clipped", 0.3, points[0][0], text, metric=GRAD_NORM)


def _clipped_norms(points: Sequence[tuple[int, float]]) -> Evidence | None:
    """Return evidence if the log has the norms after clipping, so that nearly all equal the highest one."""
    norms = [norm for _, norm in points]
    clip = max(norms)
    clipped = sum(norm >= (1 - CLIPPED_TOLERANCE) * clip for norm in norms) / len(norms)
    if clip <= 0 or clipped < CLIPPED_SHARE:
        return None
    text = (
        f"the logged gradient norm is {clip:.3g} in {clipped:.0%} of the steps and never higher, so the gradient was "
        "probably clipped in these steps, and its norm measured afterwards"
    )
    return Evidence("always_clipped", 0.3, points[0][0], text, metric=GRAD_NORM, remedy=LOG_BEFORE_CLIPPING)


def never_evaluated(record: RunRecord) -> Evidence | None:
    """No held-out metric was ever measured, so overfitting would not be seen."""
    if any(spec.held_out for spec in record.started.metrics) or len(record.ticks) < MIN_READINGS:
        return None
    remedy = ""
    if objective(record.started).name == "reward":
        remedy = "measure the reward in evaluation episodes or on held-out prompts, about 20 times per run"
    return Evidence(
        "never_evaluated",
        0.2,
        record.ticks[0],
        "overfitting would not show, because nothing is measured on held-out data",
        remedy=remedy,
    )


def several_parts(record: RunRecord) -> Evidence | None:
    """The steps go back: the run was resumed, or the file has more than one run."""
    backs = [index for index in range(1, len(record.steps)) if record.steps[index] < record.steps[index - 1]]
    if record.start_count < 2 or not backs:
        return None  # a run of this project may continue where it stopped
    back = backs[0]
    starts = [index for index in backs if record.steps[index] <= record.steps[0]]
    drops = [
        f"from {record.steps[index - 1]:,} back to {record.steps[index]:,} at row {record.ticks[index]:,}"
        f"{' (starts again)' if index in starts else ' (resumed)' if starts else ''}"
        for index in backs[:MAX_ROWS]
    ]
    times = f" {len(backs)} times:" if len(backs) > 1 else ""
    text = f"the step drops{times} {', '.join(drops)}{', …' if len(backs) > MAX_ROWS else ''}"
    remedy = ""
    if starts:
        remedy = SEVERAL_RUNS if len(starts) == len(backs) else f"{SEVERAL_RUNS}; where it was resumed, do nothing"
    return Evidence("steps_out_of_order", RESTART_NOTE, record.ticks[back], text, remedy=remedy)
