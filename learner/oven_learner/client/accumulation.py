"""The knob `data.accumulation`: the number of micro-batches per optimizer step of a custom loop."""

from __future__ import annotations

from typing import Any, Self

from oven_core.errors import ConfigError
from oven_learner.actuators import USED, Actuators, Usage

NAME = "data.accumulation"
MAX_FACTOR = 4
"""The knob's upper bound, as a multiple of the user's own number."""
REMEDY = (
    "your loop does not read client.accumulation; read it once per step, run that many micro-batches, and divide the "
    "loss of each by it"
)


class Accumulation:
    """The number of micro-batches per step, and the proof (oven_learner.actuators.Proof) that the loop reads it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._has_read = False
        """Whether the loop has ever read the number."""
        self._usage: Usage = USED

    @classmethod
    def register(cls, actuators: Actuators, user_number: int) -> Self:
        """Register the knob with the user's own number of micro-batches. Raises ConfigError if it is not a number."""
        if isinstance(user_number, bool) or not isinstance(user_number, int) or user_number < 1:
            raise ConfigError(f"accumulation={user_number!r} is not a number of micro-batches; pass 1 or more")
        accumulation, high = cls(user_number), float(MAX_FACTOR * user_number)
        actuators.scalar(
            NAME,
            accumulation._read,
            accumulation._write,
            low=1.0,
            high=high,
            scale="log",
            unit="micro-batches per optimizer step",
            proof=accumulation,
        )
        return accumulation

    def take(self) -> int:
        """Return the number for the next step of the loop."""
        self._has_read, self._usage = True, USED
        return self._number

    def _read(self) -> float:
        return float(self._number)

    def _write(self, number: float) -> None:
        self._number = round(number)

    # The methods below implement `Proof`.

    @property
    def is_certain(self) -> bool:
        """Whether the loop has read the number before, so that it will read it again."""
        return self._has_read

    def refusal(self) -> str:
        """Return the reason and the remedy if the loop has never read the number."""
        return "" if self._has_read else REMEDY

    def begin(self, before: Any) -> None:
        """Wait until the loop reads the number again."""
        self._usage = None

    def usage(self, *, is_final: bool = False) -> Usage:
        """Return USED if the loop has read the number since the change."""
        return self._usage

    def take_undone_change(self) -> None:
        """Return None, because no other code can change the number."""

    def on_restore(self) -> None:
        """Do nothing, because snapshots do not contain the number."""

    def close(self) -> None:
        """Do nothing, because there is nothing to stop."""
