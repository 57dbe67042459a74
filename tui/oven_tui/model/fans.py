"""Branches of trials as charts show them: what each arm measured, from the tick at which they begin.

No series holds them: the run's own curves have the steps of the arm that was kept, once they are the run's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from oven_core.protocol.trial_messages import BranchObservation, TrialEnded
from oven_tui.model.braille_chart import Bounds, Branch
from oven_tui.model.metric_series import Column

FANS = 16
"""Trials whose branches are kept; the oldest are let go."""
POINTS = 20_000
"""Measurements of one trial that are kept, all arms and metrics together; what comes later is left out."""

Point: TypeAlias = tuple[int, float]
"""Tick and value."""


@dataclass
class Fan:
    """The branches of one trial: by arm and metric, the points in their order. The first is the run's own."""

    trial: str
    tick: int
    """At which the branches begin."""
    begin: Mapping[str, float]
    """What the run had measured last, by metric."""
    points: dict[tuple[int, str], list[Point]] = field(default_factory=dict)
    count: int = 0
    last_tick: int = 0
    kept: int | None = None
    """The arm that the run continued with; None while the trial is under way."""

    def add(self, seen: BranchObservation) -> None:
        """A step of a branch."""
        self.last_tick = max(self.last_tick, seen.tick)
        for name, value in seen.metrics.items():
            if self.count >= POINTS:
                return
            begin = [(self.tick, self.begin[name])] if name in self.begin else []
            self.points.setdefault((seen.arm, name), begin).append((seen.tick, value))
            self.count += 1

    def kind(self, arm: int) -> Literal["control", "change", "trace"]:
        """How an arm is drawn: as a control or a change while the trial is under way, as a thin trace afterwards."""
        if self.kept is not None:
            return "trace"
        return "change" if arm else "control"

    def branches(self, metric: str, first: int, last: int, width: int) -> Iterator[Branch]:
        """Those to draw over the ticks `first` to `last`, on `width` columns: the control first. Of a trial that is
        over the kept arm is left out: its steps are the run's."""
        scale = width / (last - first + 1)
        for (arm, name), points in sorted(self.points.items()):
            if name != metric or arm == self.kept:
                continue
            columns = [
                Column(int((tick - first) * scale), value, value, value, value, 0)
                if math.isfinite(value)
                else Column(int((tick - first) * scale), math.inf, -math.inf, math.nan, math.nan, 1)
                for tick, value in points
                if first <= tick <= last
            ]
            if columns:
                yield Branch(columns, self.kind(arm))


@dataclass
class Fans:
    """Feed it what the log says of trials, in order."""

    by_id: dict[str, Fan] = field(default_factory=dict)

    def add(self, seen: BranchObservation, tick: int, values: Mapping[str, float]) -> None:
        """A step of a branch. `tick` and `values` are the run's, the newest of each metric: where a first step
        continues from."""
        if seen.trial not in self.by_id:
            self.by_id[seen.trial] = Fan(seen.trial, tick, dict(values), last_tick=tick)
            if len(self.by_id) > FANS:
                del self.by_id[next(iter(self.by_id))]
        if self.by_id[seen.trial].kept is None:
            self.by_id[seen.trial].add(seen)

    def end(self, ended: TrialEnded) -> Fan | None:
        """The branches of the trial that ended; None where it is not known."""
        if (fan := self.by_id.get(ended.trial)) is not None:
            fan.kept = ended.kept
        return fan

    def stop(self) -> None:
        """No more will come of what is under way: the learner started again."""
        for fan in self.by_id.values():
            fan.kept = -1 if fan.kept is None else fan.kept

    def newest_tick(self) -> int:
        """The newest tick of the branches that are being played; 0 where none are."""
        return max((fan.last_tick for fan in self.by_id.values() if fan.kept is None), default=0)

    def branches(self, metric: str, first: int, last: int, width: int) -> list[Branch]:
        """All that is to be drawn of a metric, the oldest trial first."""
        return [branch for fan in self.by_id.values() for branch in fan.branches(metric, first, last, width)]

    def copy(self) -> Fans:
        """One that stays as it is while this one continues."""
        made = {}
        for id_, fan in self.by_id.items():
            made[id_] = replace(fan, points={key: list(points) for key, points in fan.points.items()})
        return Fans(made)


def around(branches: list[Branch], scale: Bounds) -> list[Branch]:
    """The branches as far as they lie within the bounds: a trace outside them would be a line along the edge."""
    return [
        branch._replace(columns=[column for column in branch.columns if scale.low <= column.last <= scale.high])
        if branch.kind == "trace"
        else branch
        for branch in branches
    ]
