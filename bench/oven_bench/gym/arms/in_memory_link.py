"""A link whose other side is the whole controller: what the learner says is decided upon before it continues."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oven_agents.runtime.closed_loop import ClosedLoop, Participant
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, LogMessage, Observation, Outcome, RunStarted
from oven_core.protocol.rules import Rules
from oven_learner.link.link_interface import Make
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import Parcel


class LoopLink:
    """The real mesh and its participants. A decision waits for the next step boundary, as on a bus that is never late:
    in lockstep by construction, whether the client asks for it or not."""

    dropped = 0

    def __init__(
        self, run: str, participants: Iterable[Participant], rules: Callable[[Rules], Rules] = lambda rules: rules
    ) -> None:
        """`rules` makes those to decide by from those that the client announces."""
        self._run = run
        self._loop = ClosedLoop(run, participants)
        self._rules = rules
        self._inbox: deque[LogMessage] = deque()

    @property
    def events(self) -> Sequence[Event]:
        """The run's whole log."""
        return self._loop.events

    def open(self) -> ResumeState:
        """As a learner that starts again would find it: nothing is unanswered, since nothing is ever late."""
        bodies = [event.body for event in self.events]
        started = next((body for body in reversed(bodies) if isinstance(body, RunStarted)), None)
        if started is None:
            return ResumeState()
        tick = max((body.tick for body in bodies if isinstance(body, Observation)), default=started.tick)
        decided = frozenset(body.id for body in bodies if isinstance(body, Decision))
        return ResumeState(started.incarnation, tick, len(bodies), decided=decided, training=started.training)

    def begin(self) -> None:
        pass

    def send(self, make: Make, *, droppable: bool = False) -> None:
        message = make()
        if isinstance(message, RunStarted):
            message = message.model_copy(update={"rules": self._rules(message.rules)})
        self._inbox.extend(self._loop.send(message))

    def show(self, make: Parcel) -> None:
        pass

    def receive(self) -> LogMessage | None:
        return self._inbox.popleft() if self._inbox else None

    def close(self, timeout_s: float) -> bool:
        return True

    def report(self) -> dict[str, Any]:
        """`outcomes`: the mesh's own, in which every voter's probability stands next to its outcome."""
        return {"outcomes": [json.loads(event.data) for event in self.events if isinstance(event.body, Outcome)]}
