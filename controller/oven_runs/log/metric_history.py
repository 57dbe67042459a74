"""The measurements of one metric over a run, and fewer of them where there are many. A pure fold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import UnknownNameError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import MetricSpec, Observation, Real, RunEnded, RunStarted
from oven_runs.log.since import BEGINNING, Since


class Point(BaseModel):
    """One measurement, as it is in the log."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    tick: int
    step: int = Field(description="goes back after a rollback")
    value: Real


class MetricHistory(BaseModel):
    """What was measured."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    name: str
    unit: str
    better: str = Field(description="up, down or neither; empty: the run does not announce it")
    held_out: bool = Field(description="measured on data that the run never trains on")
    measured: int = Field(description="measurements that were asked for")
    not_finite: int = Field(description="of those: NaN or infinite")
    least: Real | None
    greatest: Real | None
    first: Real | None
    last: Real | None
    points: tuple[Point, ...] = Field(
        description="all of them where they are few enough; else, of equal stretches, each one's least and greatest, "
        "and its first that is not finite. Each is a real measurement; none is an average"
    )
    thinned: bool = Field(description="whether some were left out of `points`")


@dataclass
class MetricReader:
    """Feed it the log's events in order."""

    name: str
    since: Since = BEGINNING
    _found: list[tuple[int, int, float, datetime]] = field(default_factory=list)  # tick, step, value, time
    _known: set[str] = field(default_factory=set)
    _spec: MetricSpec | None = None
    _newest: datetime | None = None

    def feed(self, event: Event) -> None:
        """Take the next event in."""
        self._newest = event.time
        match event.body:
            case RunStarted() as started:
                self._known |= {spec.name for spec in started.metrics}
                self._spec = next((spec for spec in started.metrics if spec.name == self.name), self._spec)
            case Observation() | RunEnded() as body:
                if not body.metrics.keys() <= self._known:
                    self._known |= body.metrics.keys()
                if (value := body.metrics.get(self.name)) is not None:
                    self._found.append((body.tick, body.step, value, event.time))

    def history(self, run: str, most: int) -> MetricHistory:
        """With at most so many points. Raises UnknownNameError where the run has no such metric."""
        if self.name not in self._known:
            raise UnknownNameError("metric", self.name, self._known)
        found = [one for one in self._found if self.since.holds(one[1], one[3], self._newest)]
        values = [value for _, _, value, _ in found]
        finite = [value for value in values if math.isfinite(value)]
        kept = thinned(values, most)
        return MetricHistory(
            run=run,
            name=self.name,
            unit=self._spec.unit if self._spec else "",
            better=self._spec.better if self._spec else "",
            held_out=self._spec.held_out if self._spec else False,
            measured=len(found),
            not_finite=len(found) - len(finite),
            least=min(finite, default=None),
            greatest=max(finite, default=None),
            first=values[0] if values else None,
            last=values[-1] if values else None,
            points=tuple(
                Point(tick=tick, step=step, value=value) for tick, step, value, _ in map(found.__getitem__, kept)
            ),
            thinned=len(kept) < len(found),
        )


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Indices of at most so many of them, in their order: each of equal stretches has its least, its greatest and its
    first that is not finite; the first and the last of all are always among them. `most` is at least 5."""
    if len(values) <= most:
        return list(range(len(values)))
    stretches = (most - 2) // 3
    kept = {0, len(values) - 1}
    for at in range(stretches):
        kept |= _telling(values, range(at * len(values) // stretches, (at + 1) * len(values) // stretches))
    return sorted(kept)


def _telling(values: Sequence[float], indices: Iterable[int]) -> set[int]:
    finite = [index for index in indices if math.isfinite(values[index])]
    wrong = [index for index in indices if not math.isfinite(values[index])][:1]
    if not finite:
        return set(wrong)
    return {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__), *wrong}
