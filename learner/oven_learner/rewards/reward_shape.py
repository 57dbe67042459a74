"""The interface for custom rewards, instead of the members' aggregate of the policy's completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators


class RewardShape(Protocol):
    """Controls what members see of a batch and how their scores become rewards.

    The members' scores are then combined by weighted mean, which stays on their scale. The cautious aggregate is
    standardised per group and may leave [0, 1].
    """

    def shown(
        self, prompts: Sequence[Any], written: Sequence[str], columns: Mapping[str, Any]
    ) -> tuple[list[str], list[str]]:
        """Return the prompts and completions that members see, one per row. Raises ConfigError if the data lacks a
        column."""

    def rewards(self, written: Sequence[str], merits: Sequence[float]) -> list[float]:
        """Return one reward per completion of a group, from the policy's text and the members' mean score."""

    def measured(
        self, written: Sequence[Sequence[str]], merits: Sequence[Sequence[float]], rewards: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Return a batch's metrics over its scored groups, without unmeasured ones."""

    def announced(self) -> tuple[MetricSpec, ...]:
        """Return the metrics of `measured`."""

    def announce(self, actuators: Actuators) -> None:
        """Register its actuators."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's state."""
