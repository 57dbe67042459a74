"""Healthy runs get no advice: simulated curves of many families, lengths and noise levels, and special logs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
from tests.support.simulated_curves import (
    HEALTHY,
    MIXTURE,
    NO_VALUE,
    cosine_decay,
    decay,
    exponential,
    noisy,
    record_of_curves,
    with_optimizer,
)
from tests.support.simulated_gauges import HEALTHY_GAUGES

from oven_agents.diagnosis.engine import find_findings
from oven_agents.diagnosis.run_record import RunRecord
from oven_core.protocol.messages import Horizon

LENGTHS = (10, 45, 200, 1000, 5000)
FAMILIES = {**HEALTHY, **HEALTHY_GAUGES}


def advice(record: RunRecord) -> list[str]:
    return [f"{f.severity}: {f.kind}: {f.message}" for f in find_findings(record) if f.severity != "note"]


def reviewed(curves: Mapping[str, Sequence[float]], first_step: int = 1) -> list[str]:
    return advice(record_of_curves(curves, first_step=first_step))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_family(family: str) -> None:
    for length in LENGTHS:
        for seed in range(2):
            curves = FAMILIES[family](length, random.Random(f"{family} {length} {seed}"))
            assert reviewed(curves, 100_000 if family == "continued" else 1) == [], (length, seed)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_full_rate_from_the_start_without_harm_is_healthy(rate: float) -> None:
    """A constant rate, and one that falls."""
    rng = random.Random(8)
    curves = with_optimizer(decay(300, rng), 300, rng, lambda progress: rate**progress)
    assert "missing_warm_up" not in {finding.kind for finding in find_findings(record_of_curves(curves))}


def test_a_loss_that_rises_during_its_warm_up_has_one() -> None:
    rng = random.Random(9)
    loss = noisy([5 * math.exp(-n / 99) * (1 + n / 5 * math.exp(1 - n / 5)) for n in range(300)], rng, 0.02)
    with_warm_up = with_optimizer({"loss": loss}, 300, rng, lambda progress: min(1.0, progress / 0.03))
    assert reviewed(with_warm_up) == []
    assert reviewed(with_warm_up | {"learning_rate": [3e-4] * 300}) != [], "without the warm-up, it is a finding"


def test_slower_steps_are_no_fault_after_a_change_of_a_knob_or_with_longer_completions() -> None:
    times = [1.0 + 0.01 * (n % 7) + (n >= 100) for n in range(200)]
    reward = [0.1 + n / 400 for n in range(200)]
    assert reviewed({"reward": reward, "step_time": times}) != []
    assert advice(record_of_curves({"reward": reward, "step_time": times}, changes=[(95, "teacher.active")])) == []
    lengths = [100.0 * time for time in times]
    assert reviewed({"reward": reward, "step_time": times, "completions/mean_length": lengths}) == []


def test_slow_steps_for_evaluations_are_at_most_a_note() -> None:
    times = [30.0 if n % 10 == 9 else 1.0 + 0.01 * (n % 7) for n in range(300)]
    curves = {"loss": exponential(300, random.Random(10)), "step_time": times}
    assert reviewed(curves) == []
    note = next(f for f in find_findings(record_of_curves(curves)) if f.kind == "slow_steps")
    assert "30 of 300" not in note.message and "of the total time" in note.message


def test_a_resumed_run_gets_a_note_only() -> None:
    record = record_of_curves(cosine_decay(400, random.Random(1)))
    record.steps = [step if index < 250 else step - 50 for index, step in enumerate(record.steps)]
    record.start_count = 2
    assert advice(record) == []
    note = next(f for f in find_findings(record) if f.kind == "steps_out_of_order")
    assert note.onset_step == 201 and "the step drops from 250 back to 201 at row 251" in note.message


def test_a_run_that_continues_where_it_stopped_gets_no_note() -> None:
    record = record_of_curves(cosine_decay(400, random.Random(1)))
    record.start_count = 2
    assert "steps_out_of_order" not in {finding.kind for finding in find_findings(record)}


def test_a_change_of_the_mixture_may_lower_the_reward() -> None:
    rng = random.Random(2)
    reward = [(0.3 + n / 400 if n < 200 else 0.3 + (n - 200) / 800) + rng.gauss(0, 0.03) for n in range(400)]
    changed = record_of_curves({"reward": reward}, changes=[(200, MIXTURE.name)])
    assert advice(changed) == []
    assert advice(record_of_curves({"reward": reward})) != [], "without the change, it is a fall of the reward"


def test_a_run_that_has_hardly_begun_is_not_stuck() -> None:
    """100 of 10,000 planned steps, during the warm-up."""
    rng = random.Random(3)
    curves = with_optimizer({"loss": noisy([9.0] * 100, rng, 0.02)}, 100, rng, lambda progress: 0.01 * progress)
    record = record_of_curves(curves)
    assert record.run is not None and advice(record) != []
    record.run = record.run.model_copy(update={"horizon": Horizon(max_steps=10_000)})
    assert advice(record) == []


def test_a_loss_that_fell_within_its_first_readings_is_not_stuck() -> None:
    rng = random.Random(4)
    for length in (30, 300, 3000):
        loss = [3.0 * (1 + 2 * math.exp(-n)) for n in range(length)]
        assert reviewed({"loss": noisy(loss, rng, 0.1)}) == []


def test_a_solved_problem_is_not_dead() -> None:
    loss = [round(2 * 0.7**n, 4) for n in range(200)]
    assert reviewed({"loss": loss}) == []
    assert reviewed({"loss": loss, "grad_norm": [round(0.7**n, 6) for n in range(200)]}) == []


@pytest.mark.parametrize("ceiling", [1.0, 500.0])
def test_a_reward_at_its_ceiling_is_no_plateau(ceiling: float) -> None:
    rng = random.Random(5)
    assert reviewed({"reward": [min(ceiling, ceiling * rng.gauss(0.97, 0.03)) for _ in range(1000)]}) == []


def test_a_loss_on_its_way_back_has_not_diverged() -> None:
    rng = random.Random(6)
    loss = [1 + 2 * math.exp(-n / 40) + 4 * math.exp(-(n - 240) / 25) * (n >= 240) for n in range(300)]
    assert reviewed({"loss": noisy(loss, rng, 0.02)}) == []


def test_gradients_that_once_overflow_and_user_metrics_without_values_are_normal() -> None:
    rng = random.Random(7)
    curves = with_optimizer(decay(300, rng), 300, rng, lambda progress: 1.0)
    curves["grad_norm"][2] = math.inf
    curves |= {"mine/score": [math.nan] * 300, "mine/aux_loss": [math.nan] * 300, "mine/constant": [0.0] * 300}
    assert reviewed(curves) == []


@pytest.mark.parametrize("length", range(1, 13))
def test_the_shortest_logs_are_read(length: int) -> None:
    rng = random.Random(length)
    for values in ([1.0] * length, [-1.0] * length, [0.0] * length, exponential(length, rng), [math.nan] * length):
        find_findings(record_of_curves({"loss": values, "reward": values, "eval/loss": values, "grad_norm": values}))


def held_out_note(**held_out: list[float]) -> str:
    """Return the text of the note on held-out metrics, which are measured every 20 of 400 steps, or an empty string."""
    curves = {"loss": [2 + math.exp(-n / 5) + 0.01 * math.sin(n) for n in range(400)]}
    for name, values in held_out.items():
        curves[f"eval/{name}"] = [values[n // 20] if n % 20 == 19 else NO_VALUE for n in range(400)]
    record = record_of_curves(curves)
    notes = {finding.kind: f"{finding.message}; {finding.remedy}" for finding in find_findings(record)}
    return notes.get("held_out_worse", "")


def test_a_held_out_loss_that_gets_worse_matters_less_if_the_task_does_not() -> None:
    falls = [2.0 - 0.05 * n if n < 12 else 1.45 + 0.03 * (n - 11) for n in range(20)]
    assert "1.45 at step 240; since then 1.48 to 1.69" in held_out_note(loss=falls)
    assert held_out_note(loss=falls, accuracy=[0.5 + 0.01 * n for n in range(20)]) == ""
    jumps = [1.0, *[1.5 + 0.01 * n for n in range(19)]]
    text = held_out_note(loss=jumps, accuracy=[0.5 + 0.01 * n for n in range(20)])
    assert "Meanwhile eval/accuracy improved" in text and "use the checkpoint of step 20" in text


def test_a_precision_that_falls_while_the_recall_rises_is_no_fault() -> None:
    precision, recall = (
        [0.5 + 0.02 * n for n in range(16)] + [0.7, 0.69, 0.68, 0.67],
        [0.5 + 0.02 * n for n in range(20)],
    )
    assert "eval/precision is worse than its best" in held_out_note(precision=precision)
    assert held_out_note(precision=precision, recall=recall) == ""


def test_a_gradient_norm_that_falls_again_while_the_loss_falls_is_no_fault() -> None:
    rng = random.Random(2)
    loss = noisy([3 * math.exp(-n / 150) for n in range(400)], rng, 0.02)
    norms = {"lasting": [1.0 if n < 100 else 3.0 for n in range(400)]}
    norms["temporary"] = [value if n < 360 else 1.1 for n, value in enumerate(norms["lasting"])]
    kinds = {
        name: {f.kind for f in find_findings(record_of_curves({"loss": loss, "grad_norm": noisy(curve, rng, 0.05)}))}
        for name, curve in norms.items()
    }
    assert "grad_norm_growth" in kinds["lasting"] and "grad_norm_growth" not in kinds["temporary"]
