"""A learner that is killed at any step of a trial, and continues from its checkpoint: the control's branch goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from tests.support.gym_line import Line

from oven_bench.gym.arms.in_memory_link import LoopLink
from oven_bench.gym.episode import Branches, Training
from oven_bench.gym.fault import NOTHING
from oven_core.protocol.messages import AgentStatus, Observation, Outcome, Receipt, Vote
from oven_core.protocol.rules import Rules
from oven_core.protocol.trial_messages import BranchObservation, TrialEnded, TrialStarted
from oven_learner.client.client import OvenClient
from oven_learner.rollback.in_memory import Snapshots
from oven_runs.log.replay import replay

RATE = "optimizer.lr_scale"
RULES = Rules(newcomers="full", trials="all", trial_share=1.0, trial_steps={"scalar": 4}, trial_cooldown=2)
STEPS, SAVED = 24, 5
PLAYED = 2 * (4 + 2)
"""Steps of the trial: control and arm, each with its cooling copy."""


class Proposing:
    """Asks for a fiftyfold rate at tick 7, once."""

    name = "ann"

    def __init__(self) -> None:
        self._tick, self._said = 0, False
        self._joined = False

    def absorb(self, body: Any) -> None:
        if isinstance(body, Observation):
            self._tick = body.tick

    def react(self) -> Sequence[Vote | AgentStatus]:
        if not self._joined:
            self._joined = True
            return [AgentStatus(state="joined", moves=(RATE,), speciality=(RATE,))]
        if self._tick < 7 or self._said:
            return []
        self._said = True
        return [Vote(actuator=RATE, stance="propose", value=10.0, tick=self._tick, confidence=0.9)]


class Killed(Exception):
    """The process is gone: nothing of the client is called any more."""


class Process:
    """One incarnation of the learner. It saves at step 5, and dies once it has computed so many steps."""

    def __init__(self, link: LoopLink, saved: Any = None, dies_after: int | None = None) -> None:
        self.line = Line("pretraining", 3)
        self.training = Training(self.line, NOTHING, None)
        if saved is not None:
            self.training.restore_branch(saved)
        self.saved = saved
        self._dies_after = dies_after
        self.client = OvenClient(
            link,
            self.line.actuators,
            metrics=self.line.metrics,
            max_steps=STEPS,
            rules=RULES,
            snapshots=Snapshots(self.training.take, self.training.restore, credit=math.inf),
            trials=Branches(self.training, self.line),
        )

    def run(self) -> None:
        self.client.start(step=self.training.step)
        while self.client.step < STEPS:
            if self._dies_after is not None and self.training.steps >= self._dies_after:
                raise Killed
            metrics = self.training.train_step()
            self.client.observe(self.training.step, metrics)
            self.client.poll()
            if self.training.step == SAVED and self.saved is None:
                self.saved = self.training.branch_state()
        self.client.close("completed")

    def bits(self) -> list[float]:
        return [x for tensor in self.line.model.parameters() for x in tensor.detach().flatten().tolist()]


@cache
def whole() -> tuple[list[float], int]:
    """The bits of a run whose trial keeps the control, and the step at which its trial begins."""
    link = LoopLink("r", [Proposing()])
    process = Process(link)
    process.run()
    (ended,) = (event.body for event in link.events if isinstance(event.body, TrialEnded))
    assert ended.kept == 0 and ended.steps == PLAYED
    return process.bits(), ended.step


@pytest.mark.parametrize("played", range(PLAYED + 1))
def test_the_controls_branch_goes_on_and_the_log_is_whole(played: int) -> None:
    link = LoopLink("r", [Proposing()])
    bits, begins = whole()
    process = Process(link, dies_after=begins + played)
    with pytest.raises(Killed):
        process.run()
    again = Process(link, saved=process.saved)
    again.run()
    bodies = [event.body for event in link.events]
    assert again.bits() == bits, "as if no trial had been made"
    assert sum(isinstance(body, TrialStarted) for body in bodies) == 1
    ended = [body for body in bodies if isinstance(body, TrialEnded)]
    branch = [body for body in bodies if isinstance(body, BranchObservation)]
    assert len(ended) == (played == PLAYED) and len(branch) <= 8
    assert sum(isinstance(body, Outcome) for body in bodies) == len(ended), "half a trial says nothing"
    assert not any(isinstance(body, Receipt) and body.status == "applied" for body in bodies)
    ticks = [body.tick for body in bodies if isinstance(body, Observation)]
    assert ticks == sorted(ticks) and len(set(ticks)) == len(ticks)
    report = replay(link.events, "r")
    assert report.same and not report.pending
