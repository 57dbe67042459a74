"""The learning rate as a multiplier on the user's own schedule, for any torch optimizer and scheduler.

Setting a parameter group's `lr` lasts one step, since the scheduler writes it again. Scaling the scheduler's base rates
survives its next step, and checkpoints. The scale itself is kept in the parameter groups: they travel in the
optimizer's state, so that a resumed run knows which part of its rates is the user's.
"""

from __future__ import annotations

import math
from typing import Any

USER_BOUNDS = (0.1, 3.0)
"""Bounds of an attached run's scalars, as multiples of the user's own value."""
KEY = "oven_lr_scale"
IN_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
"""What schedulers keep in a parameter group; the last two are OneCycleLR's."""
IN_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "_init_lrs")
"""What they keep themselves: CyclicLR's upper rates, the bounds of ReduceLROnPlateau and GreedyLR, and what the latter
starts again from."""


class LearningRateScale:
    """Reads and writes the scale; made once optimizer and scheduler exist. No scheduler is a constant rate."""

    def __init__(self, optimizer: Any, scheduler: Any = None) -> None:
        # accelerate wraps both
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        scheduler = getattr(scheduler, "scheduler", scheduler)
        self._schedulers = _leaves(scheduler)
        self._saying = _with_containers(scheduler)
        carried = self._carried()
        bases = self._bases()
        self._user = [base / carried for base in bases] if bases else None

    def read(self) -> float:
        """From the scheduler's own base rates where it has any (ReduceLROnPlateau has none)."""
        for base, user in zip(self._bases() or (), self._user or (), strict=False):
            if user:
                return float(base / user)
        return self._carried()

    def write(self, scale: float) -> None:
        self._scale(scale, IN_GROUPS)
        for scheduler in self._saying:
            if hasattr(scheduler, "_last_lr"):
                scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def yield_to(self, scale: float) -> None:
        """The rates in the groups were set by somebody else and stay; what they are a multiple of is noted."""
        self._scale(scale, IN_GROUPS[1:])

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler is known that sets the rates."""
        return bool(self._schedulers)

    def rates(self) -> list[float]:
        """What the next optimizer step uses, by group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def as_scheduled(self, rates: list[float]) -> bool:
        """Whether a known scheduler says that it set these."""
        said = [scheduler._last_lr for scheduler in self._saying if hasattr(scheduler, "_last_lr")]
        return self.scheduled and (not said or any(equal(list(map(float, last)), rates) for last in said))

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
            # From the user's own, so that a hundred changes round no further than one.
            for index, user in enumerate(self._user[: len(bases)]):
                bases[index] = user * scale

    def current_rate(self) -> float:
        """The rate that the next optimizer step uses."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _carried(self) -> float:
        return float(self.optimizer.param_groups[0].get(KEY, 1.0))

    def _bases(self) -> list[float] | None:
        """The first scheduler's own list."""
        for scheduler in self._schedulers:
            bases: list[float] | None = getattr(scheduler, "base_lrs", None)
            if bases:
                return bases
        return None


def equal(some: list[float], others: list[float]) -> bool:
    """Up to rounding; groups that were added since are left out."""
    return all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(some, others, strict=False))


def _with_containers(scheduler: Any) -> list[Any]:
    if scheduler is None:
        return []
    inner = getattr(scheduler, "_schedulers", None) or ()
    return [scheduler, *(one for part in inner for one in _with_containers(part))]


def _leaves(scheduler: Any) -> list[Any]:
    """SequentialLR and ChainedScheduler keep others, each with base rates of its own."""
    if scheduler is None:
        return []
    inner = getattr(scheduler, "_schedulers", None)
    return [leaf for one in inner for leaf in _leaves(one)] if inner else [scheduler]
