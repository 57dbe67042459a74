"""The prior service of a whole stack learns from the run that it serves, each process under the key of its role."""

from __future__ import annotations

import sys

import pytest
from tests.integration.conftest import Stack, wait_for

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Outcome
from oven_kg.checked_graph import load
from oven_kg.large.builder import Builder
from oven_kg.large.folder import write
from oven_kg.service.endpoints import Answers

# Has the clip tighter and tighter: what is measured follows it.
TIGHTENS = '''
"""Would have the clip a fifth tighter, for a spike that it says it has seen."""
from oven_agents import Agent

class Tightens(Agent):
    moves = ("grad.clip",)
    speciality = ("grad.clip",)

    def vote(self, window):
        value = max(0.1, 0.8 * window.knobs["grad.clip"].number)
        return window.propose(
            "grad.clip", value, confidence=0.95, why="a spike", target="reward", evidence=("symptom:loss_spike",)
        )
'''
TRAINS = """
import os, time
from pathlib import Path

import oven_learner as oven
from oven_core.protocol.messages import MetricSpec

clip = [10.0]
knobs = oven.Actuators()
knobs.scalar("grad.clip", lambda: clip[0], lambda value: clip.__setitem__(0, value), low=0.1, high=10.0, scale="log")
metrics = (MetricSpec(name="reward", better="down"), MetricSpec(name="grad_norm"))
with oven.connect(knobs, metrics=metrics) as client:
    step = 0
    while not (Path(os.environ["OVEN_RUN_DIR"]) / "finish").exists():
        step += 1
        client.observe(step, {"reward": clip[0] + step % 3 / 10, "grad_norm": clip[0]})
        client.poll()
        time.sleep(0.04)
"""


@pytest.mark.e2e
def test_three_outcomes_move_the_posteriors(stack: Stack) -> None:
    """Under the stack's own keys; that the server refused nobody anything is checked as the stack ends. Beside a large
    graph the built-in one diagnoses, judges and learns as it does alone."""
    stack.install({"kg": "oven_kg.service.process:main"})
    (stack.folder / "tightens.py").write_text(TIGHTENS)
    (stack.folder / "train.py").write_text(TRAINS)
    rules = ("rules.autonomy=auto", "rules.cooldown_ticks=12", "rules.outcome_ticks=5", "rules.newcomers=full")
    builder = Builder()
    builder.edges(["multiply"], ["REQUIRES"], ["add"])
    large = builder.finish()
    write(stack.folder / "large", large)
    settings = [part for one in ("agents=tightens.py", "kg=large", *rules) for part in ("--set", one)]
    up = stack.start("run", "--run", "r", *settings, "--", sys.executable, "train.py")
    folder = stack.run_folder("r")
    log = folder.logs / "kg.log"

    def known() -> list[list[str]]:
        said = log.read_text().splitlines() if log.exists() else []
        lines = [line.split() for line in said if "outcomes known, posteriors" in line]
        return [line for line in lines if int(line[line.index("outcomes") - 1]) >= 3]

    wait_for(known, "the service knows three outcomes")
    assert "no history" not in log.read_text()
    assert f"large graph {large.sha[:12]}, 2 nodes, 1 edges" in log.read_text()
    assert known()[-1][-1] != Answers(load()).posteriors.sha[:12]
    (folder.path / "finish").touch()
    code, said = stack.end_of(up)
    assert code == 0, said
    events = map(Event.from_line, folder.export.read_text().splitlines())
    assert sum(isinstance(event.body, Outcome) for event in events) >= 3
