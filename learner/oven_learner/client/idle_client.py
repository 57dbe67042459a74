"""The client where there is no controller, and none is needed: a loop's own limits and requests, and nothing else."""

from __future__ import annotations

import logging

from oven_learner.actuators import Actuators
from oven_learner.client.loop_client import LoopClient
from oven_learner.link.find_controller import Mode
from oven_learner.ranks import Ranks, SilentLink

log = logging.getLogger("oven.learner")


class IdleClient(LoopClient):
    """`observe` says nothing to anybody; `poll` hears of a spent time budget and of `request_stop`, on all ranks."""

    def hold(self, reason: str) -> None:
        """No one could say that it continues."""
        log.warning("without a controller nothing is held: %s", reason)


def idle_client(
    mode: Mode,
    actuators: Actuators,
    *,
    step: int = 0,
    max_steps: int | None = None,
    seconds: float | None = None,
    ranks: Ranks | None = None,
) -> LoopClient:
    """Says so, once."""
    client = IdleClient(SilentLink(), actuators, max_steps=max_steps, seconds=seconds, ranks=ranks)
    client.start(step)
    client.began(step)
    mode.say_why_not()
    return client
