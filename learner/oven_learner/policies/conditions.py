"""Sources of a trainer's conditions: a shuffled list, or the user's own source."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from oven_core.errors import ConfigError


@runtime_checkable
class ConditionSource(Protocol):
    """Supplies conditions. If it has `state_dict` and `load_state_dict`, checkpoints keep its position."""

    def next_batch(self, n: int) -> Sequence[Any]:
        """Return the next n conditions."""


class Shuffled:
    """Repeats a list forever. The seed and the epoch decide the order of each pass."""

    def __init__(self, conditions: Sequence[Any], seed: int) -> None:
        if not conditions:
            raise ConfigError("there are no conditions to sample for; give at least one")
        self._conditions, self._seed, self._drawn = list(conditions), seed, 0

    def next_batch(self, n: int) -> list[Any]:
        """Return the next n conditions, continuing into the next epoch at the end."""
        return [self._conditions[self._next()] for _ in range(n)]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of conditions drawn so far."""
        return {"given": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after that number."""
        self._drawn = int(state["given"])

    def _next(self) -> int:
        epoch, position = divmod(self._drawn, len(self._conditions))
        self._drawn += 1
        order = list(range(len(self._conditions)))
        random.Random(f"conditions {self._seed} {epoch}").shuffle(order)
        return order[position]


def source_of(conditions: Any, seed: int) -> ConditionSource:
    """Return a source for a list, or the source itself. Raises ConfigError for anything else."""
    if isinstance(conditions, ConditionSource):
        return conditions
    if isinstance(conditions, Sequence) and not isinstance(conditions, str):
        return Shuffled(conditions, seed)
    raise ConfigError(f"conditions are {type(conditions).__name__}; give a list, or an object with next_batch(n)")
