"""Reviews of other agents' ballots: the state of each signal, and the vote that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.support.gauges import noisy

from oven_agents import Agent, Knob, Window
from oven_agents.shipped.best_checkpoint import BestCheckpoint
from oven_agents.shipped.divergence import Divergence
from oven_agents.shipped.drift import Drift
from oven_agents.shipped.entropy_collapse import EntropyCollapse
from oven_agents.shipped.grad_clip import GradClip
from oven_agents.shipped.health import Health as HealthAgent
from oven_agents.shipped.learning_rate import LearningRate
from oven_agents.stats.health import (
    Health,
    anchor_health,
    gradient_health,
    held_out_health,
    objective_health,
    policy_health,
)
from oven_agents.stats.reviews import effect_of, review_change
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.evidence import read_signal
from oven_core.protocol.messages import ActuatorSpec, BallotOpened, MetricSpec, Observation, Receipt, RunStarted, Value
from oven_core.protocol.rules import Rules

LR = "optimizer.lr_scale"
SCALARS = ("optimizer.lr_scale", "optimizer.weight_decay", "grad.clip", "grpo.beta", "channel.sft", "distillation.beta")
SPECS = (
    *(ActuatorSpec(name=name, kind="scalar", low=0.0, high=100, value=1.0) for name in SCALARS),
    ActuatorSpec(name="teacher.active", kind="choice", choices=("small", "big"), value="small"),
    *(ACTUATORS[name] for name in ("run.rollback", "run.evaluate", "run.checkpoint", "run.hold", "data.skip")),
)
HELD_OUT = MetricSpec(name="eval/accuracy", better="up", held_out=True)
States = dict[str, Sequence[float]]


def window(series: States) -> Window:
    """Return a window with these series, which end at the same tick. The objective is the reward, if there is one."""
    names = [name for name in series if name != HELD_OUT.name]
    specs = tuple(MetricSpec(name=name, better="up" if name == "reward" else "down") for name in names)
    run = RunStarted(incarnation=1, n=0, recipe="toy", actuators=SPECS, metrics=(*specs, HELD_OUT))
    length = max(map(len, series.values()))
    observations = []
    for tick in range(length):
        metrics = {name: values[tick - length] for name, values in series.items() if tick - length + len(values) >= 0}
        observations.append(Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0.1, metrics=metrics))
    knobs = {spec.name: Knob(spec, spec.value) for spec in SPECS}
    return Window(run, observations, knobs, [], {})


def ballot(actuator: str = LR, proposal: Value = 2.0) -> BallotOpened:
    return BallotOpened(
        id="7", actuator=actuator, proposal=proposal, opened_by="other", tick=1, closes_at_tick=4, eligible=("other",)
    )


STATES: list[tuple[Callable[[Window], Health | None], str, Sequence[float], str]] = [
    (objective_health, "reward", [0.1 * n for n in range(24)], "better"),
    (objective_health, "reward", [-0.1 * n for n in range(24)], "worse"),
    (objective_health, "reward", noisy(0.5, 24, 0.1), "steady"),
    (objective_health, "reward", [0.5] * 24, "steady"),
    (objective_health, "loss", [2.0 - 0.05 * n for n in range(24)], "better"),
    (objective_health, "loss", [2.0 + 0.05 * n for n in range(24)], "worse"),
    (objective_health, "loss", [*noisy(2.0, 21, 0.05), 2.6, 2.5, 2.6], "worse"),  # a jump within three ticks
    (objective_health, "loss", [1.0, math.nan], "worse"),
    (held_out_health, "eval/accuracy", [0.5, 0.6], "better"),
    (held_out_health, "eval/accuracy", [0.6, 0.5], "worse"),
    (held_out_health, "eval/accuracy", [0.6, 0.605], "steady"),
    (held_out_health, "eval/accuracy", [0.65, 0.2, 0.3, 0.5], "steady"),  # it recovers
    (held_out_health, "eval/accuracy", [0.5, 0.8, 0.5, 0.8, 0.5], "steady"),
    (gradient_health, "grad_norm", noisy(1.0, 24, 0.1), "steady"),
    (gradient_health, "grad_norm", [*noisy(1.0, 22, 0.1), 9.0], "worse"),
    (gradient_health, "grad_norm", [1.0, math.inf], "worse"),
    (gradient_health, "grad_norm", [*noisy(1.0, 12, 0.1), math.inf, *noisy(1.0, 12, 0.1)], "steady"),
    (policy_health, "entropy", noisy(1.0, 24, 0.05), "steady"),
    (policy_health, "entropy", [*[1.0] * 12, *[0.3] * 12], "worse"),
    (policy_health, "entropy", [*[1.0] * 12, *[-0.3] * 12], "steady"),  # a density's entropy has no natural zero
    (anchor_health, "kl", [0.02] * 60, "steady"),
    (anchor_health, "kl", [*[0.1] * 40, *[0.1 * 1.4**n for n in range(20)]], "worse"),
]


@pytest.mark.parametrize(("health", "metric", "values", "state"), STATES)
def test_a_signal_has_a_state_with_figures(
    health: Callable[[Window], Health | None], metric: str, values: Sequence[float], state: str
) -> None:
    result = health(window({metric: values}))
    assert result is not None and (result.state, result.metrics) == (state, (metric,))
    assert result.text and len(result.text) <= 200


@pytest.mark.parametrize(
    ("health", "metric"),
    [
        (objective_health, "reward"), (held_out_health, "eval/accuracy"), (gradient_health, "grad_norm"),
        (policy_health, "entropy"), (anchor_health, "kl"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("series", [{"other": [1.0] * 30}, {"metric": [1.0], "other": [1.0] * 30}], ids=["none", "one"])
def test_too_few_values_have_no_state(health: Callable[[Window], Health | None], metric: str, series: States) -> None:
    assert health(window({metric if name == "metric" else name: values for name, values in series.items()})) is None


@pytest.mark.parametrize(
    ("actuator", "proposal", "effect"),
    [
        (LR, 2.0, "pushes"), (LR, 0.5, "protects"), ("grad.clip", 2.0, "pushes"), ("grad.clip", 0.5, "protects"),
        ("grpo.beta", 2.0, "protects"), ("grpo.beta", 0.5, "pushes"), ("run.rollback", 4.0, "protects"),
        ("data.skip", 4.0, "redirects"), ("teacher.active", "big", "redirects"), ("channel.sft", 0.5, "redirects"),
        ("optimizer.weight_decay", 2.0, "redirects"), ("distillation.beta", 0.5, "redirects"),
        ("run.evaluate", None, None), ("run.checkpoint", None, None), ("run.hold", None, None), ("no.such", 1.0, None),
    ],
)  # fmt: skip
def test_a_change_has_an_effect_on_the_training(actuator: str, proposal: Value, effect: str | None) -> None:
    assert effect_of(ballot(actuator, proposal), window({"loss": [1.0]})) == effect


CHANGES = {
    "pushes": ballot(LR, 2.0),
    "protects": ballot("run.rollback", 4.0),
    "redirects": ballot("teacher.active", "big"),
}


@pytest.mark.parametrize(
    ("effect", "state", "metric", "stance"),
    [
        ("pushes", "better", "loss", "for"), ("pushes", "steady", "loss", "for"),
        ("pushes", "worse", "loss", "against"),
        ("protects", "better", "loss", ""), ("protects", "steady", "loss", ""), ("protects", "worse", "loss", "for"),
        ("redirects", "better", "loss", ""), ("redirects", "steady", "loss", "for"),
        ("redirects", "worse", "loss", "for"),
        ("protects", "better", "eval/accuracy", "against"), ("redirects", "better", "eval/accuracy", "against"),
        ("pushes", "better", "eval/accuracy", "for"),
    ],
)  # fmt: skip
def test_the_vote_follows_from_the_state_and_the_effect(effect: str, state: str, metric: str, stance: str) -> None:
    health = Health(state, "the figures", (metric,))  # type: ignore[arg-type]
    vote = review_change(CHANGES[effect], window({"loss": [1.0]}), lambda _: health)
    if not stance:
        assert vote is None
        return
    assert vote is not None and (vote.stance, vote.ballot, vote.rationale) == (stance, "7", "the figures")
    signal = read_signal(vote.evidence)
    assert signal is not None and signal.metrics == (metric,)
    is_veto = vote.stance == "against" and vote.confidence >= Rules().veto_confidence
    assert is_veto == (effect == "pushes" and state == "worse")


@pytest.mark.parametrize(
    ("health", "metric", "values", "is_firm"),
    [(h, m, v, h in (objective_health, held_out_health)) for h, m, v, state in STATES if state == "worse"],
)
def test_only_an_objective_or_held_out_quality_that_got_worse_makes_a_review_firm(
    health: Callable[[Window], Health | None], metric: str, values: Sequence[float], is_firm: bool
) -> None:
    series: States = {metric: values} if metric in ("reward", "loss") else {"reward": [0.5] * 24, metric: values}
    vote = review_change(ballot(proposal=0.5), window(series), health)
    assert vote is not None and vote.stance == "for"
    assert (vote.confidence >= Rules().quorum_confidence) == is_firm


def test_the_kl_to_a_new_teacher_is_not_compared_with_that_to_the_old_one() -> None:
    before = window({"kl": [0.1] * 30 + [2.6] * 12})
    swap = Receipt(
        incarnation=1, n=99, actuator="teacher.active", status="applied", before="small", after="big", tick=29, step=29
    )
    after = replace(before, receipts=[swap])
    assert [(health := anchor_health(each)) and health.state for each in (before, after)] == ["worse", "steady"]
    assert not Drift().alerts(after)


@pytest.mark.parametrize(
    ("opened_by", "others", "reviews"),
    [("curriculum", ("divergence",), False), ("divergence", ("divergence",), True), ("curriculum", (), True)],
)
def test_one_agent_reviews_the_objective(opened_by: str, others: tuple[str, ...], reviews: bool) -> None:
    cut = ballot().model_copy(update={"opened_by": opened_by, "eligible": (*others, "curriculum", "learning_rate")})
    vote = LearningRate().review(cut, window({"loss": [2.0 + 0.05 * n for n in range(24)]}))
    assert (vote is not None) == reviews


def test_without_a_state_or_an_effect_there_is_no_vote() -> None:
    def fail(_: Window) -> Health:
        raise AssertionError("the signal is read although the change has no effect on the training")

    assert review_change(ballot(), window({"loss": [1.0]}), lambda _: None) is None
    assert review_change(ballot("run.evaluate", None), window({"loss": [1.0]}), fail) is None


@pytest.mark.parametrize(
    ("agent", "series", "kind"),
    [
        (Divergence, {"loss": [1.0 + 0.1 * n for n in range(24)]}, "loss"),
        (Divergence, {"reward": [1.0 - 0.1 * n for n in range(24)]}, "rewards"),
        (BestCheckpoint, {"loss": [1.0] * 3, "eval/accuracy": [0.7, 0.5]}, "held_out"),
        (GradClip, {"grad_norm": [*[1.0] * 20, 9.0]}, "gradients"),
        (EntropyCollapse, {"entropy": [*[1.0] * 12, *[0.3] * 12]}, "policy"),
        (Drift, {"kl": [*[0.1] * 40, *[0.1 * 1.4**n for n in range(20)]]}, "policy"),
    ],
)
def test_a_shipped_agent_objects_to_a_higher_rate_with_its_own_kind_of_evidence(
    agent: type[Agent], series: States, kind: str
) -> None:
    vote = agent().review(ballot(), window(series))
    assert vote is not None and vote.type == "Vote" and vote.stance == "against"  # type: ignore[union-attr]
    signal = read_signal(vote.evidence)  # type: ignore[union-attr]
    assert signal is not None and signal.kind == kind


def learning_loss(final: float) -> list[float]:
    """Return 300 losses that fall to 2.5 and are at `final` from tick 150 on, with a little noise."""
    levels = (final if tick >= 150 else 2.5 + 3 * math.exp(-tick / 25) for tick in range(300))
    return [level + noise for level, noise in zip(levels, noisy(0.0, 300, 0.02), strict=True)]


@pytest.mark.parametrize(
    ("actuator", "proposal", "stance"),
    [
        (LR, 2.0, "against"),
        (LR, 0.5, "for"),
        ("run.rollback", 100.0, "for"),
        ("teacher.active", "big", None),  # the finding says nothing about the teacher
        ("run.checkpoint", 1.0, None),
    ],
)
def test_a_finding_of_harm_speaks_for_gentler_training_and_against_a_harder_push(
    actuator: str, proposal: Value, stance: str | None
) -> None:
    diverged = window({"loss": learning_loss(9.0)})
    vote = HealthAgent().review(ballot(actuator, proposal), diverged)
    assert (vote.stance if vote else None) == stance
    if vote is not None:
        signal = read_signal(vote.evidence)
        assert signal is not None and signal.kind == "loss" and "rose" in vote.rationale


def test_a_healthy_run_gives_the_health_agent_nothing_to_say() -> None:
    healthy = window({"loss": learning_loss(2.5)})
    assert [HealthAgent().review(ballot(LR, rate), healthy) for rate in (2.0, 0.5)] == [None, None]
