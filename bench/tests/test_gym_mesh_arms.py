"""The controller as an arm of the gym: through the real client, mesh and agents, without a bus."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from random import Random

import pytest
from tests.support.installed import entry_points, installed

from oven_bench.gym.arms import arms
from oven_bench.gym.arms.controller import MESH, MESH_WITH_GRAPH, LoopLink, MeshArm, single_agent
from oven_core.protocol.messages import Decision, MetricSpec, Outcome, Receipt, RunStarted, Vote
from oven_core.protocol.rules import Rules
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.rollback.memory_snapshots import Snapshots
from oven_runs.log.replay import replay

pytestmark = pytest.mark.usefixtures("installed")
__all__ = ["installed"]
OWN_AGENT = '''
from oven_agents.sdk.agent import Agent

class Impatient(Agent):
    """Doubles the rate at once."""

    moves = ("optimizer.lr_scale",)

    def vote(self, window):
        return window.propose("optimizer.lr_scale", 2.0, confidence=0.9, why="impatience")
'''
METRICS = (
    MetricSpec(name="reward", better="up", ceiling=1.0),
    MetricSpec(name="loss"),
    MetricSpec(name="learning_rate"),
    MetricSpec(name="optim/grad_momentum_cos"),
)


def install(folder: Path, group: str, point: str) -> None:
    """What pip leaves of a package with one module and one entry point."""
    (folder / "of_ours.py").write_text(OWN_AGENT)
    info = folder / "of_ours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-ours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point}\n")


def trained(link: LoopLink, steps: int = 40, *, lockstep: bool = False) -> dict[str, float]:
    """A training whose rate is too low until somebody raises it. Returns its knobs."""
    knobs = {"optimizer.lr_scale": 1.0}
    actuators = Actuators()
    actuators.scalar(
        "optimizer.lr_scale",
        lambda: knobs["optimizer.lr_scale"],
        lambda value: knobs.update({"optimizer.lr_scale": value}),
        low=0.001,
        high=100.0,
        scale="log",
    )
    snapshots = Snapshots(lambda: (0, None), lambda state: None, credit=math.inf)
    client = OvenClient(
        link, actuators, metrics=METRICS, max_steps=1000, rules=Rules(), snapshots=snapshots, lockstep=lockstep
    )
    client.start()
    reward, rng = 0.2, Random(3)
    for step in range(1, steps + 1):
        low = knobs["optimizer.lr_scale"] < 2
        reward += 0.0 if low else 0.01
        cosine = 0.6 if low else 0.1
        noisy = {"reward": reward + rng.gauss(0, 0.01), "optim/grad_momentum_cos": cosine + rng.gauss(0, 0.05)}
        client.observe(step, {"loss": 1.0, "learning_rate": 1e-3, **noisy})
        client.poll()
    client.close("completed")
    return knobs


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_agent_turns_a_knob_at_the_next_boundary(lockstep: bool) -> None:
    link = single_agent("learning_rate").link("gym-1", Random(0))
    knobs = trained(link, lockstep=lockstep)
    bodies = [event.body for event in link.events]
    decision = next(body for body in bodies if isinstance(body, Decision))
    receipt = next(body for body in bodies if isinstance(body, Receipt))
    assert (decision.verdict, receipt.status, receipt.tick) == ("adopted", "applied", decision.tick)
    assert knobs["optimizer.lr_scale"] == receipt.after == 4.0
    assert replay(link.events, "gym-1").same


def test_the_same_episode_again_is_the_same_log() -> None:
    logs = []
    for _ in range(2):
        link = MESH.link("gym-1", Random(0))
        trained(link)
        logs.append([event.line() for event in link.events])
    assert logs[0] == logs[1]


def test_the_rules_are_the_products() -> None:
    def rules(arm: MeshArm) -> Rules:
        link = arm.link("gym-1", Random(0))
        trained(link, 1)
        started = link.events[0].body
        assert isinstance(started, RunStarted)
        return started.rules

    expected = Rules(autonomy="auto").with_grants_for(
        set(entry_points()["oven.agents"]) - {"tuner", "author", "supervisor"}
    )
    assert rules(MESH) == expected


def test_every_installed_agent_is_in_the_mesh_and_has_an_arm_of_its_own() -> None:
    link = MESH.link("gym-1", Random(0))
    trained(link, 1)
    asking = {"tuner", "author", "supervisor"}  # whose answers no log has
    shipped = set(entry_points()["oven.agents"]) - asking
    assert {event.author for event in link.events if ".agent." in event.subject} == shipped
    own = {name: arm for name, arm in arms.__wrapped__().items() if name.startswith("agent.")}
    assert {arm.agents for arm in own.values() if isinstance(arm, MeshArm)} == {(name,) for name in shipped}
    assert set(own) == {f"agent.{name}" for name in shipped}


def test_an_own_agent_is_an_arm_without_any_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(arms.__wrapped__())
    install(tmp_path, "oven.agents", "impatient = of_ours:Impatient")
    monkeypatch.delitem(sys.modules, "of_ours", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = arms.__wrapped__()
    assert set(result) - before == {"agent.impatient"}
    link = result["agent.impatient"].link("gym-1", Random(0))
    assert isinstance(link, LoopLink)
    assert trained(link, 20)["optimizer.lr_scale"] == 2.0


def test_the_outcomes_of_an_episode_are_plain_values() -> None:
    link = single_agent("learning_rate").link("gym-1", Random(0))
    trained(link, 60)
    outcomes = link.outcomes()
    assert json.loads(json.dumps(outcomes, allow_nan=False)) == outcomes
    outcome = Outcome.model_validate(outcomes[0])
    assert outcome.scored and outcome.lines[0].agent == "learning_rate" and outcome.lines[0].success == 1.0


def test_with_a_prior_the_graph_cites_its_sources_and_the_run_has_its_rules() -> None:
    link = MESH_WITH_GRAPH.link("gym-1", Random(0))
    assert trained(link)["optimizer.lr_scale"] == 4.0
    review = next(event.body for event in link.events if isinstance(event.body, Vote) and event.author == "graph")
    assert review.stance == "for"
    assert any(entry.startswith("gradients_aligned ← CAUSES") for entry in review.evidence), review.evidence
    started = link.events[0].body
    assert isinstance(started, RunStarted) and set(started.rules.contradictions) > set(Rules().contradictions)
    assert replay(link.events, "gym-1").same
