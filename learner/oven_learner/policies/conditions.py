"""Where a trainer's conditions come from: a list in a drawn order, or the user's own source."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from oven_core.errors import ConfigError


@runtime_checkable
class ConditionSource(Protocol):
    """Gives conditions, as many as are asked for. Where it has `state_dict` and `load_state_dict`, checkpoints keep its
    place."""

    def next_batch(self, n: int) -> Sequence[Any]:
        """The next n."""


class Shuffled:
    """A list over and over, each time in another order, which the seed and the epoch decide."""

    def __init__(self, conditions: Sequence[Any], seed: int) -> None:
        if not conditions:
            raise ConfigError("there are no conditions to sample for; give at least one")
        self._conditions, self._seed, self._given = list(conditions), seed, 0

    def next_batch(self, n: int) -> list[Any]:
        """The next n, over the list's end into its next order."""
        return [self._conditions[self._place()] for _ in range(n)]

    def state_dict(self) -> dict[str, Any]:
        """How many were given."""
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after as many."""
        self._given = int(state["given"])

    def _place(self) -> int:
        epoch, place = divmod(self._given, len(self._conditions))
        self._given += 1
        order = list(range(len(self._conditions)))
        random.Random(f"conditions {self._seed} {epoch}").shuffle(order)
        return order[place]


def source_of(conditions: Any, seed: int) -> ConditionSource:
    """A list's, or what was given where it is a source. Raises ConfigError for neither."""
    if isinstance(conditions, ConditionSource):
        return conditions
    if isinstance(conditions, Sequence) and not isinstance(conditions, str):
        return Shuffled(conditions, seed)
    raise ConfigError(f"conditions are {type(conditions).__name__}; give a list, or an object with next_batch(n)")
