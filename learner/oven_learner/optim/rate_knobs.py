"""The knobs of the learning rate, for one or several optimizers:

- `optimizer.lr_scale` multiplies the rates of all optimizers.
- `optimizer.lr_scale/<name>` also multiplies the rates of the parameter groups with one name. If a loop has several
  optimizers, groups without a name have the name of their optimizer.
- `optimizer.warmup` multiplies all rates by a factor that rises linearly to 1 over so many steps from now on. It
  inserts a warm-up, or lengthens one that the user's own schedule has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_core.errors import ConfigError
from oven_learner.actuators import USED, Actuators, Usage
from oven_learner.optim.lr_scale import ALL_GROUPS, LearningRateScale, rates_equal
from oven_learner.optim.rate_readback import SCALE, WARMUP_COMPLETE, RateReadback

WARMUP = "optimizer.warmup"
MAX_WARMUP_SHARE = 0.5
"""Maximum length of a warm-up, as a share of the run's steps."""
MAX_WARMUP_STEPS = 10_000
"""Maximum length of a warm-up, in steps, if the length of the run is unknown."""


def create_rate_knobs(optimizer: Any, scheduler: Any = None) -> RateKnobs:
    """Return the rate knobs of an optimizer, or of a sequence or mapping of optimizers, with their schedulers. Raises
    ConfigError if the optimizers have no distinct names, or if the schedulers do not match them."""
    optimizers = named_optimizers(optimizer)
    schedulers = {ALL_GROUPS: scheduler} if ALL_GROUPS in optimizers else scheduler or {}
    if isinstance(schedulers, list | tuple) and len(schedulers) == len(optimizers):
        schedulers = dict(zip(optimizers, schedulers, strict=True))
    if not isinstance(schedulers, Mapping) or not schedulers.keys() <= optimizers.keys():
        raise ConfigError(
            f"scheduler= does not match the optimizers {', '.join(optimizers)}; pass a mapping from these names, or a "
            "list in the same order, with None for an optimizer without a scheduler"
        )
    return RateKnobs(
        [RateReadback(LearningRateScale(each, schedulers.get(name), name)) for name, each in optimizers.items()]
    )


def named_optimizers(optimizer: Any) -> Mapping[str, Any]:
    """Return the optimizers by their names. A single one has an empty name. Raises ConfigError if they have no distinct
    names."""
    if not isinstance(optimizer, Mapping | list | tuple):
        return {ALL_GROUPS: optimizer}
    named = optimizer if isinstance(optimizer, Mapping) else _named_by_class(optimizer)
    if not named or not all(isinstance(name, str) and name for name in named):
        raise ConfigError(f"optimizer= has the names {[*named]}; pass at least one optimizer, each with a name")
    return named


def _named_by_class(optimizers: Sequence[Any]) -> dict[str, Any]:
    """Return the optimizers by the lower-case names of their classes. Raises ConfigError for a repeated name."""
    names = [type(getattr(optimizer, "optimizer", optimizer)).__name__.lower() for optimizer in optimizers]
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(f'optimizer= has several {repeated} optimizers; name them: optimizer={{"first": …, …}}')
    return dict(zip(names, optimizers, strict=True))


class RateKnobs:
    """The rate knobs of one or several optimizers. The first optimizer is the one that steps first."""

    def __init__(self, readbacks: Sequence[RateReadback]) -> None:
        self.readbacks = tuple(readbacks)

    @property
    def scales(self) -> tuple[LearningRateScale, ...]:
        return tuple(readback.scale for readback in self.readbacks)

    @property
    def lr_scale(self) -> float:
        """The factor for a loop that sets the rate itself. It is 1 if all rates have a scheduler."""
        factors = [readback.lr_scale for readback in self.readbacks]
        with_scheduler = [scale.has_scheduler for scale in self.scales]
        return next((factor for factor, has in zip(factors, with_scheduler, strict=True) if not has), 1.0)

    def register(self, actuators: Actuators, bounds: tuple[float, float], max_steps: int | None) -> None:
        """Register the knobs. Raises ConfigError for a restored scale outside the bounds."""
        names = dict.fromkeys(name for scale in self.scales for name in scale.named_groups)
        for name in (ALL_GROUPS, *names):
            knob = f"{SCALE}/{name}" if name else SCALE
            if knob in actuators:  # the user's own
                continue
            rates = NamedRates(tuple(r for r in self.readbacks if not name or name in r.scale.named_groups), name)
            rates.write(rates.read())  # a checkpoint may contain the scale of some optimizers only
            actuators.scalar(
                knob,
                rates.read,
                rates.write,
                low=bounds[0],
                high=bounds[1],
                scale="log",
                unit=f"× {SCALE}" if name else "× the schedule",
                risky=True,
                proof=rates,
            )
        if WARMUP not in actuators and all(readback.has_hooks for readback in self.readbacks):
            longest = int(max_steps * MAX_WARMUP_SHARE) if max_steps else MAX_WARMUP_STEPS
            ramp = Warmup(self.readbacks)
            high = max(1.0, longest, ramp.read())  # a checkpoint may contain a longer one
            unit = "steps from now on, in which the rate rises to the schedule"
            actuators.scalar(WARMUP, ramp.read, ramp.write, low=0.0, high=high, unit=unit, proof=ramp)

    def close(self) -> None:
        for readback in self.readbacks:
            readback.close()


