"""Models that operators offer to committee members: probed beside the training, a choice from a step boundary on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from oven_controller.errors import reason
from oven_controller.protocol.judge_spec import member_of
from oven_controller.protocol.operator_messages import OFFER, OperatorCommand
from oven_learner.actuators import Actuators, Applied

log = logging.getLogger("oven.learner")


@dataclass(frozen=True, slots=True)
class Offered:
    """An offer that is through, and why it is refused; empty if it is not."""

    command: OperatorCommand
    refused: str


class JudgeOffers:
    """One client's. Rank 0 alone probes; `take` is called on every rank at the same steps."""

    def __init__(self, actuators: Actuators) -> None:
        self._actuators = actuators
        self._probing: dict[str, tuple[OperatorCommand, Future[str]]] = {}  # actuator → under way
        self._through: list[Offered] = []
        self._owed: list[tuple[OperatorCommand, Applied]] = []

    def begin(self, command: OperatorCommand) -> None:
        """Rank 0's: probe what the command offers. Never raises, and never waits."""
        refused = self._begun(command)
        if refused:
            self._through.append(Offered(command, refused))

    def through(self) -> tuple[Offered, ...]:
        """Offers whose probe is over, each once."""
        for name, (command, probe) in [*self._probing.items()]:
            if probe.done():
                del self._probing[name]
                self._through.append(Offered(command, _outcome(probe)))
        done, self._through = tuple(self._through), []
        return done

    def take(self, offered: Offered, announce: Callable[[str], object]) -> None:
        """What is not refused becomes a choice, which has to be announced before the offer is answered."""
        command, name = offered.command, offered.command.actuator
        if offered.refused:
            self._owed.append((command, self._unchanged("rejected", name, offered.refused)))
            return
        offers = self._actuators.offers(name)
        assert offers is not None and command.judge is not None  # or it would have been refused
        self._actuators.update(name, choices=offers.add(command.judge))
        announce(name)
        said = f"{command.judge.identity} answers and can be chosen"
        self._owed.append((command, self._unchanged("noop", name, said)))

    def answers(self) -> list[tuple[OperatorCommand, Applied]]:
        """What is to be said of offers, each once: after what they announced."""
        owed, self._owed = self._owed, []
        return owed

    def end(self) -> list[tuple[OperatorCommand, Applied]]:
        """The same at the end of the run: what is still probed has come too late."""
        late = [command for command, _ in self._probing.values()] + [one.command for one in self._through]
        self._probing.clear()
        self._through.clear()
        return self.answers() + [(one, Applied("expired", reason="the run ended first")) for one in late]

    def _begun(self, command: OperatorCommand) -> str:
        """Why it is refused; empty where it is being probed."""
        name, judge = command.actuator, command.judge
        offers = self._actuators.offers(name)
        if offers is None:
            known = [known for known in self._actuators if self._actuators.offers(known) is not None]
            return f"there is no judge to be swapped at {name!r}; there are {', '.join(known) or 'none'}"
        if judge is None:
            return "the offer names no model"
        if name in self._probing:
            under_way = self._probing[name][0].judge
            other = under_way.identity if under_way is not None else "another model"
            return f"{other} is being probed for {member_of(name)} now; say it again when that is through"
        try:
            self._probing[name] = (command, offers.probe(judge))
        except Exception as error:
            return reason(error)
        return ""

    def _unchanged(self, status: str, name: str, why: str) -> Applied:
        present = self._actuators.read(name) if name in self._actuators else None
        log.info("offer for %s: %s", name, why)
        return Applied(status, present, present, why)  # type: ignore[arg-type]


def is_offer(order: object) -> bool:
    """Whether it is an operator's offer of a model."""
    return isinstance(order, OperatorCommand) and order.action == OFFER


def _outcome(probe: Future[str]) -> str:
    try:
        return probe.result()
    except BaseException as error:  # cancelled, too
        return f"the probe failed: {reason(error)}"
