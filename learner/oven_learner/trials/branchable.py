"""What a trial asks of a training: its whole state copied and put back, and a held-out reading of each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from oven_core.protocol.messages import MetricSpec


class Branchable(Protocol):
    """A training that can be taken back to a state and play the same steps again, bit for bit.

    All that the next steps depend on is in a state: weights that train, optimizer, scheduler, scaler, accumulation,
    random generators, the place in the data, buffered completions, the optimizer step. Settings that are actuators are
    in it only as far as they live there; who restores sets the actuators again.
    """

    by_clock: bool
    """Whether a reading that takes longer than an arm's steps rules out further trials. Not where runs have to be
    repeatable: there nothing may depend on the clock."""

    lagging: frozenset[str]
    """Actuators whose change shows in data that is read later than a trial plays."""
    by_steps: bool
    """Whether what a step does may follow from its number, as where a loop sets its own rate."""

    @property
    def reading(self) -> MetricSpec:
        """The held-out metric that `examples` measures, and which way is better. Only where there is no `problem`."""

    def problem(self) -> str:
        """Why no trial can be made of this training, in a sentence with the remedy; empty where one can."""

    def take(self) -> Any:
        """A copy that training cannot touch. What is read from now on is recorded, so that it can be given again."""

    def restore(self, state: Any) -> None:
        """Exactly the state of then. It can be restored again."""

    def examples(self) -> Sequence[float]:
        """The reading of each held-out example, the same ones in the same order each time. Changes no bit of the
        training: modes and random generators are as before."""

    def finish(self) -> None:
        """The trial is over: what was recorded and lies behind is let go; what lies ahead is still given."""
