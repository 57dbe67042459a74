"""Collect the measurements of one metric over a run, and reduce them to a limited number of points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import UnknownNameError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import MetricSpec, Observation, Real, RunEnded, RunStarted
from oven_runs.log.since_option import BEGINNING, Since


class Point(BaseModel):
    """One measurement of the metric."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    tick: int
    step: int = Field(description="the optimizer step, which decreases after a rollback")
    value: Real


class MetricHistory(BaseModel):
    """The measurements of a metric over the run."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    name: str
    unit: str
    better: str = Field(description="up, down or neither; empty if the run does not announce the metric")
    held_out: bool = Field(description="measured on data that the run never trains on")
    measured: int = Field(description="number of measurements")
    not_finite: int = Field(description="number of measurements that are NaN or infinite")
    least: Real | None
    greatest: Real | None
    first: Real | None
    last: Real | None
    points: tuple[Point, ...] = Field(
        description="all measurements, or if they exceed the requested number, the minimum, maximum and first "
        "non-finite value per interval. Every point is a real measurement, never an average"
    )
    thinned: bool = Field(description="whether `points` omits some measurements")


@dataclass
class MetricReader:
    """Collects the measurements of one metric. Pass the log's events to `feed` in order."""

    name: str
    since: Since = BEGINNING
    _measurements: list[tuple[int, int, float, datetime]] = field(default_factory=list)  # tick, step, value, time
    _names: set[str] = field(default_factory=set)
    _spec: MetricSpec | None = None
    _newest_time: datetime | None = None

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self._newest_time = event.time
        match event.body:
            case RunStarted() as started:
                self._names |= {spec.name for spec in started.metrics}
                self._spec = next((spec for spec in started.metrics if spec.name == self.name), self._spec)
            case Observation() | RunEnded() as body:
                self._names.update(body.metrics)
                if (value := body.metrics.get(self.name)) is not None:
                    self._measurements.append((body.tick, body.step, value, event.time))

    def history(self, run: str, max_points: int) -> MetricHistory:
        """Return the measurements, reduced to at most `max_points` points. `max_points` must be at least 5. Raises
        UnknownNameError if the run has no metric with this name."""
        if self.name not in self._names:
            raise UnknownNameError("metric", self.name, self._names)
        selected = [
            (tick, step, value)
            for tick, step, value, time in self._measurements
            if self.since.includes(step, time, self._newest_time)
        ]
        values = [value for _, _, value in selected]
        finite = [value for value in values if math.isfinite(value)]
        points = [selected[index] for index in select_indices(values, max_points)]
        return MetricHistory(
            run=run,
            name=self.name,
            unit=self._spec.unit if self._spec else "",
            better=self._spec.better if self._spec else "",
            held_out=self._spec.held_out if self._spec else False,
            measured=len(selected),
            not_finite=len(selected) - len(finite),
            least=min(finite, default=None),
            greatest=max(finite, default=None),
            first=values[0] if values else None,
            last=values[-1] if values else None,
            points=tuple(Point(tick=tick, step=step, value=value) for tick, step, value in points),
            thinned=len(points) < len(selected),
        )


def select_indices(values: Sequence[float], limit: int) -> list[int]:
    """Return the sorted indices of at most `limit` values: the first, the last, and the minimum, maximum and first
    non-finite value of each of several equal intervals. `limit` must be at least 5, to have one interval."""
    if len(values) <= limit:
        return list(range(len(values)))
    intervals = (limit - 2) // 3
    indices = {0, len(values) - 1}
    bounds = [number * len(values) // intervals for number in range(intervals + 1)]
    for start, end in pairwise(bounds):
        indices |= _find_extremes(values, range(start, end))
    return sorted(indices)


def _find_extremes(values: Sequence[float], indices: range) -> set[int]:
    """Return the indices of the minimum, maximum and first non-finite value at these indices."""
    finite = [index for index in indices if math.isfinite(values[index])]
    not_finite = [index for index in indices if not math.isfinite(values[index])][:1]
    if not finite:
        return set(not_finite)
    return {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__), *not_finite}
