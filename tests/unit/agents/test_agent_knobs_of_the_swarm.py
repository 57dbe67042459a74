"""The agents that turn the knobs of the swarm that the project comes from, on made-up windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from tests.support.gauges import receipt

from oven_agents import Agent
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import without_graph
from oven_agents.shipped.auxiliary_loss import AuxiliaryLoss
from oven_agents.shipped.knowledge import Knowledge
from oven_agents.shipped.quantisation import Quantisation
from oven_agents.stats.confidence import FIRM_CONFIDENCE, TENTATIVE_CONFIDENCE
from oven_core.protocol.messages import (
    ActuatorSpec,
    Decision,
    Horizon,
    MetricSpec,
    Observation,
    RunStarted,
    Value,
    Vote,
)

STEPS = 400
KNOBS: Mapping[str, ActuatorSpec] = {
    "channel.kg": ActuatorSpec(name="channel.kg", kind="scalar", low=0, high=1, value=0.5),
    "channel.mtp": ActuatorSpec(name="channel.mtp", kind="scalar", low=0, high=1, value=0.1),
    "train.quantisation": ActuatorSpec(
        name="train.quantisation", kind="choice", choices=("none", "int8", "int4"), value="none"
    ),
}
METRICS = (
    MetricSpec(name="loss", better="down"),
    MetricSpec(name="learning_rate"),
    MetricSpec(name="channel/mtp", better="down"),
    MetricSpec(name="eval/bits_per_byte", better="down", held_out=True),
    MetricSpec(name="eval/int4/bits_per_byte", better="down", held_out=True),
)


def run(*knobs: str, metrics: Iterable[MetricSpec] = METRICS, steps: int | None = STEPS, **values: Value) -> RunStarted:
    specs = [KNOBS[name].model_copy(update={"value": values.get(name.split(".")[1], KNOBS[name].value)})
             for name in knobs]  # fmt: skip
    return RunStarted(
        incarnation=1, n=0, recipe="pretrain", actuators=tuple(specs), metrics=tuple(metrics),
        horizon=Horizon(max_steps=steps),
    )  # fmt: skip


def observation(tick: int, **metrics: float) -> Observation:
    gauges = {"loss": 2.0, "learning_rate": 2e-3} | {name.replace("__", "/"): value for name, value in metrics.items()}
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=tick / STEPS, metrics=gauges)


def turned(agent: Agent, started: RunStarted, observations: Iterable[Observation]) -> list[tuple[int, Value, float]]:
    """(tick, value, confidence) of each proposal; each is applied in the next tick, as the mesh would."""
    session = Session(agent, "me")
    session.absorb(started)
    value = started.actuators[0].value
    turns: list[tuple[int, Value, float]] = []
    for event in observations:
        session.absorb(event)
        for vote in without_graph(session.react()):
            if isinstance(vote, Vote):
                turns.append((vote.tick, vote.value, vote.confidence))
                knob_receipt = receipt(event.tick, vote.actuator, value, vote.value)
                session.absorb(knob_receipt.model_copy(update={"decision_id": f"{event.tick:012d}-00"}))
                value = vote.value
        assert not session.problems, session.problems
    return turns


def test_the_graphs_weight_is_lowered_in_the_sources_stages_and_ends_at_a_fifth() -> None:
    turns = turned(Knowledge(), run("channel.kg"), map(observation, range(1, STEPS + 1)))
    assert [(tick / STEPS, value) for tick, value, _ in turns] == [(0.15, 0.4), (0.4, 0.3), (0.7, 0.1)]
    assert all(confidence == FIRM_CONFIDENCE for *_, confidence in turns)


def test_it_keeps_the_users_scale_never_raises_and_takes_a_late_start_at_once() -> None:
    turns = turned(Knowledge(), run("channel.kg", kg=1.0), map(observation, range(350, STEPS)))
    assert [(tick, value) for tick, value, _ in turns] == [(350, 0.2)]
    assert turned(Knowledge(), run("channel.kg", kg=0.0), map(observation, range(1, STEPS))) == []


@pytest.mark.parametrize(("value", "after"), [(0.45, []), (0.4, [0.3, 0.1])])
def test_a_weight_set_by_an_operator_stays_and_an_approved_stage_does_not(value: float, after: list[float]) -> None:
    session = Session(Knowledge(), "me")
    session.absorb(run("channel.kg"))
    session.absorb(observation(1))
    id_ = "000000000005-00"
    session.absorb(
        Decision(
            id=id_, ballot="", command="c1", actuator="channel.kg", verdict="adopted", value=value, reason="set",
            tally=(), tick=1, apply_at_tick=2, expires_at_tick=9,
        )
    )  # fmt: skip
    session.absorb(receipt(2, "channel.kg", 0.5, value).model_copy(update={"decision_id": id_}))
    values: list[Value] = []
    for tick in range(3, STEPS):
        session.absorb(observation(tick))
        for vote in without_graph(session.react()):
            if isinstance(vote, Vote):
                values.append(vote.value)
                knob_receipt = receipt(tick, "channel.kg", 0.5, vote.value)
                session.absorb(knob_receipt.model_copy(update={"decision_id": f"{tick:012d}-00"}))
    assert values == after


ROUNDED = {"eval__bits_per_byte": 2.0, "eval__int4__bits_per_byte": 2.2}


def test_training_is_quantised_late_where_rounding_costs() -> None:
    turns = turned(
        Quantisation(), run("train.quantisation"), (observation(tick, **ROUNDED) for tick in range(1, STEPS))
    )
    assert turns == [(261, "int4", Quantisation.CONFIDENCE)], "past .65, and once"
    cheap = ROUNDED | {"eval__int4__bits_per_byte": 2.001}
    assert not turned(
        Quantisation(), run("train.quantisation"), (observation(tick, **cheap) for tick in range(1, STEPS))
    )


def test_multi_token_prediction_is_weighted_down_once_late_where_it_no_longer_falls() -> None:
    still = (observation(tick, channel__mtp=3.0) for tick in range(1, STEPS))
    assert turned(AuxiliaryLoss(), run("channel.mtp"), still) == [(301, 0.05, FIRM_CONFIDENCE)]
    falling = (observation(tick, channel__mtp=3.0 * 0.998**tick) for tick in range(1, STEPS))
    assert turned(AuxiliaryLoss(), run("channel.mtp"), falling) == []
    heavy = (observation(tick, channel__mtp=1.5) for tick in range(1, 100))
    turns = turned(AuxiliaryLoss(), run("channel.mtp", mtp=1.0), heavy)
    assert [(value, sure) for _, value, sure in turns] == [(0.5, TENTATIVE_CONFIDENCE)], (
        "a rule of thumb needs a second voice"
    )
