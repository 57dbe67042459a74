"""What a fixed rule can do about an alarm, and the knobs that it does it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oven_bench.fixed_rules import Change
from oven_core.protocol.messages import RunStarted

BACK = 10
"""Ticks that a rollback goes back behind the alarm. A spike shows within three steps of its cause; the snapshot that is
gone back to is at most four older."""
SKIP = 40
"""Batches that are passed over from there. PaLM (arXiv 2204.02311, §5.1) went back about 100 steps and skipped 200 to
500 batches: two to five times as many, here four."""


class Knobs:
    """A run's scalars and actions as it announced them, with the values that were set here since."""

    def __init__(self, run: RunStarted) -> None:
        self._specs = {spec.name: spec for spec in run.actuators}
        self._values = {spec.name: spec.value for spec in run.actuators}

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def value(self, name: str) -> float | None:
        """Of a scalar; None where the run has no such knob."""
        value = self._values.get(name)
        return float(value) if isinstance(value, int | float) else None

    def times(self, name: str, factor: float) -> list[Change]:
        """The knob's value times a factor, as far as its bounds go."""
        value = self.value(name)
        return [] if value is None else self.set(name, value * factor)

    def set(self, name: str, value: float) -> list[Change]:
        """Within its bounds; nothing where the run lacks the knob, or it has that value."""
        if name not in self._specs:
            return []
        low, high = self._specs[name].low, self._specs[name].high
        value = min(max(value, value if low is None else low), value if high is None else high)
        if value == self._values[name]:
            return []
        self._values[name] = value
        return [(name, value)]

    def act(self, name: str, value: float) -> list[Change]:
        return [(name, value)] if name in self._specs else []


Remedy = Callable[[Knobs, int], list[Change]]
"""(knobs, tick of the alarm) → what to set. Nothing where the run lacks the knob."""


def rate(factor: float) -> Remedy:
    return lambda knobs, tick: knobs.times("optimizer.lr_scale", factor)


def times(name: str, factor: float) -> Remedy:
    return lambda knobs, tick: knobs.times(name, factor)


def rollback(knobs: Knobs, tick: int) -> list[Change]:
    return knobs.act("run.rollback", max(0, tick - BACK))


def rollback_and(factor: float) -> Remedy:
    return lambda knobs, tick: rollback(knobs, tick) + rate(factor)(knobs, tick)


def rollback_skip(knobs: Knobs, tick: int) -> list[Change]:
    return rollback(knobs, tick) + knobs.act("data.skip", SKIP)


REMEDIES: Mapping[str, Remedy] = {
    "cut_4": rate(1 / 4),
    "cut_8": rate(1 / 8),
    "raise_4": rate(4),
    "rollback": rollback,
    "rollback_cut_8": rollback_and(1 / 8),
    "rollback_skip": rollback_skip,
    "lower_weight_decay": times("optimizer.weight_decay", 1 / 8),
    "tighten_clip": times("grad.clip", 1 / 8),
    "raise_beta": times("grpo.beta", 4),
}
