"""The learning rate as a multiplier on the user's own schedule, for any torch optimizer and scheduler.

Setting the `lr` of a parameter group lasts one step, because the scheduler writes it again. Scaling the scheduler's
base rates survives its next step, and checkpoints. The scale itself is stored in the parameter groups. They are saved
in the optimizer's state, so that a resumed run knows which part of its rates is the user's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

USER_BOUNDS = (0.1, 3.0)
"""Default bounds of scalars, as multiples of the user's own value."""
KEY = "oven_lr_scale"
IN_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Rates that schedulers store in a parameter group; the last two are those of OneCycleLR."""
IN_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "_init_lrs")
"""Rates that schedulers store themselves: base rates, CyclicLR's upper rates, the bounds of ReduceLROnPlateau and
GreedyLR, and the initial rates of GreedyLR."""


class LearningRateScale:
    """Reads and writes the scale of an optimizer and its scheduler. Without a scheduler the rate is constant."""

    def __init__(self, optimizer: Any, scheduler: Any = None) -> None:
        # accelerate wraps both
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        scheduler = getattr(scheduler, "scheduler", scheduler)
        self._all_schedulers = _with_containers(scheduler)
        self._schedulers = [inner for inner in self._all_schedulers if not _contained(inner)]  # those with base rates
        stored = self._stored_scale()
        bases = self._bases()
        self._user = [base / stored for base in bases] if bases else None

    def read(self) -> float:
        """Return the scale, from the scheduler's base rates if it has any (ReduceLROnPlateau has none)."""
        for base, user in zip(self._bases() or (), self._user or (), strict=False):
            if user:
                return float(base / user)
        return self._stored_scale()

    def write(self, scale: float) -> None:
        self._scale(scale, IN_GROUPS)
        for scheduler in self._all_schedulers:
            if hasattr(scheduler, "_last_lr"):
                scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def yield_to_loop(self, expected: list[float]) -> None:
        """Set the scale to 1. Rates that differ from the `expected` ones and from the scheduler's are the loop's own,
        and stay."""
        scale = self.read()
        known = [expected, *self._last_rates()]
        for index, (group, rate) in enumerate(zip(self.optimizer.param_groups, self.rates(), strict=True)):
            if any(equal(rates[index : index + 1], [rate]) for rates in known if index < len(rates)):
                group["lr"] /= scale
        self._scale(1.0, IN_GROUPS[1:])

    @property
    def scheduled(self) -> bool:
        """Whether a known scheduler sets the rates."""
        return bool(self._schedulers)

    def rates(self) -> list[float]:
        """Return the rates that the next optimizer step uses, by group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def as_scheduled(self, rates: list[float]) -> bool:
        """Whether a known scheduler has set these rates, as far as it tells."""
        last = self._last_rates()
        return self.scheduled and (not last or any(equal(own, rates) for own in last))

    @property
    def has_unknown_scheduler(self) -> bool:
        """Whether a scheduler of torch was made for the optimizer, and is not known here. It may multiply the rates
        that it finds, so that the scale would stay in them."""
        return not self.scheduled and any("initial_lr" in group for group in self.optimizer.param_groups)

    def _last_rates(self) -> list[list[float]]:
        """Return the rates that each known scheduler has set last, as far as it tells."""
        return [
            list(map(float, scheduler._last_lr)) for scheduler in self._all_schedulers if hasattr(scheduler, "_last_lr")
        ]

    def _scale(self, scale: float, in_groups: tuple[str, ...]) -> None:
        change = scale / self.read()
        for group in self.optimizer.param_groups:
            for key in in_groups:
                if key in group:
                    group[key] *= change
            group[KEY] = scale
        for scheduler in self._schedulers:
            for name in IN_SCHEDULERS:
                if hasattr(scheduler, name):
                    setattr(scheduler, name, [rate * change for rate in getattr(scheduler, name)])
        if self._user and (bases := self._bases()):
            # Computed from the user's rates, so that a hundred changes round no more than one.
            for index, user in enumerate(self._user[: len(bases)]):
                bases[index] = user * scale

    def current_rate(self) -> float:
        """Return the rate that the next optimizer step uses, of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _stored_scale(self) -> float:
        return float(self.optimizer.param_groups[0].get(KEY, 1.0))

    def _bases(self) -> list[float] | None:
        """Return the first scheduler's own list, to be changed in place."""
        for scheduler in self._schedulers:
            bases: list[float] | None = getattr(scheduler, "base_lrs", None)
            if bases:
                return bases
        return None


def equal(rates: list[float], other_rates: list[float]) -> bool:
    """Whether the rates are equal up to rounding. Groups that only one list has are ignored."""
    return all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(rates, other_rates, strict=False))


def _with_containers(scheduler: Any) -> list[Any]:
    """Return the scheduler and those within it. SequentialLR and ChainedScheduler contain others."""
    if scheduler is None:
        return []
    return [scheduler, *(inner for part in _contained(scheduler) for inner in _with_containers(part))]


def _contained(scheduler: Any) -> Sequence[Any]:
    return getattr(scheduler, "_schedulers", None) or ()
