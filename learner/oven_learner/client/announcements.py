"""Actuators that came, or changed, in a running training: from the training's word to the log, on every rank alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from oven_core.errors import UnknownNameError, reason
from oven_core.protocol.messages import ActuatorSpec
from oven_learner.actuators import Actuators, with_value
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")


class Announcements:
    """One client's. `due` and `take` are called on every rank at the same steps."""

    def __init__(self, actuators: Actuators, ranks: Ranks) -> None:
        self._actuators, self._ranks = actuators, ranks
        self._asked: dict[str, None] = {}  # names, in order, that rank 0 has not told the others
        self._due: dict[str, None] = {}  # those that all ranks know of

    def ask(self, name: str) -> None:
        """Announce it at the next boundary. Rank 0's word goes. Raises UnknownNameError."""
        if name not in self._actuators:
            raise UnknownNameError("actuator", name, self._actuators)
        if self._ranks.leader:
            self._asked[name] = None

    def asked(self) -> tuple[str, ...]:
        """Rank 0's, for all ranks; once."""
        names, self._asked = tuple(self._asked), {}
        return names

    def take(self, names: Sequence[str]) -> None:
        """What rank 0 wants announced."""
        self._due.update(dict.fromkeys(names))

    def publish(self, say: Callable[[ActuatorSpec], object]) -> None:
        """A collective where something is due: each, with the value that it reads now, or why not, in the process log:
        ranks that would take different decisions must not be given any."""
        due, self._due = self._due, {}
        for name in due:
            each = self._ranks.each(self._spec(name))
            failed = next((found for found in each if isinstance(found, str)), "")
            others = [rank for rank, found in enumerate(each) if found != each[0]]
            if failed or others:
                why = failed or f"ranks 0 and {others[0]} have {each[0]} and {each[others[0]]}; change it on all alike"
                log.error("%s is not announced: %s", name, why)
            elif isinstance(spec := each[0], ActuatorSpec):
                log.info("announced %s", name)
                say(spec)

    def _spec(self, name: str) -> ActuatorSpec | str:
        """On this rank."""
        try:
            return with_value(self._actuators.spec(name), self._actuators.read(name))
        except Exception as error:
            return f"it cannot be read: {reason(error)}"
