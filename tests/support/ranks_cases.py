"""Cases for three ranks without a bus: an event happens on one of them, and each rank reports its end."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tests.support.decisions import Model, decide

from oven_core.errors import RefusedError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import LogMessage, MetricSpec, Observation, RunEnded, StepClosed
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Rules
from oven_learner.actuators import Actuators
from oven_learner.client.best_weights import BestWeights
from oven_learner.client.inbox import Orders
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.link_interface import Link, SilentLink
from oven_learner.link.resume_state import ResumeState
from oven_learner.optim.rate_knobs import create_rate_knobs
from oven_learner.ranks import Ranks
from oven_learner.rollback.memory_snapshots import Snapshots
from oven_learner.testing import FakeLink


class Case:
    """A client on each rank. Rank 0's has a link that the case writes to."""

    def __init__(self, ranks: Ranks, **settings: Any) -> None:
        self.ranks, self.line, self.model = ranks, settings.pop("line", None) or FakeLink(), Model()
        self.broken = False
        actuators = Actuators()
        actuators.scalar("rate", lambda: self.model.rate, self._write, low=0.01, high=100)
        snapshots = Snapshots(lambda: (self.model.step, None), self._restore)
        link: Link = self.line if ranks.leader else SilentLink()
        kind: type[OvenClient] = settings.pop("kind", OvenClient)
        self.client = kind(link, actuators, ranks=ranks, snapshots=snapshots, max_steps=100, **settings)
        self.client.start()

    def _write(self, value: float) -> None:
        if self.broken:
            raise MemoryError("of this rank")
        self.model.rate = value

    def _restore(self, _: None) -> None:
        if self.broken:
            raise MemoryError("of this rank")

    def say(self, *orders: LogMessage) -> None:
        self.line.incoming.extend(orders)

    def steps(self, limit: int) -> int:
        """Run steps and return how many there were."""
        for step in range(1, limit + 1):
            self.client.observe(step, {})
            self.client.poll()
            if self.client.stopping:
                return step
        return limit

    def end(self, steps: int) -> dict[str, Any]:
        receipts = [(receipt.status, receipt.reason) for receipt in self.line.receipts()]
        return {"steps": steps, "rate": self.model.rate, "stopping": self.client.stop_reason, "receipts": receipts}


def listening_fails(ranks: Ranks) -> dict[str, Any]:
    class Breaking(FakeLink):
        """A link that fails after it delivered a decision, and at every second poll."""

        looks = 0

        def receive(self) -> LogMessage | None:
            self.looks += 1
            if not self.looks % 2:
                raise RuntimeError("no more")
            return super().receive()

    case = Case(ranks, line=Breaking())
    case.say(decide(2.0))
    return case.end(case.steps(3))


def the_time_is_up(ranks: Ranks) -> dict[str, Any]:
    """Each rank has its own clock, and the others' clocks are ahead."""
    case = Case(ranks, seconds=0.2 if ranks.leader else 1e-6)
    return case.end(case.steps(1_000_000))


def rank_0_is_refused(ranks: Ranks) -> dict[str, Any]:
    class Closed(FakeLink):
        def open(self) -> ResumeState:
            raise RefusedError("the server refused the credentials")

    try:
        Case(ranks, line=Closed())
    except RefusedError as error:
        return {"raised": str(error)}
    return {"raised": ""}


def the_client_itself_fails(ranks: Ranks) -> dict[str, Any]:
    """The client fails twice while it holds a decision."""

    class Failing(OvenClient):
        remaining = 2

        def _take_own_requests(self) -> Orders | None:
            if self.remaining:
                self.remaining -= 1
                raise RuntimeError(f"{self.remaining} more")
            return super()._take_own_requests()

    case = Case(ranks, kind=Failing)
    case.say(decide(2.0))
    before = case.steps(2), case.model.rate
    return case.end(case.steps(1)) | {"before": before}


def a_setter_fails_on_rank_1(ranks: Ranks) -> dict[str, Any]:
    case = Case(ranks)
    case.broken = ranks.index == 1
    case.say(decide(2.0))
    return case.end(case.steps(3))


def a_rollback_fails_on_rank_2(ranks: Ranks) -> dict[str, Any]:
    case = Case(ranks)
    case.broken = ranks.index == 2
    case.say(decide(None, actuator="run.rollback"))
    return case.end(case.steps(10))


def rank_2_is_asked_to_end(ranks: Ranks) -> dict[str, Any]:
    case = Case(ranks)
    before = case.steps(5)
    if ranks.index == 2:
        case.client.request_stop("SIGTERM")
    return case.end(before + case.steps(1_000_000))


def held_and_resumed(ranks: Ranks) -> dict[str, Any]:
    class Patient(FakeLink):
        """A link that resumes the run after some polls."""

        looks = 0

        def receive(self) -> LogMessage | None:
            self.looks += 1
            if self.looks == 10:
                self.incoming.append(decide(3.0, apply_at=90, expires=99))
            if self.looks == 20:
                self.incoming.append(OperatorCommand(id="b", action="resume"))
            return super().receive()

    case = Case(ranks, line=Patient())
    case.say(OperatorCommand(id="a", action="hold", reason="a look"))
    return case.end(case.steps(1))


def an_actuator_is_announced(ranks: Ranks) -> dict[str, Any]:
    """An actuator is announced alike on all ranks, then with other bounds on rank 1."""
    case = Case(ranks)
    before = case.steps(2)
    for high in (200.0, 300.0 + (ranks.index == 1)):
        case.client.actuators.update("rate", high=high)
        case.client.announce("rate")
        before += case.steps(2)
    case.say(decide(150.0))
    highs = [message.actuator.high for message in case.line.sent if isinstance(message, ActuatorAnnounced)]
    return case.end(before + case.steps(2)) | {"announced": highs}


