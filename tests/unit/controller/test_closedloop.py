"""A run in memory: the real mesh and participants, and a log that replays to the same decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.mesh_log import LR, METRICS, SPECS

from oven_agents.shipped.learning_rate import LearningRate
from oven_bench.gym.closed_loop import ROUNDS, AgentParticipant, ClosedLoop, Participant
from oven_core.errors import OvenError
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    LogMessage,
    MetricSpec,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    Value,
    Vote,
)
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay

RUN = "closed"
REWARD = MetricSpec(name="reward", better="up", ceiling=1.0)


class Learner:
    """Says what a learner says, and carries out what was decided when it is due."""

    def __init__(self, members: Sequence[Participant], **rules: Any) -> None:
        self.loop = ClosedLoop(RUN, members)
        self.values: dict[str, Value] = {spec.name: spec.value for spec in SPECS}
        self.decided: list[Decision | StepClosed] = []
        self._n, self._tick = -1, 0
        self._waiting: list[Decision] = []
        self._rules = Rules(**{"newcomers": "full", "evidence_kinds": 1, **rules})

    def start(self, lockstep: bool = True) -> None:
        metrics = (*METRICS, REWARD, MetricSpec(name="optim/grad_momentum_cos"))
        self._say(
            RunStarted(
                **self._number(),
                recipe="grpo",
                actuators=SPECS,
                metrics=metrics,
                rules=self._rules,
                lockstep=lockstep,
            )
        )

    def step(self, **metrics: float) -> None:
        self._tick += 1
        named = {name.replace("__", "/"): value for name, value in metrics.items()}
        self._say(Observation(**self._number(), tick=self._tick, step=self._tick, progress=0.1, metrics=named))
        due, self._waiting = self._waiting, []
        for decision in due:
            before, self.values[decision.actuator] = self.values.get(decision.actuator), decision.value
            self._say(
                Receipt(
                    **self._number(),
                    decision_id=decision.id,
                    actuator=decision.actuator,
                    status="applied",
                    before=before,
                    after=decision.value,
                    tick=self._tick,
                    step=self._tick,
                )
            )

    def end(self) -> None:
        self._say(RunEnded(**self._number(), reason="completed", tick=self._tick, step=self._tick))

    def _number(self) -> dict[str, int]:
        self._n += 1
        return {"incarnation": 1, "n": self._n}

    def _say(self, message: LearnerMessage) -> None:
        replies = self.loop.send(message)
        self.decided += [reply for reply in replies if isinstance(reply, Decision | StepClosed)]
        self._waiting += [reply for reply in replies if isinstance(reply, Decision) and reply.verdict == "adopted"]


class Scripted:
    """Proposes what its script has for a tick, and hears everything."""

    def __init__(self, name: str, script: dict[int, tuple[str, float, float]]) -> None:
        self._name, self._script = name, script
        self.received: list[LogMessage | Malformed] = []
        self._new: list[LogMessage | Malformed] = []

    @property
    def name(self) -> str:
        return self._name

    def absorb(self, body: LogMessage | Malformed) -> None:
        self.received.append(body)
        self._new.append(body)

    def react(self) -> Sequence[Vote | AgentStatus]:
        new, self._new = self._new, []
        messages: list[Vote | AgentStatus] = []
        for body in new:
            if isinstance(body, RunStarted):
                messages.append(AgentStatus(state="joined", moves=(LR, "grad.clip")))
            elif isinstance(body, Observation):
                if body.tick in self._script:
                    actuator, value, confidence = self._script[body.tick]
                    messages.append(
                        Vote(
                            actuator=actuator,
                            stance="propose",
                            value=value,
                            tick=body.tick,
                            confidence=confidence,
                            target="loss",
                            expected_change=-0.1,
                            horizon=4,
                        )
                    )
                messages.append(AgentStatus(state="done", tick=body.tick))
            elif isinstance(body, BallotOpened):
                messages.append(AgentStatus(state="done", tick=body.tick, seen=body.id))
        return messages


def aligned(learner: Learner, steps: int = 8) -> None:
    for _ in range(steps):
        learner.step(reward=0.3, optim__grad_momentum_cos=0.6, learning_rate=1e-3)


def test_an_agents_proposal_is_decided_before_the_learner_continues() -> None:
    learner = Learner([AgentParticipant("learning_rate", LearningRate())])
    learner.start()
    aligned(learner)
    learner.end()
    made = [message for message in learner.decided if isinstance(message, Decision)]
    assert [(decision.actuator, decision.verdict, decision.value) for decision in made] == [(LR, "adopted", 4.0)]
    assert learner.values[LR] == 4.0
    closed = [message.tick for message in learner.decided if isinstance(message, StepClosed)]
    assert closed == list(range(1, 9))  # every tick, before the next observation
    report = replay(learner.loop.events, RUN)
    assert report.same and report.finished and report.decisions == 1 and not report.counters


def test_without_lockstep_it_is_decided_at_the_same_tick() -> None:
    learner = Learner([AgentParticipant("learning_rate", LearningRate())])
    learner.start(lockstep=False)
    aligned(learner)
    made = [message for message in learner.decided if isinstance(message, Decision)]
    assert [(decision.verdict, decision.tick) for decision in made] == [("adopted", 6)]
    assert not any(isinstance(message, StepClosed) for message in learner.decided)


def test_agents_do_not_receive_each_others_votes() -> None:
    first, second = Scripted("amy", {1: (LR, 0.5, 0.9)}), Scripted("bob", {})
    learner = Learner([second, first])
    learner.start()
    for _ in range(24):  # as long as an outcome takes at least
        learner.step(loss=1.0)
    kinds = [type(body) for body in second.received]
    assert kinds == [type(body) for body in first.received]
    assert {RunStarted, Observation, BallotOpened, Decision, Receipt, StepClosed, Outcome} == set(kinds)


def test_an_agent_that_never_stops_talking_is_named() -> None:
    class Talker(Scripted):
        def react(self) -> Sequence[Vote | AgentStatus]:
            return [AgentStatus(state="done")]

    learner = Learner([Scripted("amy", {}), Talker("zoe", {})])
    with pytest.raises(OvenError, match=f"zoe still had something to say after {ROUNDS} rounds at tick 0"):
        learner.start()


PROPOSALS = st.tuples(st.sampled_from((LR, "grad.clip")), st.floats(0.01, 10), st.sampled_from((0.3, 0.6, 0.9)))
SCRIPTS = st.dictionaries(st.integers(1, 25), PROPOSALS, max_size=6)


@settings(max_examples=25, deadline=None)
@given(
    scripts=st.lists(SCRIPTS, min_size=1, max_size=4),
    losses=st.lists(st.floats(allow_nan=True), min_size=25, max_size=25),
    lockstep=st.booleans(),
    data=st.data(),
)
def test_the_log_replays_and_no_order_of_participants_matters(
    scripts: list[dict[int, tuple[str, float, float]]],
    losses: list[float],
    lockstep: bool,
    data: st.DataObject,
) -> None:
    def lines(order: Sequence[int]) -> list[str]:
        learner = Learner([Scripted(f"agent-{n}", scripts[n]) for n in order])
        learner.start(lockstep)
        for loss in losses:
            learner.step(loss=loss)
        learner.end()
        assert learner.loop.log.mesh.divergence is None and not learner.loop.log.mesh.pending
        assert replay(learner.loop.events, RUN).same
        return [event.line() for event in learner.loop.events]

    given_order = range(len(scripts))
    assert lines(given_order) == lines(data.draw(st.permutations(given_order)))
