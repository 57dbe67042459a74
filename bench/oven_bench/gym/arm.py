"""Arms: who steers an episode. All see the same observations, and turn the same knobs, through the same client."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, Protocol, runtime_checkable

from oven_learner.link.base import Link


class Arm(Protocol):
    """`link` is a run's other side: it gets what the learner publishes and gives decisions back, within the process."""

    @property
    def name(self) -> str: ...

    def link(self, run: str, rng: Random) -> Link:
        """For one episode. `run` tells nothing of the fault; `rng` is the arm's own, and tells nothing of it either."""


@runtime_checkable
class Keeping(Protocol):
    """A link that has something to say of its episode when it is over, for the results and for arms that learn."""

    def kept(self) -> Any:
        """Plain values, as JSON has them."""


@runtime_checkable
class Learning(Protocol):
    """An arm that goes by what another arm's episodes taught: it is run when those are done."""

    learns_from: ClassVar[str]
    """The other arm's name. Its links are `Keeping`."""

    def learn(self, past: Sequence[Any]) -> None:
        """Before each `link`: what was kept of the other's episodes. Of training families only, never of the family
        that comes, and without a family's name."""
