"""A multiplier on the user's own learning-rate schedule, for any torch optimizer and scheduler. Setting `lr` in a
parameter group affects only one step, because the scheduler overwrites it. So the scheduler's base rates are scaled,
which last and are saved in checkpoints. The scale itself is stored in the parameter groups, and therefore in the
optimizer's saved state. A resumed run divides by it to recover the user's own rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

USER_BOUNDS = (0.1, 3.0)
"""Default bounds of scalars, as multiples of the user's own value."""
ALL = ""
"""Stands for all parameter groups, where a method expects the name of some of them."""
KEY = "oven_lr_scale"  # key of the scale in a parameter group
NAMED_KEY = "oven_named_lr_scale"  # key of the scale of the groups with the same name
MAX_NAMES = 16
"""Maximum number of names that get a scale. If there are more, the names probably are those of single weights."""
GROUP_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Keys of rates that schedulers store in a parameter group. The last two are from OneCycleLR."""
SCHEDULER_FIELDS = ("base_lrs", "max_lrs", "min_lrs", "_init_lrs")
"""Fields of rates that schedulers store themselves. They are the base rates, CyclicLR's upper rates, the bounds of
ReduceLROnPlateau and GreedyLR, and the initial rates of GreedyLR."""


class LearningRateScale:
    """The scale of an optimizer and its scheduler. Without a scheduler the rate is constant. Parameter groups with a
    `name` have one more scale, by which their rates are multiplied as well. Groups with the same name share it."""

    def __init__(self, optimizer: Any, scheduler: Any = None) -> None:
        # accelerate wraps both
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        scheduler = getattr(scheduler, "scheduler", scheduler)
        self._all_schedulers = _with_nested(scheduler)
        self._schedulers = [inner for inner in self._all_schedulers if not _nested(inner)]  # only these have base rates
        self.named_groups = _named_groups(self.optimizer)
        """Name → indices of the parameter groups with this name."""
        stored_scale = self._stored(0, KEY)
        self._user_rates = [
            rate / (stored_scale * group.get(NAMED_KEY, 1.0))
            for rate, group in zip(self._base_rates() or (), self.optimizer.param_groups, strict=False)
        ]

    def read(self, name: str = ALL) -> float:
        """Return the scale of all groups, or the scale that only applies to the groups with this name. It is computed
        from the scheduler's base rates if it has any (ReduceLROnPlateau has none)."""
        key, other_key = (NAMED_KEY, KEY) if name else (KEY, NAMED_KEY)
        indices = self.indices(name)
        for index, (rate, user_rate) in enumerate(zip(self._base_rates() or (), self._user_rates, strict=False)):
            if user_rate and index in indices:
                return float(rate / (user_rate * self._stored(index, other_key)))
        return self._stored(indices[0], key)

    def write(self, scale: float, name: str = ALL) -> None:
        """Set the scale of all groups, or of those with this name, in the optimizer and its schedulers."""
        self._rescale(scale, GROUP_KEYS, name)
        for scheduler in self._all_schedulers:
            if hasattr(scheduler, "_last_lr"):
                scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def yield_to_loop(self, expected: list[float]) -> None:
        """Set all scales to 1. A rate that is neither in `expected` nor set by a scheduler comes from the loop and
        stays unchanged."""
        scale = self.read()
        scaled_rates = [expected, *self._last_rates()]
        for index, (group, rate) in enumerate(zip(self.optimizer.param_groups, self.rates(), strict=True)):
            if any(rates_equal([rates[index]], [rate]) for rates in scaled_rates if index < len(rates)):
                group["lr"] /= scale * self._stored(index, NAMED_KEY)
        for name in (ALL, *self.named_groups):
            self._rescale(1.0, GROUP_KEYS[1:], name)

    def indices(self, name: str) -> Sequence[int]:
        """Return the indices of the parameter groups with this name."""
        return self.named_groups[name] if name else range(len(self.optimizer.param_groups))

    @property
    def has_scheduler(self) -> bool:
        """Whether the optimizer has a known scheduler."""
        return bool(self._schedulers)

    def rates(self) -> list[float]:
        """Return the learning rate of each parameter group in the next optimizer step."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def group_scales(self) -> list[float]:
        """Return the factor in the rate of each parameter group: the common scale times the scale of its name."""
        return [self._stored(index, KEY) * self._stored(index, NAMED_KEY) for index in self.indices(ALL)]

    def matches_schedule(self, rates: list[float]) -> bool:
        """Whether a known scheduler has set these rates. Also true if no scheduler reports its rates."""
        last_rates = self._last_rates()
        return self.has_scheduler and (not last_rates or any(rates_equal(known, rates) for known in last_rates))

    @property
    def has_unknown_scheduler(self) -> bool:
        """Whether the optimizer has a torch scheduler that was not passed to this object. It may multiply the current
        rates, and these would then keep the scale."""
        return not self.has_scheduler and any("initial_lr" in group for group in self.optimizer.param_groups)

    def _last_rates(self) -> list[list[float]]:
        """Return the latest rates of each known scheduler that reports them."""
        return [
            list(map(float, scheduler._last_lr)) for scheduler in self._all_schedulers if hasattr(scheduler, "_last_lr")
        ]

    def _rescale(self, scale: float, group_keys: tuple[str, ...], name: str) -> None:
        factor, indices = scale / self.read(name), self.indices(name)
        for index in indices:
            group = self.optimizer.param_groups[index]
            for key in group_keys:
                if key in group:
                    group[key] *= factor
            group[NAMED_KEY if name else KEY] = scale
        for scheduler in self._schedulers:
            for field in SCHEDULER_FIELDS:
                if hasattr(scheduler, field):
                    rates = enumerate(getattr(scheduler, field))
                    setattr(scheduler, field, [rate * factor if index in indices else rate for index, rate in rates])
        base_rates = self._base_rates() or []
        # Start from the user's rates, so that rounding errors do not add up over many changes.
        for index, user_rate in enumerate(self._user_rates[: len(base_rates)]):
            base_rates[index] = user_rate * self._stored(index, NAMED_KEY) * self._stored(index, KEY)

    def current_rate(self) -> float:
        """Return the learning rate of the first group in the next optimizer step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _stored(self, index: int, key: str) -> float:
        return float(self.optimizer.param_groups[index].get(key, 1.0))

    def _base_rates(self) -> list[float] | None:
        """Return the base rates of the first scheduler that has any. Callers may change the list in place."""
        for scheduler in self._schedulers:
            base_rates: list[float] | None = getattr(scheduler, "base_lrs", None)
            if base_rates:
                return base_rates
        return None


def _named_groups(optimizer: Any) -> dict[str, list[int]]:
    """Return the indices of the parameter groups with each name. Empty if there are too many names."""
    named_groups: dict[str, list[int]] = {}
    for index, group in enumerate(optimizer.param_groups):
        if isinstance(name := group.get("name"), str) and name:
            named_groups.setdefault(name, []).append(index)
    return named_groups if len(named_groups) <= MAX_NAMES else {}


def rates_equal(rates: list[float], other_rates: list[float]) -> bool:
    """Whether the rates are equal up to rounding. Groups that are only in one list are ignored."""
    return all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(rates, other_rates, strict=False))


def _with_nested(scheduler: Any) -> list[Any]:
    """Return the scheduler and all schedulers within it. SequentialLR and ChainedScheduler contain others."""
    if scheduler is None:
        return []
    return [scheduler, *(inner for child in _nested(scheduler) for inner in _with_nested(child))]


def _nested(scheduler: Any) -> Sequence[Any]:
    return getattr(scheduler, "_schedulers", None) or ()
