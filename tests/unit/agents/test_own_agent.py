"""An agent of a user's own takes two places, its module and one line of entry points, and is like a shipped one."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.mesh_log import LR, SPECS

from oven_agents.review.backtest import Backtest
from oven_agents.runtime.agent_loader import load
from oven_bench.gym.closed_loop import ClosedLoop, participants
from oven_controller.cli.main import run
from oven_core.protocol.messages import Decision, LearnerMessage, MetricSpec, Observation, RunStarted, Vote
from oven_core.protocol.rules import Rules

RUN = "own"
MODULE = '''
"""Halves the rate when the loss is above 2."""

from oven_agents import Agent, Vote, Window


class LossWatch(Agent):
    """Signals: a loss above HIGH.

    Actions: half of the rate.

    False alarms: a loss that begins there.

    Limits: it knows one unit of loss.
    """

    needs = ("loss",)
    moves = ("optimizer.lr_scale",)
    HIGH = 2.0
    """Loss above which the rate is halved, in nats."""

    def vote(self, window: Window) -> Vote | None:
        if window.last.metrics["loss"] <= self.HIGH:
            return None
        knob = window.knobs["optimizer.lr_scale"]
        return window.propose(knob.spec.name, knob.number / 2, confidence=0.9, why="the loss is high", target="loss")
'''
ENTRY_POINT = "loss_watch = own_agents.loss_watch:LossWatch"


@pytest.fixture(autouse=True)
def _own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install` leaves it."""
    site = tmp_path / "site"
    about = site / "own_agents-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-agents\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[oven.agents]\n{ENTRY_POINT}\n")
    (site / "own_agents").mkdir()
    (site / "own_agents" / "loss_watch.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)  # of the processes that are started
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    importlib.invalidate_caches()


def started(n: int = 0) -> RunStarted:
    return RunStarted(
        incarnation=1, n=n, recipe="toy", actuators=SPECS, metrics=(MetricSpec(name="loss", better="down"),),
        rules=Rules(newcomers="full", evidence_kinds=1), lockstep=True,
    )  # fmt: skip


def learner(losses: Sequence[float]) -> Iterator[LearnerMessage]:
    yield started()
    for tick, loss in enumerate(losses, 1):
        yield Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0.1, metrics={"loss": loss})


def test_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["agent", "list", "--json"])
    (entry,) = [agent for agent in json.loads(capsys.readouterr().out) if agent["name"] == "loss_watch"]
    assert entry["does"] == "Halves the rate when the loss is above 2."
    assert entry["sections"]["Actions"] == "half of the rate."
    assert [option["name"] for option in entry["options"]] == ["high"]


def test_it_votes_in_a_run_in_memory_and_is_backtested_over_its_log() -> None:
    loop = ClosedLoop(RUN, participants(["loss_watch"]))
    decided = [body for message in learner([1.0, 1.5, 2.5]) for body in loop.send(message)]
    (decision,) = [body for body in decided if isinstance(body, Decision)]
    assert (decision.actuator, decision.verdict, decision.value) == (LR, "adopted", 0.5)

    test = Backtest(load("loss_watch")[1], "loss_watch", RUN)
    for event in loop.events:
        test.add(event)
    assert test.same_votes
    assert [cast.vote.value for cast in test.replay.votes] == [0.5]
    assert len([event for event in loop.events if isinstance(event.body, Vote)]) == 1


def test_it_is_installed_for_every_run_and_its_options_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert "loss_watch" in {participant.name for participant in participants()}
    with pytest.raises(SystemExit) as ended:
        run(["up", "--dry-run", "--set", "agents=[{name: loss_watch, options: {hihg: 3}}]"])
    assert ended.value.code == 2
    assert "no option of agent 'loss_watch' named 'hihg'; did you mean 'high'" in " ".join(
        capsys.readouterr().err.split()
    )
