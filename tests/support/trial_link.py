"""A link that orders a trial at a tick, and hears what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from oven_core.protocol.messages import LearnerMessage, LogMessage, Observation, RunStarted, Value
from oven_core.protocol.trial_messages import BranchObservation, TrialArm, TrialEnded, TrialStarted
from oven_learner.testing import FakeLink


def order(
    tick: int,
    *changes: Mapping[str, Value],
    steps: int = 4,
    cooldown: int = 0,
    margin: float = 2.0,
    reading: str = "eval/loss",
) -> TrialStarted:
    """A trial with the control and one arm for each of `changes`."""
    arms = [TrialArm(decisions=tuple(f"d{n}-{name}" for name in one), changes=one) for n, one in enumerate(changes)]
    return TrialStarted(
        id=f"t{tick}",
        tick=tick,
        expires_at_tick=tick + 20,
        arms=(TrialArm(), *arms),
        steps=steps,
        cooldown=cooldown,
        reading=reading,
        margin=margin,
    )


class TrialLink(FakeLink):
    """`orders`: each is given to the learner once its tick was observed. `heard` is called with every message that the
    learner sends, and may return one to give it."""

    def __init__(
        self,
        *orders: TrialStarted,
        plan: Mapping[int, tuple[str, Value]] | None = None,
        heard: Callable[[LearnerMessage], LogMessage | None] = lambda message: None,
    ) -> None:
        super().__init__(plan)
        self._orders, self._heard = list(orders), heard

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        super().send(make, droppable=droppable)
        message = self.sent[-1]
        if isinstance(message, Observation):
            for one in [one for one in self._orders if one.tick <= message.tick]:
                self._orders.remove(one)
                self.incoming.append(one)
        if (answer := self._heard(message)) is not None:
            self.incoming.append(answer)

    def ended(self) -> list[TrialEnded]:
        return [message for message in self.sent if isinstance(message, TrialEnded)]

    def branches(self, arm: int) -> Sequence[BranchObservation]:
        return [message for message in self.sent if isinstance(message, BranchObservation) and message.arm == arm]

    def announced(self) -> str:
        """By which metric the learner says that trials compare."""
        return next(message.trials for message in self.sent if isinstance(message, RunStarted))
