"""Sources of conditions for a PolicyTrainer. A policy draws its samples for a condition, such as a prompt or intent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from oven_core.errors import ConfigError


@runtime_checkable
class ConditionSource(Protocol):
    """An endless source of conditions. If it has `state_dict` and `load_state_dict`, checkpoints save its position."""

    def next_batch(self, n: int) -> Sequence[Any]:
        """Return the next `n` conditions."""


class ShuffledConditions:
    """An endless source that repeats a list in a new order each epoch. The seed and the epoch determine the order."""

    def __init__(self, conditions: Sequence[Any], seed: int) -> None:
        if not conditions:
            raise ConfigError("there are no conditions to sample for; pass at least one")
        self._conditions, self._seed, self._used_count = list(conditions), seed, 0

    def next_batch(self, n: int) -> list[Any]:
        """Return the next `n` conditions. They may span two or more epochs."""
        return [self._next() for _ in range(n)]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of conditions used so far."""
        return {"given": self._used_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the saved number of conditions."""
        self._used_count = int(state["given"])

    def _next(self) -> Any:
        epoch, position = divmod(self._used_count, len(self._conditions))
        self._used_count += 1
        order = list(self._conditions)
        random.Random(f"conditions {self._seed} {epoch}").shuffle(order)
        return order[position]


def as_source(conditions: Any, seed: int) -> ConditionSource:
    """Wrap a list in ShuffledConditions, and return a source unchanged. Raises ConfigError for anything else."""
    if isinstance(conditions, ConditionSource):
        return conditions
    if isinstance(conditions, Sequence) and not isinstance(conditions, str):
        return ShuffledConditions(conditions, seed)
    raise ConfigError(
        f"conditions have the type {type(conditions).__name__}; expected a list, or an object with next_batch(n)"
    )