@dataclass(frozen=True, slots=True)
class NamedRates:
    """The scale of the parameter groups with one name, or of all groups, and its proof. It is the same in each of the
    optimizers that have such groups."""

    readbacks: tuple[RateReadback, ...]
    name: str

    def read(self) -> float:
        return self.readbacks[0].scale.read(self.name)

    def write(self, scale: float) -> None:
        """Set the scale in each optimizer that has another one."""
        for readback in self.readbacks:
            if not rates_equal([readback.scale.read(self.name)], [scale]):
                readback.write(scale, self.name)

    @property
    def is_certain(self) -> bool:
        return all(readback.is_certain for readback in self.readbacks)

    def refusal(self) -> str:
        return next((text for readback in self.readbacks if (text := readback.refusal(self.name))), "")

    def begin(self, before: Any) -> None:
        for readback in self.readbacks:
            readback.begin(before, self.name)

    def usage(self, *, is_final: bool = False) -> Usage:
        self._follow()
        return _common_usage([readback.usage(is_final=is_final, name=self.name) for readback in self.readbacks])

    def take_undone_change(self) -> tuple[float, float, str] | None:
        self._follow()
        undone_changes = [readback.take_undone_change(self.name) for readback in self.readbacks]
        return next(filter(None, undone_changes), None)

    def on_restore(self) -> None:
        for readback in self.readbacks:
            readback.on_restore()

    def close(self) -> None:
        for readback in self.readbacks:
            readback.close()

    def _follow(self) -> None:
        """If the loop has overwritten the rate of one optimizer, so that its scale is 1 again, reset the others."""
        if any(not rates_equal([self.read()], [readback.scale.read(self.name)]) for readback in self.readbacks[1:]):
            self.write(1.0)


@dataclass(frozen=True, slots=True)
class Warmup:
    """The length of the current warm-up in steps, or 0 without one, and its proof."""

    readbacks: tuple[RateReadback, ...]

    def read(self) -> float:
        return float(max(readback.scale.warmup_steps for readback in self.readbacks))

    def write(self, steps: float) -> None:
        """Start a warm-up with the next step. With 0, end the current one."""
        for readback in self.readbacks:
            readback.start_warmup(round(steps))

    @property
    def is_certain(self) -> bool:
        return all(readback.is_certain for readback in self.readbacks)

    def refusal(self) -> str:
        return next((text for readback in self.readbacks if (text := readback.refusal())), "")

    def begin(self, before: Any) -> None:
        for readback in self.readbacks:
            readback.warmup_usage = None

    def usage(self, *, is_final: bool = False) -> Usage:
        usage = _common_usage([readback.warmup_usage for readback in self.readbacks])
        if usage:
            self.write(0)
        return usage

    def take_undone_change(self) -> tuple[float, float, str] | None:
        ended = [readback.take_ended_warmup() for readback in self.readbacks]
        if any(change is not None and change[2] != WARMUP_COMPLETE for change in ended):
            self.write(0)  # the loop has overwritten the rate of one optimizer
        return next(filter(None, ended), None) if not self.read() else None

    def on_restore(self) -> None:
        for readback in self.readbacks:
            readback.on_restore()

    def close(self) -> None:
        for readback in self.readbacks:
            readback.close()


def _common_usage(usages: Sequence[Usage]) -> Usage:
    """Return the reason why one of the optimizers did not use a change, or None if it is not known for all of them."""
    failure = next(filter(None, usages), USED)
    return None if failure == USED and None in usages else failure
