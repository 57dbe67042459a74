"""Factors on the user's own learning-rate schedule, for any torch optimizer and scheduler. A scheduler overwrites the
`lr` of each parameter group at every step, so the factors are applied to the scheduler's base rates. The factors
themselves are stored in the parameter groups. Checkpoints contain both. A resumed run divides the base rates by the
factors to recover the user's own rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

USER_BOUNDS = (0.1, 3.0)
"""Default bounds of scalar knobs, as multiples of the user's own value."""
ALL_GROUPS = ""
"""The `name` argument that stands for all parameter groups."""
SCALE_KEY = "oven_lr_scale"  # in a parameter group: the scale of all groups
NAMED_KEY = "oven_named_lr_scale"  # in a parameter group: the scale of the groups with its name
WARMUP_KEY = "oven_warmup"  # in a parameter group: the length of the current warm-up, and the number of its past steps
NO_WARMUP = (0, 0)
MAX_NAMES = 16
"""Maximum number of names that get a scale. If there are more, each name probably stands for a single weight."""
GROUP_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Keys of rates that schedulers store in a parameter group. The last two are from OneCycleLR."""
SCHEDULER_FIELDS = ("base_lrs", "max_lrs", "min_lrs", "_init_lrs")
"""Attributes of schedulers that contain rates: the base rates, CyclicLR's upper rates, the bounds of ReduceLROnPlateau
and GreedyLR, and GreedyLR's initial rates."""


