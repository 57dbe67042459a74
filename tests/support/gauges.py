"""Helpers for the tests of agents: a run of the sorting task, gauges set by hand, and the agent's votes on them."""

from __future__ import annotations

import random
from collections.abc import Iterable

from oven_agents import Agent
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import without_graph
from oven_agents.stats.optimizer_gauges import GRAD_COSINE
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, Observation, Receipt, RunStarted, Value, Vote

LEVELS = ("len3", "len4", "len5")


def started(mixture: dict[str, float] | None = None, *, missing: str = "") -> RunStarted:
    names = ("reward", "loss", "grad_norm", "learning_rate", "frac_reward_zero_std", GRAD_COSINE)
    metrics = tuple(MetricSpec(name=name) for name in (*names, *(f"reward/{n}" for n in LEVELS)) if name != missing)
    return RunStarted(
        incarnation=1,
        n=0,
        recipe="grpo",
        metrics=metrics,
        actuators=(
            ActuatorSpec(name="optimizer.lr_scale", kind="scalar", scale="log", low=0.01, high=100, value=1.0),
            ACTUATORS["run.rollback"],
            ActuatorSpec(
                name="data.mixture",
                kind="simplex",
                choices=LEVELS,
                value=mixture or dict.fromkeys(LEVELS, 1 / 3),
                moves_own_metric=True,
            ),
        ),
    )


def observe(tick: int, **metrics: float) -> Observation:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    if "cos" in named:
        named[GRAD_COSINE] = named.pop("cos")
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0.1, metrics=named)


def votes(agent: Agent, observations: Iterable[Observation], run: RunStarted | None = None) -> list[Vote]:
    session = Session(agent, "me")
    session.absorb(run or started())
    cast_votes = []
    for observation in observations:
        session.absorb(observation)
        cast_votes += [message for message in without_graph(session.react()) if isinstance(message, Vote)]
        assert not session.problems, session.problems
    return cast_votes


def receipt(tick: int, actuator: str, before: Value, after: Value) -> Receipt:
    return Receipt(
        incarnation=1,
        n=10_000 + tick,
        decision_id="d",
        actuator=actuator,
        status="applied",
        before=before,
        after=after,
        tick=tick,
        step=tick,
    )


def noisy(mean: float, count: int, spread: float, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, spread) for _ in range(count)]
