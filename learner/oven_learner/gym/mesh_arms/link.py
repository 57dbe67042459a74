"""A link whose other side is the whole controller: the real mesh and its agents, in lockstep because nobody waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from oven_controller.closedloop import ClosedLoop, Participant
from oven_controller.events import Event
from oven_controller.messages import Body, Receipt, RunStarted
from oven_controller.rules import Rules
from oven_learner.outbox import Make
from oven_learner.past import Past


class LoopLink:
    """What the learner publishes is decided upon before `send` returns: a decision waits for the next step boundary, as
    on a bus that is never late. `rules` are the run's, whatever the client announces."""

    dropped = 0

    def __init__(self, run: str, participants: Iterable[Participant], rules: Rules) -> None:
        self._loop = ClosedLoop(run, participants)
        self._rules = rules
        self._inbox: deque[Body] = deque()

    @property
    def events(self) -> Sequence[Event]:
        """The run's whole log."""
        return self._loop.events

    @property
    def interventions(self) -> int:
        """Decisions that changed something, by their receipts."""
        bodies = (event.body for event in self.events)
        return sum(isinstance(body, Receipt) and body.status == "applied" and bool(body.decision_id) for body in bodies)

    def open(self) -> Past:
        return Past()

    def begin(self) -> None:
        pass

    def send(self, make: Make, *, droppable: bool = False) -> None:
        message = make()
        if isinstance(message, RunStarted):
            message = message.model_copy(update={"rules": self._rules})
        self._inbox.extend(self._loop.hear(message))

    def receive(self) -> Body | None:
        return self._inbox.popleft() if self._inbox else None

    def close(self, timeout_s: float) -> bool:
        return True
