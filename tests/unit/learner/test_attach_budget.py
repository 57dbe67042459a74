"""When an attached run ends: at its last step, whatever rollbacks threw away, or at equal cost if that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.attached import THIRD_PARTY, equal, trainer, weights

from oven_bench.gym.arms.controller import LoopLink
from oven_core.protocol.messages import (
    AgentStatus,
    Decision,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
    Vote,
)
from oven_core.protocol.rules import Rules
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

BACK = {4: ("run.rollback", 1.0), 7: ("run.rollback", 1.0), 10: ("run.rollback", 1.0)}
"""Back to the start each time: ten steps are lost, and an epoch has 16."""


def ended(line: FakeLink) -> RunEnded:
    assert isinstance(line.sent[-1], RunEnded)
    return line.sent[-1]


def number(value: Value) -> int:
    assert isinstance(value, float)
    return int(value)


def horizon(line: FakeLink) -> Any:
    assert isinstance(line.sent[0], RunStarted)
    return line.sent[0].horizon


@pytest.mark.parametrize("steps", [{"max_steps": 12}, {"max_steps": -1, "num_train_epochs": 1}])
def test_a_run_with_a_rollback_still_keeps_max_steps_steps(tmp_path: Path, steps: dict[str, Any]) -> None:
    line = FakeLink(dict(BACK))
    job = trainer(tmp_path, lr_scheduler_type="linear", **steps)
    attach(job, link=line)
    job.train()
    last = job.state.max_steps
    lost = sum(number(r.before) - number(r.after) for r in line.receipts() if r.actuator == "run.rollback")
    assert lost == 10 and ended(line).reason == "completed"
    assert (ended(line).step, line.observed()[-1].progress) == (last, 1.0)
    assert len(line.observed()) == last + lost
    assert job.lr_scheduler is not None
    assert set(job.lr_scheduler.get_last_lr()) == {0.0}, "the schedule is at its end, too"
    assert job.state.num_train_epochs == 1


def test_with_charged_rollbacks_a_run_ends_after_max_steps_gradient_steps(tmp_path: Path) -> None:
    line = FakeLink(dict(BACK))
    job = trainer(tmp_path)
    attach(job, link=line, charge_rollbacks=True)
    job.train()
    assert len(line.observed()) == 12 and ended(line).step == 2 and horizon(line).charge_rollbacks
    assert ended(line).reason == "completed"


@pytest.mark.parametrize("steps", [{"max_steps": 20}, {"max_steps": -1, "num_train_epochs": 2}])
def test_without_a_rollback_both_train_what_the_trainer_does(tmp_path: Path, steps: dict[str, Any]) -> None:
    straight = trainer(tmp_path, **steps)
    straight.train()
    for charged in (False, True):
        line, job = FakeLink(), trainer(tmp_path, **steps)
        attach(job, link=line, charge_rollbacks=charged)
        job.train()
        assert equal(weights(job), weights(straight)) and ended(line).step == straight.state.global_step
        assert job.state.num_train_epochs == straight.state.num_train_epochs == 2
        assert horizon(line).charge_rollbacks is charged


class Backwards:
    """An agent that wants to go back to the start, always."""

    name = "backwards"

    def __init__(self) -> None:
        self._tick: int | None = None
        self._joined = False

    def absorb(self, body: object) -> None:
        if isinstance(body, Observation):
            self._tick = body.tick

    def react(self) -> Sequence[Vote | AgentStatus]:
        if not self._joined:
            self._joined = True
            moves = ("run.rollback",)
            return [AgentStatus(state="joined", moves=moves)]
        tick, self._tick = self._tick, None
        if tick is None:
            return []
        return [Vote(actuator="run.rollback", stance="propose", value=0.0, tick=tick, confidence=0.99)]


def test_the_budget_of_interventions_keeps_a_run_from_never_ending(tmp_path: Path) -> None:
    rules = Rules(
        max_interventions=1, cooldown_ticks=0, window_ticks=1, autonomy="auto", newcomers="full", evidence_kinds=1
    )
    link = LoopLink("r", [Backwards()], lambda _: rules)
    job = trainer(tmp_path)
    attach(job, link=link)
    job.train()
    bodies = [event.body for event in link.events]
    back = [body for body in bodies if isinstance(body, Receipt) and body.actuator == "run.rollback"]
    refused = [body for body in bodies if isinstance(body, Decision) and "budget spent" in body.reason]
    end = bodies[-1]
    assert [(receipt.status, receipt.after) for receipt in back] == [("applied", 0.0)] and refused
    assert isinstance(end, RunEnded) and (end.reason, end.step) == ("completed", 12)
