"""Announces actuators that were added or changed during training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from oven_core.errors import UnknownNameError, reason
from oven_core.protocol.messages import ActuatorSpec
from oven_learner.actuators import Actuators, with_value
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")


class Announcements:
    """The announcements of one client. Every rank calls `add_due` and `publish` at the same steps."""

    def __init__(self, actuators: Actuators, ranks: Ranks) -> None:
        self._actuators, self._ranks = actuators, ranks
        self._requested: dict[str, None] = {}  # names in order, which rank 0 has not sent to the others yet
        self._due: dict[str, None] = {}  # names that all ranks have

    def request(self, name: str) -> None:
        """Announce the actuator at the next step boundary. The request of rank 0 counts. Raises UnknownNameError."""
        if name not in self._actuators:
            raise UnknownNameError("actuator", name, self._actuators)
        if self._ranks.leader:
            self._requested[name] = None

    def take_requests(self) -> tuple[str, ...]:
        """Return the requests of rank 0, once, for all ranks."""
        names, self._requested = tuple(self._requested), {}
        return names

    def add_due(self, names: Sequence[str]) -> None:
        """Announce these actuators at the next `publish`."""
        self._due.update(dict.fromkeys(names))

    def publish(self, send: Callable[[ActuatorSpec], object]) -> None:
        """Send each due announcement with the actuator's present value.

        An actuator that cannot be read, or that differs between ranks, is not announced: ranks that would act
        differently must get no decisions for it. The process log says why. A collective if something is due.
        """
        due, self._due = self._due, {}
        for name in due:
            by_rank = self._ranks.each(self._spec_or_failure(name))
            failure = next((outcome for outcome in by_rank if isinstance(outcome, str)), "")
            differing = [rank for rank, outcome in enumerate(by_rank) if outcome != by_rank[0]]
            if failure or differing:
                why = failure or (
                    f"ranks 0 and {differing[0]} have {by_rank[0]} and {by_rank[differing[0]]}; change it on all alike"
                )
                log.error("%s is not announced: %s", name, why)
            elif isinstance(spec := by_rank[0], ActuatorSpec):
                log.info("announced %s", name)
                send(spec)

    def _spec_or_failure(self, name: str) -> ActuatorSpec | str:
        try:
            return with_value(self._actuators.spec(name), self._actuators.read(name))
        except Exception as error:
            return f"it cannot be read: {reason(error)}"
