"""Made-up gauges of runs with one trouble each. Every shipped agent proposes something in one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import ActuatorSpec, Horizon, MetricSpec, Observation, RunStarted

LEVELS, JUDGES = ("level_1", "level_2", "level_3"), ("exact", "style")
TICKS, ONSET, EVERY = 140, 60, 20
"""Ticks of a run, when its trouble begins, and between two evaluations."""

_BOTH = (
    ActuatorSpec(name="optimizer.lr_scale", kind="scalar", scale="log", low=0.001, high=100, value=1.0),
    ActuatorSpec(name="grad.clip", kind="scalar", scale="log", low=0.001, high=100, value=1.0),
    *(ACTUATORS[f"run.{name}"] for name in ("rollback", "checkpoint", "hold", "stop")),
)
PRETRAINING = RunStarted(
    incarnation=1,
    n=0,
    recipe="pretraining",
    horizon=Horizon(max_steps=1000),
    actuators=(
        *_BOTH,
        ActuatorSpec(name="optimizer.weight_decay", kind="scalar", low=0, high=1, value=0.1),
        ActuatorSpec(
            name="data.mixture",
            kind="simplex",
            choices=("prose", "code"),
            value={"prose": 0.5, "code": 0.5},
            moves_own_metric=True,
        ),
        ActuatorSpec(name="data.skip", kind="action", unit="batches"),
    ),
    metrics=(
        *(MetricSpec(name=f"optim/{name}") for name in ("grad_momentum_cos", "update_ratio", "weight_norm")),
        *(MetricSpec(name=name) for name in ("grad_norm", "learning_rate", "data/repeated")),
        MetricSpec(name="loss", better="down"),
        MetricSpec(name="eval/loss", better="down", held_out=True),
    ),
)
GRPO = RunStarted(
    incarnation=1,
    n=0,
    recipe="grpo",
    horizon=Horizon(max_steps=1000),
    actuators=(
        *_BOTH,
        ActuatorSpec(name="grpo.beta", kind="scalar", low=0, high=2, value=0.5, moves_own_metric=True),
        ActuatorSpec(
            name="reward.weights",
            kind="simplex",
            choices=JUDGES,
            value=dict.fromkeys(JUDGES, 0.5),
            moves_own_metric=True,
        ),
        ActuatorSpec(
            name="data.mixture",
            kind="simplex",
            choices=LEVELS,
            value=dict.fromkeys(LEVELS, 1 / 3),
            moves_own_metric=True,
        ),
    ),
    metrics=(
        *(MetricSpec(name=f"optim/{name}") for name in ("grad_momentum_cos", "update_ratio", "weight_norm")),
        *(MetricSpec(name=name) for name in ("loss", "grad_norm", "learning_rate", "reward_std", "kl", "entropy")),
        *(MetricSpec(name=name) for name in ("frac_reward_zero_std", "completions/mean_length")),
        *(MetricSpec(name=f"committee/{name}") for name in ("agreement", "abstentions")),
        *(MetricSpec(name=f"rewards/{name}/mean", better="up", ceiling=1.0) for name in JUDGES),
        *(MetricSpec(name=f"reward/{name}", better="up", ceiling=1.0) for name in LEVELS),
        MetricSpec(name="reward", better="up", ceiling=1.0),
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0),
    ),
)

SHORT = PRETRAINING.model_copy(update={"horizon": Horizon(max_steps=TICKS)})
CHANNELS = PRETRAINING.model_copy(
    update={
        "actuators": (
            *PRETRAINING.actuators,
            ActuatorSpec(name="channel.mtp", kind="scalar", low=0, high=2, value=1.0),
        ),
        "metrics": (*PRETRAINING.metrics, MetricSpec(name="channel/mtp")),
    }
)
GRAPH = PRETRAINING.model_copy(
    update={
        "actuators": (*PRETRAINING.actuators, ActuatorSpec(name="channel.kg", kind="scalar", low=0, high=1, value=0.5)),
        "metrics": (*PRETRAINING.metrics, MetricSpec(name="channel/kg")),
        "horizon": Horizon(max_steps=400),
    }
)
ROUNDED = SHORT.model_copy(
    update={
        "actuators": (
            *PRETRAINING.actuators,
            ActuatorSpec(name="train.quantisation", kind="choice", choices=("none", "int8", "int4"), value="none"),
        ),
        "metrics": (*PRETRAINING.metrics, MetricSpec(name="eval/int4/loss", better="down", held_out=True)),
    }
)
STARVED = GRPO.model_copy(
    update={
        "actuators": tuple(
            spec.model_copy(update={"value": dict(zip(LEVELS, (0.8, 0.19, 0.01), strict=True))})
            if spec.name == "data.mixture"
            else spec
            for spec in GRPO.actuators
        )
    }
)

Change = Callable[[int, dict[str, float]], dict[str, float]]
"""Ticks since the onset, and what was measured: what is measured instead."""


def _pretraining(tick: int, rng: Random) -> dict[str, float]:
    loss = 4.0 * math.exp(-tick / 120) + 1.0
    ratio = 1e-3 * (1 + rng.gauss(0, 0.05))
    metrics = {
        "loss": loss + rng.gauss(0, 0.03),
        "grad_norm": 0.5 * math.exp(rng.gauss(0, 0.1)),
        "learning_rate": 1e-3,
        "optim/grad_momentum_cos": rng.gauss(0.0, 0.08),
        "optim/update_ratio": ratio,
        "optim/weight_norm": 40.0 + 0.005 * tick,
        "data/repeated": 0.0,
    }
    return metrics | ({"eval/loss": loss + rng.gauss(0, 0.01)} if tick % EVERY == 0 else {})


def _grpo(tick: int, rng: Random) -> dict[str, float]:
    reward = 0.25 + 0.001 * tick
    metrics = {
        "loss": rng.gauss(0, 0.02),
        "grad_norm": 0.5 * math.exp(rng.gauss(0, 0.1)),
        "learning_rate": 1e-4,
        "optim/grad_momentum_cos": rng.gauss(0.0, 0.08),
        "optim/update_ratio": 1e-3 * (1 + rng.gauss(0, 0.05)),
        "optim/weight_norm": 20.0 + 0.001 * tick,
        "reward": reward + rng.gauss(0, 0.02),
        "reward_std": 0.4 + rng.gauss(0, 0.02),
        "frac_reward_zero_std": 0.2,
        "kl": 0.02 + 0.0002 * tick + rng.gauss(0, 0.001),
        "entropy": 1.5 + rng.gauss(0, 0.02),
        "completions/mean_length": 20 + rng.gauss(0, 0.5),
        "committee/agreement": 0.9 + rng.gauss(0, 0.01),
        "committee/abstentions": 0.0,
        **{f"rewards/{name}/mean": reward + rng.gauss(0, 0.02) for name in JUDGES},
        **{f"reward/{name}": reward + rng.gauss(0, 0.03) for name in LEVELS},
    }
    return metrics | ({"eval/accuracy": reward + rng.gauss(0, 0.01)} if tick % EVERY == 0 else {})


def _set(**values: float) -> Change:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return lambda since, was: was | {name: value for name, value in named.items() if name in was}


def _add(name: str, by: Callable[[int], float]) -> Change:
    return lambda since, was: was | ({name: was[name] + by(since)} if name in was else {})


def _times(name: str, by: Callable[[int], float]) -> Change:
    return lambda since, was: was | ({name: was[name] * by(since)} if name in was else {})


def _without(absent: str) -> Change:
    return lambda since, was: {name: value for name, value in was.items() if name != absent}


def _all(*changes: Change) -> Change:
    def changed(since: int, was: dict[str, float]) -> dict[str, float]:
        for change in changes:
            was = change(since, was)
        return was

    return changed


def _fooled(since: int, was: dict[str, float]) -> dict[str, float]:
    up, down = min(0.6, 0.01 * since), min(0.3, 0.006 * since)
    return _all(
        _add("rewards/style/mean", lambda _: up),
        _add("rewards/exact/mean", lambda _: -down),
        _add("reward", lambda _: up / 2),
        _add("eval/accuracy", lambda _: -down),
        _add("committee/agreement", lambda _: -up),
        _add("completions/mean_length", lambda _: 60 * up),
    )(since, was)


ALIGNED = _add("optim/grad_momentum_cos", lambda _: 0.5)
OPPOSED = _add("optim/grad_momentum_cos", lambda _: -0.5)
BROKEN = ("loss", "grad_norm", *(f"optim/{name}" for name in ("grad_momentum_cos", "update_ratio", "weight_norm")))
LONGER_STEPS = _times("optim/update_ratio", lambda _: 8.0)
TROUBLES: dict[str, tuple[RunStarted, Change]] = {
    "pretraining.nothing": (PRETRAINING, _set()),
    "pretraining.aligned": (PRETRAINING, ALIGNED),
    "pretraining.opposed": (PRETRAINING, OPPOSED),
    "pretraining.not_a_number": (PRETRAINING, lambda since, was: was | dict.fromkeys(BROKEN, math.nan)),
    "pretraining.spike": (
        PRETRAINING,
        _all(_add("loss", lambda since: 3.0), _times("grad_norm", lambda since: 8.0), _add("eval/loss", lambda _: 3.0)),
    ),
    "pretraining.diverging": (
        PRETRAINING,
        _all(
            _add("loss", lambda since: 0.05 * since),
            _add("eval/loss", lambda since: 0.05 * since),
            _times("grad_norm", lambda since: 1 + 0.1 * since),
            LONGER_STEPS,
            OPPOSED,
        ),
    ),
    "pretraining.decaying": (
        PRETRAINING,
        _all(
            _times("optim/weight_norm", lambda since: 0.985**since),
            _set(optim__update_ratio=0.02),
            _add("loss", lambda since: 0.03 * since),
            _add("eval/loss", lambda since: 0.03 * since),
        ),
    ),
    "pretraining.repeated": (
        PRETRAINING,
        _all(_set(data__repeated=1.0), _add("loss", lambda since: -0.02 * since), _add("eval/loss", lambda _: 0.3)),
    ),
    "pretraining.plateau": (
        PRETRAINING,
        _all(_set(loss=3.4), _set(eval__loss=3.4), _times("grad_norm", lambda since: 0.2)),
    ),
    "pretraining.outliers": (
        PRETRAINING,
        _all(
            _times("grad_norm", lambda since: 60.0 if since % 9 == 0 else 1.0),
            _times("optim/update_ratio", lambda since: 2.5 if since % 9 == 0 else 1.0),
        ),
    ),
    "pretraining.late": (SHORT, _set()),
    "pretraining.channel": (CHANNELS, lambda since, was: was | {"channel/mtp": 0.7 * was["loss"]}),
    "pretraining.graph": (GRAPH, lambda since, was: was | {"channel/kg": was["loss"]}),
    "pretraining.rounded": (
        ROUNDED,
        lambda since, was: was | ({"eval/int4/loss": was["eval/loss"] + 0.2} if "eval/loss" in was else {}),
    ),
    "pretraining.displaced": (PRETRAINING, _times("optim/weight_norm", lambda since: 1.2)),
    "grpo.nothing": (GRPO, _set()),
    "grpo.aligned": (GRPO, ALIGNED),
    "grpo.opposed": (GRPO, _all(OPPOSED, LONGER_STEPS)),
    "grpo.not_a_number": (GRPO, lambda since, was: was | dict.fromkeys(BROKEN, math.nan)),
    "grpo.collapsed": (
        GRPO,
        _set(
            reward=0.0, **{f"rewards__{judge}__mean": 0.0 for judge in JUDGES}, **{f"reward__{n}": 0.0 for n in LEVELS}
        ),
    ),
    "grpo.anchored": (GRPO, _set(kl=0.3, reward=0.4, eval__accuracy=0.4)),
    "grpo.runaway": (
        GRPO,
        _all(_set(reward=0.4, eval__accuracy=0.3), _add("kl", lambda since: 0.5 + 0.06 * since)),
    ),
    "grpo.fooled": (GRPO, _fooled),
    "grpo.forgetting": (GRPO, _add("eval/accuracy", lambda since: -0.25 if since > 2 * EVERY else 0.0)),
    "grpo.no_spread": (GRPO, _set(reward_std=0.0, frac_reward_zero_std=1.0)),
    "grpo.noise": (GRPO, _all(_set(committee__agreement=0.05), _set(reward_std=0.5, frac_reward_zero_std=0.0))),
    "grpo.starved": (
        STARVED,
        lambda since, was: {name: value for name, value in was.items() if name != "reward/level_3"},
    ),
    "grpo.entropy": (GRPO, _times("entropy", lambda since: 0.95**since)),
}


def observations(trouble: str, cured_at: int = TICKS) -> Iterator[Observation]:
    """Whatever was wrong, from the tick after `cured_at` on all is well, and better than it ever was. The run has gone
    back a step then: weights that were hurt do not mend by themselves."""
    run, change = TROUBLES[trouble]
    healthy = _pretraining if run.recipe == "pretraining" else _grpo
    length = run.horizon.max_steps or 1
    rng = Random(trouble)
    for tick in range(1, TICKS + 1):
        metrics, step = healthy(tick, rng), tick - (tick > cured_at)
        if tick > cured_at:
            metrics = _better(0, metrics)
        elif tick >= ONSET:
            metrics = change(tick - ONSET, metrics)
        yield Observation(incarnation=1, n=tick, tick=tick, step=step, progress=tick / length, metrics=metrics)


def _better(since: int, was: dict[str, float]) -> dict[str, float]:
    rewards = [name for name in was if name.startswith(("reward", "eval/accuracy")) and name != "reward_std"]
    return _all(
        *(_add(name, lambda _: -0.2) for name in was if name.endswith("loss") and was[name] > 0.5),
        *(_add(name, lambda _: 0.3) for name in rewards),
    )(since, was)