class LearningRateScale:
    """The scale of an optimizer and its optional scheduler. Parameter groups with a `name` have a second scale, which
    groups of the same name share. Their rates are multiplied by both. During a warm-up, the rates of all groups are
    also multiplied by a factor that rises to 1."""

    def __init__(self, optimizer: Any, scheduler: Any = None, name: str = "") -> None:
        """`name` is the name of the parameter groups that have none themselves."""
        # Accelerate wraps both arguments.
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self.scheduler = getattr(scheduler, "scheduler", scheduler)
        self._all_schedulers = _with_inner_schedulers(self.scheduler)
        # Only schedulers without inner schedulers have base rates.
        self._leaf_schedulers = [leaf for leaf in self._all_schedulers if not _inner_schedulers(leaf)]
        self.named_groups = _named_groups(self.optimizer, name)
        """Name → indices of the parameter groups with this name."""
        factors = self.group_scales()
        self._user_rates = [rate / factor for rate, factor in zip(self._base_rates() or (), factors, strict=False)]

    def read(self, name: str = ALL_GROUPS) -> float:
        """Return the scale of all groups, or the scale that only applies to the groups with this name. Compute it from
        the scheduler's base rates if it has any (ReduceLROnPlateau has none)."""
        key = NAMED_KEY if name else SCALE_KEY
        indices = self.indices(name)
        for index, (rate, user_rate) in enumerate(zip(self._base_rates() or (), self._user_rates, strict=False)):
            if user_rate and index in indices:
                return float(rate / (user_rate * self._factor(index, exclude=key)))
        return self._stored(indices[0], key)

    def write(self, scale: float, name: str = ALL_GROUPS) -> None:
        """Set the scale of all groups, or of those with this name, in the optimizer and its schedulers."""
        self._rescale(scale, GROUP_KEYS, name)
        self._update_last_rates()

    @property
    def common_factor(self) -> float:
        """The factor on the rates of all groups: the scale of all groups times the factor of the warm-up."""
        return self.read() * self._warmup_factor(0)

    @property
    def warmup_steps(self) -> int:
        """The length of the current warm-up, or 0 without one."""
        return self._warmup(0)[0]

    def start_warmup(self, steps: int) -> None:
        """Multiply the rates of the next `steps` steps by a factor that rises linearly from 1 / (steps + 1). The step
        after them uses the full rate. With 0, end the current warm-up."""
        self._set_warmup((steps, 0), GROUP_KEYS)
        self._update_last_rates()

    def advance_warmup(self) -> None:
        """Use the next factor of the warm-up, after a step of the optimizer. Do nothing without a warm-up."""
        steps, past_steps = self._warmup(0)
        self._set_warmup((steps, past_steps + 1) if past_steps + 1 < steps else NO_WARMUP, GROUP_KEYS)

    def yield_to_loop(self, expected: list[float]) -> None:
        """Set all scales to 1 and end the warm-up. A rate that is neither expected nor set by a scheduler comes from
        the loop, and stays unchanged. `expected` contains one rate per parameter group."""
        scaled_rates = [expected, *self._last_rates()]
        for index, (group, rate) in enumerate(zip(self.optimizer.param_groups, self.rates(), strict=True)):
            known_rates = [rates[index] for rates in scaled_rates if index < len(rates)]
            if any(rates_equal([known_rate], [rate]) for known_rate in known_rates):
                group["lr"] /= self._factor(index)
        for name in (ALL_GROUPS, *self.named_groups):
            self._rescale(1.0, GROUP_KEYS[1:], name)
        self._set_warmup(NO_WARMUP, GROUP_KEYS[1:])

    def indices(self, name: str) -> Sequence[int]:
        """Return the indices of the parameter groups with this name."""
        return self.named_groups[name] if name else range(len(self.optimizer.param_groups))

    @property
    def has_scheduler(self) -> bool:
        """Whether the optimizer has a known scheduler."""
        return bool(self._leaf_schedulers)

    def rates(self) -> list[float]:
        """Return the learning rate of each parameter group in the next optimizer step."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def group_scales(self) -> list[float]:
        """Return the factor on the rate of each parameter group: the common scale times the scale of its name, times
        the factor of the warm-up."""
        return [self._factor(index) for index in self.indices(ALL_GROUPS)]

    def matches_schedule(self, rates: list[float]) -> bool:
        """Whether a known scheduler has set these rates. Also true if no scheduler reports its rates."""
        last_rates = self._last_rates()
        return self.has_scheduler and (not last_rates or any(rates_equal(known, rates) for known in last_rates))

    @property
    def has_unknown_scheduler(self) -> bool:
        """Whether the optimizer has a torch scheduler that was not passed to this object. Such a scheduler may multiply
        the current rates, which already contain the scale."""
        return not self.has_scheduler and any("initial_lr" in group for group in self.optimizer.param_groups)

    def _last_rates(self) -> list[list[float]]:
        """Return the latest rates of each known scheduler that reports them."""
        last_rates = [getattr(scheduler, "_last_lr", None) for scheduler in self._all_schedulers]
        return [[float(rate) for rate in rates] for rates in last_rates if rates is not None]

    def _rescale(self, scale: float, group_keys: tuple[str, ...], name: str) -> None:
        """Change the scale in the base rates, in these keys of the parameter groups, and in the schedulers."""
        factor, indices = scale / self.read(name), self.indices(name)
        for index in indices:
            self.optimizer.param_groups[index][NAMED_KEY if name else SCALE_KEY] = scale
        self._multiply(factor, group_keys, indices)

    def _set_warmup(self, warmup: tuple[int, int], group_keys: tuple[str, ...]) -> None:
        """Set the length of the warm-up and the number of its past steps, and multiply the rates accordingly."""
        if warmup == self._warmup(0):
            return
        factor_before = self._warmup_factor(0)
        for group in self.optimizer.param_groups:
            group[WARMUP_KEY] = warmup
        self._multiply(self._warmup_factor(0) / factor_before, group_keys, self.indices(ALL_GROUPS))

    def _multiply(self, factor: float, group_keys: tuple[str, ...], indices: Sequence[int]) -> None:
        """Multiply the rates of these groups by the factor, here and in the schedulers. The keys that `_factor` reads
        must already have their new values."""
        for index in indices:
            group = self.optimizer.param_groups[index]
            for key in group_keys:
                if key in group:
                    group[key] *= factor
        for scheduler in self._leaf_schedulers:
            for field in SCHEDULER_FIELDS:
                if hasattr(scheduler, field):
                    rates = enumerate(getattr(scheduler, field))
                    setattr(scheduler, field, [rate * factor if index in indices else rate for index, rate in rates])
        base_rates = self._base_rates() or []
        # Start from the user's rates, so that rounding errors do not add up over many changes.
        for index, user_rate in enumerate(self._user_rates[: len(base_rates)]):
            base_rates[index] = user_rate * self._factor(index)

    def _update_last_rates(self) -> None:
        """Let the schedulers report the current rates."""
        for scheduler in self._all_schedulers:
            if hasattr(scheduler, "_last_lr"):
                scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _factor(self, index: int, exclude: str = "") -> float:
        """Return the product of the factors on the rate of a parameter group, without that of the key `exclude`."""
        scales = (self._stored(index, key) for key in (NAMED_KEY, SCALE_KEY) if key != exclude)
        return math.prod(scales) * self._warmup_factor(index)

    def _stored(self, index: int, key: str) -> float:
        return float(self.optimizer.param_groups[index].get(key, 1.0))

    def _warmup(self, index: int) -> tuple[int, int]:
        steps, past_steps = self.optimizer.param_groups[index].get(WARMUP_KEY, NO_WARMUP)
        return steps, past_steps

    def _warmup_factor(self, index: int) -> float:
        """Return the factor of the warm-up on the next step, which is 1 without a warm-up."""
        steps, past_steps = self._warmup(index)
        return (past_steps + 1) / (steps + 1)

    def _base_rates(self) -> list[float] | None:
        """Return the base rates of the first scheduler that has any. Callers may change the list in place."""
        for scheduler in self._leaf_schedulers:
            base_rates: list[float] | None = getattr(scheduler, "base_lrs", None)
            if base_rates:
                return base_rates
        return None


def _named_groups(optimizer: Any, default_name: str) -> dict[str, list[int]]:
    """Return the indices of the parameter groups with each name. Empty if there are too many names."""
    named_groups: dict[str, list[int]] = {}
    for index, group in enumerate(optimizer.param_groups):
        if isinstance(name := group.get("name", default_name), str) and name:
            named_groups.setdefault(name, []).append(index)
    return named_groups if len(named_groups) <= MAX_NAMES else {}


def rates_equal(rates: list[float], other_rates: list[float]) -> bool:
    """Whether the rates are equal up to rounding. Groups that are only in one list are ignored."""
    return all(
        math.isclose(rate, other_rate, rel_tol=1e-9) for rate, other_rate in zip(rates, other_rates, strict=False)
    )


def _with_inner_schedulers(scheduler: Any) -> list[Any]:
    """Return the scheduler and all schedulers within it. SequentialLR and ChainedScheduler contain others."""
    if scheduler is None:
        return []
    return [scheduler, *(inner for child in _inner_schedulers(scheduler) for inner in _with_inner_schedulers(child))]


def _inner_schedulers(scheduler: Any) -> Sequence[Any]:
    return getattr(scheduler, "_schedulers", None) or ()
