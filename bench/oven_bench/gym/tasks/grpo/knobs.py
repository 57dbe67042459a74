"""The knobs of the GRPO trainee. They override the user's settings, which a fault may have changed."""

from __future__ import annotations

from collections.abc import Mapping

from oven_bench.gym.sorting.sorting_task import JUDGES, LEVELS
from oven_learner.actuators import Actuators

SIMPLEXES = {"data.mixture": LEVELS, "reward.weights": JUDGES}


class Knobs:
    """The learning rate's scale multiplies the user's rate. Every other knob replaces its setting once it is set."""

    def __init__(self, settings: Mapping[str, float]) -> None:
        """`settings` are read anew at each use."""
        self._settings = settings
        self._scale = 1.0
        self._scalars: dict[str, float] = {}
        self._simplexes: dict[str, dict[str, float]] = {}
        self.actuators = Actuators()
        scalar, set_to = self.actuators.scalar, self._scalars.update
        scalar("optimizer.lr_scale", lambda: self._scale, self._set_scale, low=0.001, high=100, scale="log",
               unit="× the user's schedule")  # fmt: skip
        scalar("grad.clip", lambda: self.clip, lambda to: set_to(clip=to), low=0.01, high=100, scale="log", unit="norm")
        scalar("grpo.beta", lambda: self.beta, lambda to: set_to(beta=to), low=0, high=2, moves_own_metric=True)
        for name in SIMPLEXES:
            self._announce(name)

    @property
    def learning_rate(self) -> float:
        return self._settings["learning_rate"] * self._scale

    @property
    def clip(self) -> float:
        return self._scalars.get("clip", self._settings["clip"])

    @property
    def beta(self) -> float:
        return self._scalars.get("beta", self._settings["beta"])

    def simplex(self, name: str) -> dict[str, float]:
        """`data.mixture` by level, or `reward.weights` by judge."""
        return self._simplexes.get(name) or {choice: self._settings[f"{name}/{choice}"] for choice in SIMPLEXES[name]}

    def _announce(self, name: str) -> None:
        self.actuators.simplex(
            name,
            lambda: self.simplex(name),
            lambda shares: self._simplexes.update({name: shares}),
            moves_own_metric=True,
        )

    def _set_scale(self, value: float) -> None:
        self._scale = value