def in_lockstep(ranks: Ranks) -> dict[str, Any]:
    class Mesh(FakeLink):
        """A link that decides after each observation and closes its tick two polls later."""

        looks = 0

        def receive(self) -> LogMessage | None:
            seen = [message for message in self.sent if isinstance(message, Observation)]
            self.looks += 1
            if seen and not self.looks % 3 and seen[-1].tick * 3 > self.looks - 3:
                tick = seen[-1].tick
                self.incoming.extend([decide(1.0 + tick, number=tick, apply_at=tick + 1), StepClosed(tick=tick)])
            return super().receive()

    case = Case(ranks, line=Mesh(), lockstep=ranks.leader)
    rates = []
    for step in range(1, 4):
        case.client.observe(step, {})
        case.client.poll()
        rates.append(case.model.rate)
    case.client.close("completed")
    ended = case.line.sent[-1] if ranks.leader else None
    timeouts = ended.lockstep_timeouts if isinstance(ended, RunEnded) else 0
    return case.end(3) | {"rates": rates, "timeouts": timeouts}


def the_rate_is_read_back(ranks: Ranks) -> dict[str, Any]:
    """Rank 0 alone knows that it is in lockstep. On the second pass every rank's loop sets the rate itself."""
    readings: dict[str, Any] = {"rates": [], "status": []}
    for overwrites in (False, True):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        knobs = create_rate_knobs(optimizer, None if overwrites else schedule)
        actuators, line = Actuators(), FakeLink()
        knobs.register(actuators, (0.1, 3.0), 5)
        line.incoming.extend([decide(0.5, actuator="optimizer.lr_scale"), *(StepClosed(tick=n) for n in range(1, 6))])
        client = OvenClient(line if ranks.leader else SilentLink(), actuators, ranks=ranks, lockstep=ranks.leader)
        client.start()
        for step in range(1, 6):
            if overwrites:
                optimizer.param_groups[0]["lr"] = 0.1
            optimizer.step()
            readings["rates"].append(knobs.readbacks[0].used_rate)
            schedule.step()
            client.observe(step, {})
            client.poll()
        readings["status"].append(actuators.read("optimizer.lr_scale"))
        readings["receipts"] = [*readings.get("receipts", []), *(receipt.status for receipt in line.receipts())]
        client.close("completed")
    return readings


def each_measures(ranks: Ranks) -> dict[str, Any]:
    case = Case(ranks, averaged_metrics=("loss", "eval/loss", "nobody's"))
    mine = {"eval/loss": 5.0} if ranks.index == 1 else {}
    case.client.observe(1, {"loss": 1.0 + ranks.index, "own": float(ranks.index), **mine})
    case.client.observe(2, {"loss": float("nan") if ranks.index == 2 else 1.0})
    seen = [message.metrics for message in case.line.sent if isinstance(message, Observation)]
    return {"seen": [{name: repr(value) for name, value in metrics.items()} for metrics in seen]}


def all_end_with_the_best(ranks: Ranks) -> dict[str, Any]:
    """The readings differ by rank: rank 2's alone would choose other weights. Then one rank cannot read."""
    results: dict[str, Any] = {"weights": [], "said": []}
    for fails in (False, True):
        state = {"weight": 0}

        def read(state: dict[str, int] = state, fails: bool = fails) -> float:
            if fails and ranks.index == 1 and state["weight"] == 2:
                raise OSError("the file is not on this machine")
            return {1: 3.0, 2: 1.0, 3: 2.0}[state["weight"]] * (-0.1 if ranks.index == 2 else 1.0)

        def restore(weight: int, state: dict[str, int] = state) -> None:
            state["weight"] = weight

        best = BestWeights(
            MetricSpec(name="eval/loss", better="down", held_out=True),
            copy=partial(state.__getitem__, "weight"),
            restore=restore,
            measure=read,
            ranks=ranks,
        )
        case = Case(ranks, best=best)
        case.say(decide("best", actuator="run.best", apply_at=2))
        for step in (1, 2, 3):
            state["weight"] = step
            case.client.observe(step, {})
            case.client.record_evaluation({} if ranks.index == 0 else {"eval/loss": {1: 3.0, 2: 1.0, 3: 2.0}[step]})
            case.client.poll()
        case.client.finish()
        results["weights"].append(state["weight"])
        results["said"] += [
            (receipt.status, receipt.reason) for receipt in case.line.receipts() if not receipt.decision_id
        ]
    return results


def rank_0_has_the_rules(ranks: Ranks) -> dict[str, Any]:
    """The rules let agents evaluate, and only rank 0 has them."""
    case = Case(ranks, rules=Rules(autonomy="auto") if ranks.leader else None)
    evaluated: list[int] = []
    case.client.actuators.action("run.evaluate", lambda _: evaluated.append(case.client.tick), effect="measures")
    case.client.record_evaluation({"eval/loss": 1.0})
    for step in range(1, 6):
        case.client.observe(step, {})
        if evaluated and evaluated[-1] == step - 1:
            case.client.record_evaluation({"eval/loss": 1.0})
        case.client.poll()
    return {"evaluated": evaluated}


CASES = (
    rank_0_has_the_rules,
    all_end_with_the_best,
    listening_fails,
    the_time_is_up,
    rank_0_is_refused,
    the_client_itself_fails,
    a_setter_fails_on_rank_1,
    a_rollback_fails_on_rank_2,
    rank_2_is_asked_to_end,
    held_and_resumed,
    an_actuator_is_announced,
    in_lockstep,
    the_rate_is_read_back,
    each_measures,
)
