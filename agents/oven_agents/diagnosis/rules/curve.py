"""One metric of a run as a curve: its readings, condensed into blocks so that noise averages out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Final

from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective
from oven_agents.stats.robust_statistics import bending_noise
from oven_core.protocol.messages import MetricSpec

MIN_READINGS: Final = 8
"""Minimum number of readings for a verdict on a whole run, for most rules."""
MAX_BLOCKS: Final = 100
"""Maximum number of blocks of a curve. Each is the median of consecutive readings, so a single spike disappears."""
LEVEL_SHARE: Final = 0.1
"""Share of a curve's blocks that gives a level."""
MIN_WIDTH: Final = 3
"""Minimum number of blocks that give a level, so that a single outlier is not a level. Short curves have fewer."""
MAX_WIDTH_SHARE: Final = 0.25
"""Maximum share of a short curve's blocks that gives a level."""
MIN_NOISE_SHARE: Final = 1e-3
"""Minimum noise of a block, as a share of its level. A curve that hardly varies would have no noise."""
MIN_PROGRESS: Final = 0.25
"""Share of the planned steps from which a run is judged as a whole. Before, the rate may still warm up, and memory may
still be allocated."""
MIN_IMPROVED: Final = 0.02
"""Minimum gain of a held-out metric, as a share of its value, that speaks against a fault of another one."""
PARTIAL: Final = ("loss", "precision", "recall")
"""Parts of the names of metrics by which no one chooses a checkpoint alone."""
ENOUGH_READINGS: Final = 400
"""Number of readings that are enough regardless of the plan."""


@dataclass(frozen=True)
class Curve:
    """The finite readings of a metric, oldest first, as a cost: a metric of which more is better is negated."""

    name: str
    ticks: Sequence[int]
    values: Sequence[float]
    sign: float
    """-1 if the metric was negated, otherwise 1."""

    @cached_property
    def blocks(self) -> Sequence[float]:
        """The medians of at most MAX_BLOCKS blocks of consecutive readings."""
        return [median(self.values[start:end]) for start, end in self._block_ends()]

    @cached_property
    def block_ticks(self) -> Sequence[int]:
        """The first tick of each block."""
        return [self.ticks[start] for start, _ in self._block_ends()]

    def _block_ends(self) -> Iterator[tuple[int, int]]:
        count = min(len(self.values), MAX_BLOCKS)
        borders = [index * len(self.values) // count for index in range(count + 1)] if count else []
        return pairwise(borders)

    @property
    def width(self) -> int:
        """Number of blocks that give a level."""
        count = len(self.blocks)
        return max(1, min(MIN_WIDTH, int(MAX_WIDTH_SHARE * count)), round(LEVEL_SHARE * count))

    @cached_property
    def levels(self) -> Sequence[float]:
        """The medians of `width` consecutive blocks."""
        return [median(self.blocks[end - self.width : end]) for end in range(self.width, len(self.blocks) + 1)]

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a block around a slow trend, above 0."""
        return noise_of(self.blocks)

    @cached_property
    def reading_noise(self) -> float:
        """Standard deviation of a reading around a slow trend, above 0."""
        return noise_of(self.values)

    @property
    def last(self) -> float:
        return self.levels[-1]

    @cached_property
    def best_index(self) -> int:
        """Index of the first best reading."""
        return min(range(len(self.values)), key=self.values.__getitem__)

    @property
    def best_tick(self) -> int:
        return self.ticks[self.best_index]

    def split(self, tick: int) -> tuple[Sequence[float], Sequence[float]]:
        """Return the readings until the tick, inclusive, and those after it."""
        end = bisect_right(self.ticks, tick)
        return self.values[:end], self.values[end:]

    def show(self, level: float) -> str:
        """Return a level in the metric's own direction, for a message."""
        return f"{self.sign * level:.4g}"


def has_progressed(record: RunRecord, readings: int) -> bool:
    """Return whether enough of a run is there to judge it as a whole. A finished log of another program always is."""
    planned = record.started.horizon.max_steps
    is_late = planned is not None and max(record.steps) >= MIN_PROGRESS * planned
    return is_late or readings >= ENOUGH_READINGS


def noise_of(values: Sequence[float]) -> float:
    """Return the standard deviation of one value around a slow trend, above 0. Needs at least one value."""
    return max(bending_noise(values), MIN_NOISE_SHARE * median(map(abs, values)), 1e-12)


def read_curve(record: RunRecord, spec: MetricSpec) -> Curve:
    """Return the curve of a metric. That of a training metric starts at the last change of a knob that moves it."""
    sign = -1.0 if spec.better == "up" else 1.0
    points = record.finite(spec.name, first=0 if spec.held_out else _last_move(record))
    return Curve(spec.name, [tick for tick, _ in points], [sign * value for _, value in points], sign)


def _last_move(record: RunRecord) -> int:
    """Return the tick of the last change of a knob that moves training metrics by itself, such as the mixture."""
    movers = {spec.name for spec in record.started.actuators if spec.moves_own_metric}
    return max((tick for tick, actuator in record.changes if actuator in movers), default=0)


def objective_curve(record: RunRecord) -> Curve:
    """Return the curve of the reward, or else of the loss. It is empty if the run has neither."""
    return read_curve(record, objective(record.started))


def most_improved(record: RunRecord, tick: int, excluded: Sequence[str] = ()) -> Curve | None:
    """Return the held-out metric that improved most from the tick to the end, if one did by MIN_IMPROVED. Metrics with
    one of the `excluded` words in their names do not count."""
    gains: list[tuple[float, Curve]] = []
    for curve in held_out_curves(record):
        before, after = curve.split(tick)
        if before and after and not any(word in curve.name for word in excluded):
            gains.append(((before[-1] - after[-1]) / max(abs(before[-1]), 1e-12), curve))
    gain, metric = max(gains, key=lambda item: item[0], default=(0.0, None))
    return metric if gain >= MIN_IMPROVED else None


def show_improvement(curve: Curve, tick: int, record: RunRecord) -> str:
    """Return a sentence on the improvement of a metric since the tick."""
    before, after = curve.split(tick)
    first, last, best = curve.show(before[-1]), curve.show(after[-1]), curve.values[curve.best_index]
    if best == after[-1]:
        return f"Meanwhile {curve.name} improved from {first} to {last} at the end"
    best_step = record.step_at(curve.best_tick)
    return (
        f"Meanwhile {curve.name} improved from {first} to {curve.show(best)} at step {best_step:,} ({last} at the end)"
    )


def held_out_curves(record: RunRecord) -> list[Curve]:
    """Return the curves of all held-out metrics with a known direction."""
    specs = [spec for spec in record.started.metrics if spec.held_out and spec.better != "neither"]
    return [read_curve(record, spec) for spec in specs if spec.name in record.series]
