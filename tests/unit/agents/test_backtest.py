"""An agent over a recorded run: its own votes again, votes in place of others, and what it is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from tests.support.mesh_log import LR, RUN, Log

from oven_agents import Agent, Vote, Window
from oven_agents.review.backtest import Backtest
from oven_agents.review.review_command import review
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import without_graph
from oven_agents.shipped.learning_rate import LearningRate
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    Decision,
    MetricSpec,
    Observation,
    Receipt,
    RunEnded,
)
from oven_runs.log.replay import replay


class Cutter(Agent):
    """Halves the rate at every fifth tick."""

    needs = ("loss",)
    moves = (LR,)
    sure: ClassVar[float] = 0.9

    def vote(self, window: Window) -> Vote | None:
        if window.tick % 5:
            return None
        value = window.knobs[LR].number / 2
        return window.propose(
            LR, value, confidence=self.sure, why="it is time", target="loss", expected_change=-0.1, horizon=2
        )


class Unsure(Cutter):
    sure = 0.5


def backtest(agent: Agent, name: str, events: list[Event]) -> Backtest:
    test = Backtest(agent, name, RUN)
    for entry in events:
        test.add(entry)
    return test


class Lockstep:
    """A learner, a mesh and one agent, as in lockstep: the agent votes before the next tick, and what was decided
    is carried out before it. The loss falls by itself and the reward with the rate's distance from 4."""

    def __init__(
        self, agent: Agent, name: str, ticks: int, anew: Mapping[int, ActuatorSpec] | None = None, **rules: object
    ) -> None:
        """`anew`: tick → what the learner announces after it."""
        self.log, self.name = Log(stride=1), name
        self.session = Session(agent, name)
        self.scale = 1.0
        metrics = tuple(MetricSpec(name=n) for n in ("loss", "reward", "optim/grad_momentum_cos"))
        specs = (
            ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.01, high=100, value=1.0),
            ACTUATORS["run.rollback"],
        )
        self.read_events = 0
        self.react()
        self.log.start(specs, metrics=metrics, lockstep=True, **{"evidence_kinds": 1, **rules})  # type: ignore[arg-type]
        self.react()
        for tick in range(1, ticks + 1):
            seen = {"loss": 1 / tick, "reward": 0.1, "optim/grad_momentum_cos": 0.5 if self.scale < 16 else 0.0}
            body = Observation(**self.log.stamp(), tick=tick, step=tick, progress=0.0, metrics=seen)
            self.log.put("observation", body)
            self.react()
            if anew and tick in anew:
                self.log.put("run", ActuatorAnnounced(**self.log.stamp(), actuator=anew[tick], tick=tick, step=tick))
                self.react()
        self.log.put("run", RunEnded(**self.log.stamp(), reason="completed", tick=ticks, step=ticks))
        self.react()

    def react(self) -> None:
        while True:
            new, self.read_events = self.log.events[self.read_events :], len(self.log.events)
            for entry in new:
                if not isinstance(entry.body, Vote):
                    self.session.absorb(entry.body)
                if isinstance(entry.body, Decision) and entry.body.verdict == "adopted":
                    if entry.body.actuator == LR:
                        self.scale = float(str(entry.body.value))
                    self.log.receipt(entry.body)
            for message in without_graph(self.session.react()):
                self.log.put(f"{'vote' if isinstance(message, Vote) else 'agent'}.{self.name}", message)
            if self.read_events == len(self.log.events):
                return


@pytest.mark.parametrize(("agent", "least"), [(LearningRate, 2), (Cutter, 5), (Unsure, 5)])
def test_an_agent_that_took_part_in_lockstep_votes_again_as_it_did(agent: type[Agent], least: int) -> None:
    recorded = Lockstep(agent(), "learning_rate", 40).log
    assert replay(recorded.events, RUN).same
    votes = [entry.body for entry in recorded.events if isinstance(entry.body, Vote)]
    assert len(votes) >= least
    test = backtest(agent(), "learning_rate", recorded.events)
    report = test.report()
    assert [cast.vote for cast in test.replay.votes] == votes
    assert report.took_part and report.same_votes is True
    assert report.divergences == 0 and report.ignored_receipts == 0
    made = [cast.decision for cast in test.replay.votes if cast.decision]
    assert [(decision.tick, decision.verdict, decision.value) for decision in made] == [
        (decision.tick, decision.verdict, decision.value) for decision in recorded.decisions
    ]
    receipts = sum(isinstance(entry.body, Receipt) for entry in recorded.events)
    assert sum(vote.carried_out_in_recording for vote in report.votes) == receipts


class Clipper(Agent):
    """Turns what is not there from the beginning."""

    moves = ("grad.clip",)

    def vote(self, window: Window) -> Vote:
        knob = window.knobs["grad.clip"]
        return window.propose("grad.clip", knob.spec.high, confidence=0.95, why="as far as it goes")


def test_a_recording_with_announcements_is_replayed_unchanged() -> None:
    """The agent cannot fire before tick 4, and may go further from tick 20 on; every tick closes."""
    clip = ActuatorSpec(name="grad.clip", kind="scalar", low=0.5, high=2, value=1.0)
    recorded = Lockstep(Clipper(), "clipper", 40, {4: clip, 20: clip.model_copy(update={"high": 8})}).log
    assert recorded.closed_ticks == list(range(1, 41)) and replay(recorded.events, RUN).same
    receipts = [entry.body for entry in recorded.events if isinstance(entry.body, Receipt)]
    assert (
        max(float(str(receipt.after)) for receipt in receipts if receipt.tick < 20)
        <= 2
        < float(str(receipts[-1].after))
    )
    test = backtest(Clipper(), "clipper", recorded.events)
    assert test.same_votes is True and test.replay.divergences == [] and test.replay.votes[0].tick == 4
    report = review(RUN, lambda: recorded.events, {"c": Clipper()})
    assert [spec.high for spec in report.start.actuators if spec.name == "grad.clip"] == [8]
    announced = [tick for tick, change in test.replay.changes if change == "grad.clip was announced again"]
    assert announced == [4, 20]


def test_the_first_divergence_and_what_follows_from_it() -> None:
    recorded = Lockstep(Cutter(), "learning_rate", 12).log
    test = backtest(Unsure(), "learning_rate", recorded.events)
    report = test.report()
    assert report.took_part and report.same_votes is False
    first = test.replay.divergences[0]
    assert (first.tick, first.actuator) == (5, LR)
    assert first.logged is not None and first.logged.verdict == "adopted"
    assert first.computed is not None and "no quorum" in first.computed.reason
    assert report.ignored_receipts == 2, "nothing was carried out for this mesh"
    assert [vote.value for vote in report.votes] == [0.5, 0.5], "so the rate stays where it was"
    assert not any(vote.carried_out_in_recording for vote in report.votes)


def test_others_votes_on_its_ballot_stay_on_it() -> None:
    recorded = Log(stride=1)
    recorded.start(metrics=(MetricSpec(name="loss"),), alone={"cutter": (LR,)})
    recorded.join("cutter", (LR,))
    recorded.join("bob")
    recorded.tick(5)
    recorded.vote("cutter", "propose", 0.5, confidence=0.9, rationale="it is time")
    ballot = recorded.ballots[-1]
    recorded.vote("bob", "against", confidence=0.8, ballot=ballot.id, rationale="no")
    recorded.tick(3)
    replay = backtest(Cutter(), "cutter", recorded.events).replay
    decision = replay.votes[0].decision
    assert decision is not None and "vetoed by bob" in decision.reason
    assert replay.divergences == []
