"""How long a command waits for its receipt: by the step boundaries that pass, or by a limit in seconds."""

from __future__ import annotations

from typing import Final

BOUNDARIES: Final = 2
"""A command that comes within a step is obeyed at its end; a decision that it leads to, at the end of the next."""
LEAST_S: Final = 5.0
"""Waited in any case, in seconds: where steps last milliseconds, two of them say nothing of the mesh."""
SETTLE_S: Final = 1.0
"""After the last boundary, in seconds: a receipt comes on another subject than the step's observation."""
STILL_S: Final = 60.0
"""Without a step, in seconds: a run that is held or stuck, or whose learner is gone, ends none."""
STEPS_LONG: Final = 3.0
"""Of the newest step's length, where that is known and more than STILL_S: a run with long steps is not stuck."""


class ReceiptWait:
    """The deadline of one command. Times are of one clock, in seconds."""

    def __init__(self, now: float, limit_s: float | None = None) -> None:
        """`limit_s`: as a person said; None: by the steps."""
        self._began = self._moved = now
        self._limit_s = limit_s
        self._tick: int | None = None
        self._step_s = 0.0
        self.boundaries = 0
        """Step boundaries since the command was logged."""

    def boundary(self, tick: int, now: float) -> None:
        """The learner has reported a step; the same one twice counts once."""
        if tick == self._tick:
            return
        self._tick, self._moved = tick, now
        self.boundaries += 1

    def paced(self, step_s: float) -> None:
        """The newest step took so long."""
        self._step_s = step_s

    @property
    def deadline(self) -> float:
        """Until when, as far as is known now; a step moves it."""
        if self._limit_s is not None:
            return self._began + self._limit_s
        if self.boundaries >= BOUNDARIES:
            return max(self._began + LEAST_S, self._moved + SETTLE_S)
        return self._moved + self._still_s

    @property
    def still(self) -> bool:
        """Whether it waits for a step to end."""
        return self._limit_s is None and self.boundaries < BOUNDARIES

    @property
    def _still_s(self) -> float:
        return max(STILL_S, STEPS_LONG * self._step_s)

    def waited(self) -> str:
        """How long it was, in words that complete a sentence."""
        if self._limit_s is not None:
            return f"within {self._limit_s:g} s"
        if self.boundaries >= BOUNDARIES:
            return f"within {self.boundaries} steps"
        return f"within {self._still_s:.0f} s in which no step ended"
