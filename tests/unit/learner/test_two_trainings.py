"""Two trainers in one process and one run, with the real mesh: the second is judged by its own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.attached import THIRD_PARTY, trainer

from oven_bench.gym.arms.controller import LoopLink
from oven_core.protocol.messages import AgentStatus, Decision, Observation, Receipt, RunStarted, Vote
from oven_core.protocol.rules import Rules
from oven_learner.hf.attach import attach

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
SCALE = "optimizer.lr_scale"


class Halving:
    """An agent that halves the rate once, at its third tick."""

    name = "halving"

    def __init__(self) -> None:
        self._has_sent = self._joined = False
        self._tick = 0

    def absorb(self, body: object) -> None:
        if isinstance(body, Observation):
            self._tick = body.tick

    def react(self) -> Sequence[Vote | AgentStatus]:
        if not self._joined:
            self._joined = True
            return [AgentStatus(state="joined", moves=(SCALE,))]
        if self._tick < 3 or self._has_sent:
            return []
        self._has_sent = True
        return [Vote(actuator=SCALE, stance="propose", value=0.5, tick=self._tick, confidence=0.9)]


def test_a_second_trainer_takes_nothing_from_the_first(tmp_path: Path) -> None:
    link = LoopLink("r", [Halving()], lambda _: Rules(autonomy="auto", newcomers="full", evidence_kinds=1))
    for number in ("first", "second"):
        job = trainer(tmp_path / number)
        attach(job, link=link)
        job.train()
    bodies = [event.body for event in link.events]
    first, second = (body for body in bodies if isinstance(body, RunStarted))
    assert [(start.training, start.incarnation) for start in (first, second)] == [("1", 1), ("2", 2)]
    assert second.tick == 12 and [o.tick for o in bodies if isinstance(o, Observation)] == list(range(1, 25))
    assert [r.after for r in bodies if isinstance(r, Receipt) and r.actuator == SCALE] == [0.5]
    values = [{spec.name: spec.value for spec in start.actuators}[SCALE] for start in (first, second)]
    assert values == [1.0, 1.0], "what was set in the first is not the second's"
    assert sum(isinstance(body, Decision) for body in bodies) == 1


def test_a_second_train_call_continues_the_same_training(tmp_path: Path) -> None:
    link = LoopLink("r", [])
    job = trainer(tmp_path)
    attach(job, link=link)
    job.train()
    job.train()
    assert [body.training for event in link.events if isinstance(body := event.body, RunStarted)] == ["1", "1"]
