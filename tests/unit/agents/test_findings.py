"""What is wrong with a run, from its levels alone and from what the agents did: the true cause comes first."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.support.mesh_log import LR, Log

from oven_agents.diagnosis.engine import find_findings, read_record
from oven_agents.diagnosis.finding import Finding
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, Value

RATE = ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.01, high=100, value=1.0)
ROLLBACK = ActuatorSpec(name="run.rollback", kind="action", effect="moves_weights")
DECAY = ActuatorSpec(name="optimizer.weight_decay", kind="scalar", low=0, high=100, value=10.0)
BETA = ActuatorSpec(name="grpo.beta", kind="scalar", scale="log", low=0.01, high=10, value=1.0, moves_own_metric=True)
TEACHER = ActuatorSpec(name="teacher.active", kind="choice", choices=("small", "strong"), value="small")
MIXTURE = ActuatorSpec(
    name="data.mixture", kind="simplex", choices=("easy", "hard"), value={"easy": 1.0, "hard": 0.0}, low=0, high=1,
    moves_own_metric=True,
)  # fmt: skip
REWARD = MetricSpec(name="reward", better="up", ceiling=1.0)
LOSS = MetricSpec(name="loss", better="down")
COSINE, RATIO, LR_METRIC = "optim/grad_momentum_cos", "optim/update_ratio", "learning_rate"
Metrics = Callable[[int], Mapping[str, float]]


def started(*specs: ActuatorSpec, objective: MetricSpec = REWARD, **rules: Any) -> Log:
    """Return the log of a run that announces all metrics and these knobs, with one agent."""
    log = Log()
    names = (COSINE, RATIO, LR_METRIC, "kl", "confidence/std", "confidence/mean", "informativeness/mean", "loss")
    more = tuple(MetricSpec(name=name) for name in names if name != objective.name)
    held_out = MetricSpec(name="eval/accuracy/hard", better="up", held_out=True, ceiling=1.0)
    moves = tuple(spec.name for spec in specs)
    log.start(specs=specs, metrics=(objective, *more, held_out), max_steps=200, alone={"expert": moves}, **rules)
    log.join("expert", moves=moves)
    return log


def observe(log: Log, count: int, metrics: Metrics) -> None:
    for _ in range(count):
        log.tick(1, **metrics(log.mesh.state.tick + 1))


def evaluated(quality: Callable[[int], float]) -> Metrics:
    """Return metrics with this held-out quality every ten ticks, and a reward that shows nothing."""

    def metrics(tick: int) -> dict[str, float]:
        held_out = {"eval/accuracy/hard": quality(tick)} if tick % 10 == 1 else {}
        return {"reward": 0.3 + 0.1 * wave(tick), COSINE: 0.1 * wave(tick), **held_out}

    return metrics


def findings(log: Log) -> list[Finding]:
    return find_findings(read_record(log.events))


def wave(tick: int) -> float:
    """Return the same scatter in every run, between −1 and 1."""
    return ((tick * 7919) % 101 - 50) / 50


def healthy(tick: int) -> dict[str, float]:
    return {"reward": 0.9 - 0.6 * math.exp(-tick / 40) + 0.03 * wave(tick), COSINE: 0.05 + 0.1 * wave(tick)}


LEVELS: list[tuple[str, tuple[ActuatorSpec, ...], MetricSpec, Metrics]] = [
    ("lr_too_low", (RATE,), REWARD, lambda t: {"reward": 0.3 + t / 1000, COSINE: 0.5 + 0.05 * wave(t)}),
    ("lr_too_low", (RATE,), LOSS, lambda t: {"loss": 5 - t / 100, COSINE: 0.6 + 0.05 * wave(t)}),
    ("lr_too_low", (RATE,), REWARD, evaluated(lambda t: 0.3 + 0.0004 * t)),  # 4 % of the way in 100 ticks
    ("lr_too_low", (RATE,), REWARD, lambda t: {**evaluated(lambda t: 0.56 + t % 20 / 999)(t), RATIO: 4e-5}),
    ("lr_too_high", (RATE,), REWARD, lambda t: {"reward": 0.3 if t < 4 else 0.02, RATIO: 0.05}),
    ("reward_collapse", (RATE,), REWARD, lambda t: {"reward": 0.8 if t < 60 else 0.02, RATIO: 0.001}),
    ("skewed_mixture", (MIXTURE,), REWARD, lambda t: healthy(t) | {"eval/accuracy/hard": 0.5}),
    ("weak_teacher", (BETA, TEACHER), REWARD, lambda t: {"reward": 0.5 + 0.01 * wave(t), "kl": 0.2}),
    ("kl_penalty_too_strong", (BETA,), REWARD, lambda t: {"reward": 0.5 + 0.01 * wave(t), "kl": 0.2}),
    ("weight_decay_too_high", (DECAY,), LOSS, lambda t: {"loss": 5.0, LR_METRIC: 0.001, RATIO: 0.012, COSINE: 0.6}),
    (
        "confidence_untaught", (RATE,), REWARD,
        lambda t: healthy(t) | {"confidence/std": 0.05, "confidence/mean": 0.5, "informativeness/mean": 0.5},
    ),
    (
        "overconfident", (RATE,), REWARD,
        lambda t: healthy(t) | {"confidence/std": 0.03, "confidence/mean": 0.95, "informativeness/mean": 0.5},
    ),
    ("nan", (RATE,), REWARD, lambda t: healthy(t) | ({"loss": math.nan} if t > 60 else {"loss": 1.0})),
]  # fmt: skip


@pytest.mark.parametrize(
    "quality",
    [
        lambda tick: 0.3 + 0.006 * tick,  # most of the way
        lambda tick: min(0.96, 0.3 + 0.02 * tick),  # converged
        lambda tick: 0.3 + random.Random(tick).gauss(0, 0.03),  # noise
        lambda tick: 0.97,  # next to its ceiling from the start
    ],
)
def test_held_out_quality_that_rises_far_enough_or_not_at_all_does_not_blame_the_rate(
    quality: Callable[[int], float],
) -> None:
    log = started(RATE)
    observe(log, 100, evaluated(quality))
    assert "lr_too_low" not in {finding.kind for finding in findings(log)}


@pytest.mark.parametrize(("kind", "specs", "objective", "metrics"), LEVELS)
def test_levels_alone_give_the_cause(
    kind: str, specs: tuple[ActuatorSpec, ...], objective: MetricSpec, metrics: Metrics
) -> None:
    log = started(*specs, objective=objective)
    observe(log, 100, metrics)
    first = findings(log)[0]
    assert first.kind == kind and first.severity != "note" and first.message and first.remedy
    assert 1 <= first.onset_step <= 61


def test_a_healthy_run_and_a_run_without_observations_have_no_findings() -> None:
    log = started(RATE, ROLLBACK, BETA)
    assert findings(log) == [] and find_findings(read_record([])) == []
    observe(log, 150, lambda t: healthy(t) | {"kl": 0.02 * t / 150, RATIO: 0.002, "loss": 0.01 * wave(t)})
    assert findings(log) == []


CHANGES: list[tuple[str, ActuatorSpec, Value, str]] = [
    ("lr_too_low", RATE, 4.0, "gradients_aligned"),
    ("lr_too_high", RATE, 0.25, "gradients_opposed"),
    ("skewed_mixture", MIXTURE, {"easy": 0.5, "hard": 0.5}, "starved_level"),
    ("weak_teacher", TEACHER, "strong", "kl_anchor_binds"),
    ("kl_penalty_too_strong", BETA, 0.3, "kl_anchor_binds"),
    ("kl_penalty_too_weak", BETA, 3.0, "kl_runaway"),
    ("weight_decay_too_high", DECAY, 1.0, "weights_shrink"),
]


@pytest.mark.parametrize("autonomy", ["auto", "advise", "observe"])
@pytest.mark.parametrize(("kind", "spec", "value", "symptom"), CHANGES)
def test_a_change_is_evidence_for_its_cause_whether_or_not_it_was_made(
    kind: str, spec: ActuatorSpec, value: Value, symptom: str, autonomy: str
) -> None:
    log = started(spec.model_copy(update={"moves_own_metric": False}), autonomy=autonomy)
    log.join("other", moves=(spec.name,))
    observe(log, 20, healthy)
    log.propose("expert", value, spec.name, confidence=0.9, evidence=(f"symptom:{symptom}",), rationale="a figure is 5")
    observe(log, 5, healthy)
    for decision in log.decisions:
        if decision.verdict == "adopted":
            log.receipt(decision)
    observe(log, 30, healthy)
    first = findings(log)[0]
    assert first.kind == kind and first.severity in ("advise", "act") and "a figure is 5" in first.message
    assert (autonomy == "auto") == ("the controller changed" in first.remedy)


def raised(log: Log, value: float, reward: Callable[[int], float]) -> None:
    """Have the rate changed for a reason, and observe this reward afterwards."""
    symptom = "gradients_aligned" if value > 1 else "update_ratio_high"
    log.propose("expert", value, confidence=0.9, evidence=(f"symptom:{symptom}",), target="reward", horizon=20)
    observe(log, 4, healthy)
    log.receipt(log.decisions[-1])
    observe(log, 45, lambda t: {"reward": reward(t)})


def test_the_outcome_decides_whether_a_change_was_right() -> None:
    confidences = []
    for level in (0.9, 0.3):
        log = started(RATE)
        observe(log, 25, lambda t: {"reward": 0.5 + 0.02 * wave(t)})
        raised(log, 4.0, lambda t, level=level: level + 0.02 * wave(t))  # type: ignore[misc]
        by_kind = {finding.kind: finding for finding in findings(log)}
        confidences.append(by_kind["lr_too_low"].confidence if "lr_too_low" in by_kind else 0.0)
    assert confidences[0] > 0.9 and confidences[1] < 0.3


def test_undoing_the_controllers_own_raise_does_not_say_that_the_rate_was_too_high() -> None:
    log = started(RATE)
    observe(log, 25, healthy)
    raised(log, 4.0, lambda t: 0.5 + 0.02 * wave(t))
    log.propose("expert", 2.0, confidence=0.9, evidence=("symptom:update_ratio_high",))
    observe(log, 5, healthy)
    assert "lr_too_high" not in {finding.kind for finding in findings(log)}


def test_the_effect_of_a_change_is_no_fault() -> None:
    def swapped(is_announced: bool) -> set[str]:
        log = started(TEACHER, BETA)
        observe(log, 60, lambda t: healthy(t) | {"kl": 0.1 + 0.01 * wave(t)})
        if is_announced:
            log.propose("expert", "strong", TEACHER.name, confidence=0.9)
            log.tick(3, **healthy(60))
            log.receipt(log.decisions[-1])
        observe(log, 30, lambda t: healthy(t) | {"kl": 2.0 + 0.01 * wave(t)})
        return {finding.kind for finding in findings(log)}

    assert "kl_runaway" in swapped(False) and "kl_runaway" not in swapped(True)


def test_a_measurement_does_not_explain_a_fault() -> None:
    log = started(BETA, ACTUATORS["run.evaluate"])
    observe(log, 60, lambda t: healthy(t) | {"kl": 0.1 + 0.01 * wave(t)})
    log.propose("expert", None, "run.evaluate", confidence=0.9)
    log.tick(3, **healthy(60))
    log.receipt(log.decisions[-1])
    observe(log, 30, lambda t: healthy(t) | {"kl": 2.0 + 0.01 * wave(t)})
    assert "kl_runaway" in {finding.kind for finding in findings(log)}


def test_a_cause_comes_before_the_states_that_it_explains() -> None:
    log = started(RATE)
    observe(log, 100, lambda t: {"reward": 0.3 if t < 4 else 0.02, RATIO: 0.05, "loss": 1.0 if t < 90 else math.nan})
    causes_first = findings(log)
    assert causes_first[0].kind == "lr_too_high"
    assert {finding.kind: finding.severity for finding in causes_first}["nan"] == "note"


def test_a_cause_that_the_controller_treated_comes_before_a_surer_state() -> None:
    def collapsed(tick: int) -> dict[str, float]:
        held_out = {"eval/accuracy/hard": 0.8 if tick < 40 else 0.5} if tick % 25 == 1 else {}
        return {"reward": 0.3 + 0.1 * wave(tick), **held_out}

    def ended(is_treated: bool) -> dict[str, str]:
        log = started(RATE)
        observe(log, 280, collapsed)
        if is_treated:
            log.propose("expert", 0.125, evidence=("symptom:update_ratio_high",))
            observe(log, 4, collapsed)
            log.receipt(log.decisions[-1])
        observe(log, 20, collapsed)  # too few for an outcome of the change
        return {finding.kind: finding.severity for finding in findings(log)}

    assert ended(False)["reward_collapse"] == "act"
    treated = ended(True)
    assert next(iter(treated)) == "lr_too_high" and treated["reward_collapse"] == "note"


def test_an_agents_text_is_cleaned_and_repeated_proposals_do_not_add_up() -> None:
    def rejected(count: int) -> Finding:
        log = started(RATE)
        log.join("stranger", moves=(LR,))
        observe(log, 20, healthy)
        for _ in range(count):
            why = "\x1b[31m gradients " + "x" * 1000
            log.propose("stranger", 4.0, confidence=0.4, evidence=("symptom:gradients_aligned",), rationale=why)
            observe(log, 8, healthy)
        assert {decision.verdict for decision in log.decisions} == {"rejected"}
        return findings(log)[0]

    once, often = rejected(1), rejected(12)
    assert once.severity == often.severity == "note" and once.confidence == often.confidence
    assert often.message.isprintable() and len(often.message) <= 400
