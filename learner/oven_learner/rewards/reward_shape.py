"""What a committee's reward may be made of, where it is not the members' aggregate of what the policy wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators


class RewardShape(Protocol):
    """A view, what the members are shown of a batch, and a form, what becomes of their scores.

    With one the members' scores are combined to their weighted mean, which stays on their scale: the cautious
    aggregate is standardised in its group, and may leave [0, 1].
    """

    def shown(
        self, prompts: Sequence[Any], written: Sequence[str], columns: Mapping[str, Any]
    ) -> tuple[list[str], list[str]]:
        """The prompts and completions that members see, a row each, instead of what the policy saw and wrote. Raises
        ConfigError for data without the columns that it needs."""

    def rewards(self, written: Sequence[str], merits: Sequence[float]) -> list[float]:
        """One reward for each of a group's completions, by what the policy wrote and the members' mean score."""

    def measured(
        self, written: Sequence[Sequence[str]], merits: Sequence[Sequence[float]], rewards: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """The metrics of a batch, by its groups that were scored. Nothing is said of what nothing was measured of."""

    def announced(self) -> tuple[MetricSpec, ...]:
        """The metrics that `measured` may have."""

    def announce(self, actuators: Actuators) -> None:
        """Its knobs."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What one kept."""
