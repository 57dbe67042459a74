"""An actuator's spec says what a change of it is to the training, and everything that asks reads it there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support import runs
from tests.support.mesh_log import LR, METRICS, MOVES, SPECS, Log

from oven_agents.sdk.window import Knob, Window
from oven_core.protocol.codec import Malformed, decode
from oven_core.protocol.messages import ActuatorSpec, RunStarted
from oven_learner.actuators import Actuators


def own() -> tuple[ActuatorSpec, ...]:
    """A script's own actions, and a setting that moves the metric it is judged by."""
    knobs, now = Actuators(), [1.0]
    knobs.action("my.probe", lambda _: 0.5, effect="measures")
    knobs.action("my.swap", lambda _: None, effect="moves_weights")
    knobs.action("my.shuffle", lambda _: None)
    knobs.scalar(
        "my.bonus", lambda: now[0], lambda value: now.__setitem__(0, value), low=0, high=2, moves_own_metric=True
    )
    return knobs.specs()


def running(**rules: Any) -> Log:
    """Ten ticks of a run that has them."""
    log = Log()
    log.start((*SPECS, *own()), outcome_ticks=10, cooldown_ticks=0, **rules)
    for agent in ("amy", "bob"):
        log.join(agent, moves=(*MOVES, *(spec.name for spec in own())))
    watch(log, 10, 1.0)
    return log


def watch(log: Log, ticks: int, loss: float) -> None:
    for _ in range(ticks):
        log.tick(loss=loss + 0.01 * (log.mesh.state.tick % 3 - 1))


def change(log: Log, actuator: str, value: Any = None, target: str = "loss") -> Any:
    log.propose("amy", value, actuator, 0.8, target=target, expected_change=-0.2)
    log.vote("bob", "for", actuator=actuator)
    decision = log.last
    if decision.verdict == "adopted":
        log.receipt(decision)
    return decision


def test_a_scripts_own_measurement_costs_no_intervention_and_has_no_outcome() -> None:
    log = running(max_interventions=1)
    for _ in range(3):
        decision = change(log, "my.probe")
        assert (decision.verdict, decision.target) == ("adopted", "")
    assert log.mesh.state.interventions == 0
    assert change(log, "my.shuffle").target == "loss"
    assert log.mesh.state.interventions == 1
    assert "budget spent" in change(log, LR, 0.5).reason
    assert change(log, "my.probe").verdict == "adopted", "and can be asked for when the budget is spent"
    watch(log, 12, 0.8)
    assert [outcome.actuator for outcome in log.outcomes] == ["my.shuffle"]


def test_a_change_of_the_weights_closes_all_windows() -> None:
    for actuator, cut in (("my.swap", True), ("my.shuffle", False)):
        log = running()
        change(log, LR, 0.5, target="eval/loss")
        watch(log, 2, 1.0)
        change(log, actuator)
        assert any("confounded by my.swap" in outcome.reason for outcome in log.outcomes) == cut


def test_an_agent_sees_what_a_change_was() -> None:
    knobs = {spec.name: Knob(spec, spec.value) for spec in (*SPECS, *own())}
    receipts = [runs.receipt(3, "run.rollback", 3.0, 1.0), runs.receipt(5, "my.swap", None, None)]
    receipts += [runs.receipt(7, LR, 1.0, 0.5), runs.receipt(9, "my.probe", None, 0.5)]
    window = Window(runs.pretraining(), [runs.seen(10, {})], knobs, receipts, {})
    assert [receipt.actuator for receipt in window.jumps] == ["run.rollback", "my.swap"]
    assert window.last_change_tick() == 7
    assert window.last_change_tick("run.rollback") == 5
    assert window.last_change_tick("my.probe") == 9


def test_a_setting_that_moves_its_own_metric_is_judged_by_held_out_data() -> None:
    log = running()
    assert change(log, "my.bonus", 1.5).target == "eval/loss"
    log = running(metrics=METRICS[:1])
    assert "announces no held-out metric" in change(log, "my.bonus", 1.5).reason


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"kind": "scalar", "effect": "measures"},
        "a.b is a scalar with the effect 'measures'; only an action may have an effect other than 'setting'",
    ),
    ({"kind": "simplex", "effect": "moves_weights"}, "a.b is a simplex with the effect 'moves_weights'; only"),
    (
        {"kind": "action", "effect": "measures", "moves_own_metric": True},
        "a.b has moves_own_metric and the effect 'measures', which no metric judges; remove one of them",
    ),
    (
        {"kind": "action", "effect": "ends_or_holds", "moves_own_metric": True},
        "a.b has moves_own_metric and the effect 'ends_or_holds'",
    ),
    ({"kind": "action", "effect": "measure"}, "Input should be 'setting', 'measures'"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG)
def test_a_spec_that_contradicts_itself_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ActuatorSpec.model_validate({"name": "a.b", **fields})
    assert words in str(refused.value)
    run = json.loads(RunStarted(incarnation=1, n=0, recipe="r").wire())
    read = decode("run", json.dumps(run | {"actuators": [{"name": "a.b", **fields}]}).encode())
    assert isinstance(read, Malformed) and words in read.reason
