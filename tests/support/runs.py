"""Made-up runs with realistic gauges, for agents: healthy ones of many shapes, and helpers to damage them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping

from oven_agents import Agent
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import Alternatives, GraphReview, Plan, TopicShares, without_graph
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    Horizon,
    MetricSpec,
    Observation,
    Receipt,
    RunStarted,
    Vote,
)

Gauges = Callable[[int, random.Random], dict[str, float]]
JUDGES, LEVELS = ("exact", "format", "critic"), ("level_3", "level_4", "level_5")
BOTH_KNOBS = (
    ActuatorSpec(name="optimizer.lr_scale", kind="scalar", scale="log", low=0.001, high=100, value=1.0),
    ActuatorSpec(name="grad.clip", kind="scalar", scale="log", low=0.01, high=100, value=1.0),
    ActuatorSpec(name="run.rollback", kind="action", effect="moves_weights"),
    ActuatorSpec(name="run.checkpoint", kind="action", effect="copies"),
    ActuatorSpec(name="run.hold", kind="action", effect="ends_or_holds"),
)
OPTIMIZER = ("grad_norm", "learning_rate", "optim/grad_momentum_cos", "optim/update_ratio", "optim/weight_norm")


def pretraining() -> RunStarted:
    knobs = (
        ActuatorSpec(name="optimizer.weight_decay", kind="scalar", low=0, high=1, value=0.1),
        ActuatorSpec(
            name="data.mixture", kind="simplex", choices=("a", "b"), value={"a": 0.5, "b": 0.5}, moves_own_metric=True
        ),
        ActuatorSpec(name="data.skip", kind="action"),
    )
    metrics = (
        MetricSpec(name="loss", better="down"),
        *(MetricSpec(name=name) for name in (*OPTIMIZER, "data/repeated")),
        MetricSpec(name="eval/loss", better="down", held_out=True),
    )
    return _started("pretraining", (*BOTH_KNOBS, *knobs), metrics)


def grpo() -> RunStarted:
    shares = dict.fromkeys(JUDGES, 1 / 3)
    knobs = (
        ActuatorSpec(name="grpo.beta", kind="scalar", low=0, high=2, value=0.04, moves_own_metric=True),
        ActuatorSpec(name="reward.weights", kind="simplex", choices=JUDGES, value=shares, moves_own_metric=True),
        ActuatorSpec(
            name="data.mixture",
            kind="simplex",
            choices=LEVELS,
            value=dict.fromkeys(LEVELS, 1 / 3),
            moves_own_metric=True,
        ),
    )
    names = ("loss", *OPTIMIZER, "reward_std", "frac_reward_zero_std", "kl", "entropy", "completions/mean_length")
    metrics = (
        *(MetricSpec(name=name) for name in (*names, "committee/agreement", "committee/abstentions")),
        MetricSpec(name="reward", better="up"),
        *(MetricSpec(name=f"rewards/{judge}/mean") for judge in JUDGES),
        *(MetricSpec(name=f"reward/{level}", better="up", ceiling=1.0) for level in LEVELS),
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0),
    )
    return _started("grpo", (*BOTH_KNOBS, *knobs), metrics)


def _started(recipe: str, knobs: tuple[ActuatorSpec, ...], metrics: tuple[MetricSpec, ...]) -> RunStarted:
    return RunStarted(
        incarnation=1, n=0, recipe=recipe, actuators=knobs, metrics=metrics, horizon=Horizon(max_steps=1000)
    )


def language(
    loss: Callable[[int], float] = lambda t: 2.5 + 3 * math.exp(-t / 25),
    noise: Callable[[random.Random], float] = lambda draw: draw.gauss(0, 0.15),
    rate: Callable[[int], float] = lambda t: 3e-3 * min(1.0, t / 20),
    aligned: Callable[[int], float] = lambda t: 0.35 * math.exp(-t / 12) - 0.01,
) -> Gauges:
    """Return gauges of a pretraining run: the noise of small batches, a growing weight norm, no repeated data."""

    def gauges(tick: int, draw: random.Random) -> dict[str, float]:
        now = rate(tick)
        metrics = {
            "loss": loss(tick) + noise(draw),
            "grad_norm": math.exp(draw.gauss(0, 0.35)),
            "learning_rate": now,
            "optim/grad_momentum_cos": aligned(tick) + draw.gauss(0, 0.12),
            "optim/update_ratio": 1.8 * now * math.exp(draw.gauss(0, 0.05)),
            "optim/weight_norm": 28 + tick / 100,
            "data/repeated": 0.0,
        }
        return metrics | ({"eval/loss": loss(tick) + 0.05 + draw.gauss(0, 0.01)} if tick % 20 == 0 else {})

    return gauges


def sorting(
    reward: Callable[[int], float] = lambda t: 0.9 - 0.55 * math.exp(-t / 120),
    entropy: Callable[[int], float] = lambda t: 0.15 + 0.9 * math.exp(-t / 80),
    rate: Callable[[int], float] = lambda t: 3e-3,
) -> Gauges:
    """Return gauges of a GRPO run: judges of the same completions, rising reward, an entropy that falls with it."""

    def gauges(tick: int, draw: random.Random) -> dict[str, float]:
        level, common = reward(tick), draw.gauss(0, 0.03)
        p = min(1.0, max(0.0, level + common))
        metrics = {
            "loss": draw.gauss(0, 0.01),
            "grad_norm": math.exp(draw.gauss(-0.5, 0.3)),
            "learning_rate": rate(tick),
            "optim/grad_momentum_cos": draw.gauss(0, 0.17),
            "optim/update_ratio": rate(tick) * math.exp(draw.gauss(0, 0.1)),
            "optim/weight_norm": 38 + tick / 100,
            "reward": p,
            "reward_std": 0.75 * math.sqrt(p * (1 - p)),
            "frac_reward_zero_std": max(0.0, p**8 + draw.gauss(0, 0.03)),
            "kl": abs(0.25 + draw.gauss(0, 0.1)) * (8 if draw.random() < 0.02 else 1),
            "entropy": entropy(tick) * math.exp(draw.gauss(0, 0.06)),
            "completions/mean_length": 5 + draw.gauss(0, 0.05),
            "committee/agreement": 0.75 + draw.gauss(0, 0.08),
            "committee/abstentions": 0.0,
        }
        for judge, slope in zip(JUDGES, (1.0, 0.1, 0.7), strict=True):
            base = slope * level + (1 - slope) * 0.95
            metrics[f"rewards/{judge}/mean"] = min(1.0, base + slope * common + draw.gauss(0, 0.02 * slope + 0.01))
        for name, offset in zip(LEVELS, (0.08, 0.0, -0.08), strict=True):
            metrics[f"reward/{name}"] = min(1.0, max(0.0, level + offset + draw.gauss(0, 0.06)))
        return metrics | ({"eval/accuracy": min(1.0, level + 0.05 + draw.gauss(0, 0.01))} if tick % 20 == 0 else {})

    return gauges


def observed(gauges: Gauges, ticks: Iterable[int], seed: int = 0) -> list[Observation]:
    """Return gauges that depend only on the tick and the seed."""
    return [seen(tick, gauges(tick, random.Random(f"{seed} {tick}"))) for tick in ticks]


def seen(tick: int, metrics: Mapping[str, float], step: int | None = None) -> Observation:
    return Observation(
        incarnation=1, n=2 * tick, tick=tick, step=tick if step is None else step, progress=min(1.0, tick / 1000),
        metrics=dict(metrics),
    )  # fmt: skip


def receipt(tick: int, actuator: str, before: object = 0.0, after: object = 1.0) -> Receipt:
    return Receipt.model_validate(
        {
            "incarnation": 1, "n": 2 * tick + 1, "decision_id": f"{tick}", "actuator": actuator, "status": "applied",
            "before": before, "after": after, "tick": tick, "step": tick,
        }
    )  # fmt: skip


def agent_messages(
    agent: Agent, run: RunStarted, events: Iterable[Observation | Receipt | Decision], every: int = 1
) -> list[Vote | Plan | Alternatives | TopicShares]:
    """Return what the agent proposes when it reacts after every `every` events. No proposal is applied."""
    session = Session(agent, "me")
    session.absorb(run)
    messages: list[Vote | Plan | Alternatives | TopicShares] = []
    for count, event in enumerate(events, 1):
        session.absorb(event)
        if count % every:
            continue
        messages += [
            message
            for message in session.react()
            if not isinstance(message, AgentStatus | Alert | TopicShares | GraphReview)
        ]
        assert not session.problems, session.problems
    return messages


def votes(agent: Agent, run: RunStarted, events: Iterable[Observation | Receipt | Decision]) -> list[Vote]:
    """Return the agent's votes. Of alternatives, use the agent's first one."""
    return [word for word in without_graph(agent_messages(agent, run, events)) if isinstance(word, Vote)]
