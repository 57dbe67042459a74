"""Arms: who steers an episode. All see the same observations, and turn the same knobs, through the same client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Protocol, runtime_checkable

from oven_bench.fixed_rules import Rule, RuleLink
from oven_learner.link.link_interface import Link


class Arm(Protocol):
    """`link` is a run's other side: it gets what the learner publishes and gives decisions back, within the process."""

    @property
    def name(self) -> str: ...

    def link(self, run: str, rng: Random) -> Link:
        """For one episode. `run` tells nothing of the fault; `rng` is the arm's own, and tells nothing of it either."""


@dataclass(frozen=True)
class RuleArm:
    """An arm that is a fixed rule: `make` gives a new one for each episode, from the arm's own generator."""

    name: str
    make: Callable[[Random], Rule]

    def link(self, run: str, rng: Random) -> Link:
        return RuleLink(self.make(rng))


@runtime_checkable
class Reporting(Protocol):
    """A link that has something to say of its episode when it is over, for the results and for arms that learn."""

    def report(self) -> Any:
        """Plain values, as JSON has them."""


@runtime_checkable
class Trying(Protocol):
    """An arm that may have changes tried on a branch before they are kept."""

    @property
    def tries(self) -> bool | str:
        """Whether it does, or which changes (rules.trials); to arms where it is false or empty the learner announces no
        trials."""


@runtime_checkable
class KeepingBest(Protocol):
    """An arm whose training keeps a copy at its best held-out reading."""

    @property
    def keeps_best(self) -> bool:
        """Whether it does; to the others no `run.best` is announced."""


@runtime_checkable
class LearnsFromArm(Protocol):
    """An arm that goes by what another arm's episodes taught: it is run when those are done."""

    learns_from: ClassVar[str]
    """The other arm's name. Its links are `Reporting`."""

    def learn(self, past: Sequence[Any]) -> None:
        """Before each `link`: what was kept of the other's episodes. Of training families only, never of the family
        that comes nor, where several tasks were played, of its task, and without a family's name."""
