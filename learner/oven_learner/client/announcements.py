"""Announces actuators that were added or changed during training, so that agents know their current specs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from oven_core.errors import UnknownNameError, reason
from oven_core.protocol.messages import ActuatorSpec
from oven_learner.actuators import Actuators, with_value
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")


class Announcements:
    """The actuators that one client has to announce. Every rank calls `publish` at the same steps."""

    def __init__(self, actuators: Actuators, ranks: Ranks) -> None:
        self._actuators, self._ranks = actuators, ranks
        self.requested: dict[str, None] = {}
        """Names that rank 0 has not yet sent to the other ranks, in order."""

    def request(self, name: str) -> None:
        """Request an announcement at the next step boundary. Only rank 0's request counts. Raises UnknownNameError."""
        if name not in self._actuators:
            raise UnknownNameError("actuator", name, self._actuators)
        if self._ranks.leader:
            self.requested[name] = None

    def take_requests(self) -> tuple[str, ...]:
        """Return and clear the requests of rank 0, to be sent to all ranks."""
        names, self.requested = tuple(self.requested), {}
        return names

    def publish(self, names: Sequence[str], send: Callable[[ActuatorSpec], object]) -> None:
        """Announce each actuator once, with its current value. All ranks must call this together. Log an error instead
        if the actuator cannot be read, or if it differs between ranks, because decisions would then have different
        effects."""
        for name in dict.fromkeys(names):
            by_rank = self._ranks.all_gather(self._spec_or_problem(name))
            spec = by_rank[0]
            problem = next((entry for entry in by_rank if isinstance(entry, str)), "")
            differing_ranks = [rank for rank, entry in enumerate(by_rank) if entry != spec]
            if differing_ranks and not problem:
                rank = differing_ranks[0]
                problem = f"ranks 0 and {rank} have {spec} and {by_rank[rank]}; make the same change on all ranks"
            if problem:
                log.error("%s was not announced: %s", name, problem)
            elif isinstance(spec, ActuatorSpec):
                log.info("announced %s", name)
                send(spec)

    def _spec_or_problem(self, name: str) -> ActuatorSpec | str:
        try:
            return with_value(self._actuators.spec(name), self._actuators.read(name))
        except Exception as error:
            return f"it cannot be read: {reason(error)}"
