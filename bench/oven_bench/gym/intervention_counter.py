"""Between the client and an arm's link: counts what was carried out, and lets no error of the arm pass for calm."""

from __future__ import annotations

from collections.abc import Callable

from oven_core.protocol.messages import Decision, LearnerMessage, LogMessage, Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.trial_messages import TrialStarted
from oven_learner.link.link_interface import Link
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import Parcel


class InterventionCounter:
    """A link like the one it has. `interfering` is called before the client hears of a decision, unless
    that changes nothing before the end."""

    def __init__(self, link: Link, interfering: Callable[[], object], held: Callable[[], bool]) -> None:
        self.interventions = 0
        """Changes that the receipts say were applied, and the best weights where the run ended with them."""
        self.failure: Exception | None = None
        """What the arm raised: the client of a real run trains on, and here that would look like an arm at ease."""
        self._over = False
        self._idle: frozenset[str] = frozenset()  # what is announced as no intervention
        self._at_end: frozenset[str] = frozenset()  # what only shows at the end
        self._link, self._interfering, self._held = link, interfering, held

    @property
    def dropped(self) -> int:
        return self._link.dropped

    def open(self) -> ResumeState:
        return self._link.open()

    def begin(self) -> None:
        self._link.begin()

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        message = make()
        if isinstance(message, RunStarted):
            self._idle = frozenset(spec.name for spec in message.actuators if not spec.intervenes)
            self._at_end = frozenset(spec.name for spec in message.actuators if spec.effect == "at_end")
        if isinstance(message, Receipt) and message.status == "applied":
            at_the_end = message.actuator in self._at_end and not message.decision_id
            self.interventions += at_the_end or bool(message.decision_id and message.actuator not in self._idle)
        try:
            self._link.send(lambda: message, droppable=droppable)
        except Exception as error:
            self.failure = self.failure or error
            raise

    def show(self, make: Parcel) -> None:
        self._link.show(make)

    def receive(self) -> LogMessage | None:
        if self._held() and not self._over:  # nobody is there to resume it
            self._over = True
            return OperatorCommand(id="over", action="stop", reason="the run is held, and the episode ends")
        try:
            body = self._link.receive()
        except Exception as error:
            self.failure = self.failure or error
            raise
        adopted = isinstance(body, Decision) and body.verdict == "adopted" and body.actuator not in self._at_end
        if isinstance(body, TrialStarted) or adopted:
            self._interfering()
        return body

    def close(self, timeout_s: float) -> bool:
        return self._link.close(timeout_s)
