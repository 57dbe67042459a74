"""What `bench trials` and `bench short-horizon` measure, on the linear model: each figure can come out badly."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.support.gym_line import Line, Plain

from oven_bench.gym.fault import Fault, Trainee
from oven_bench.gym.task_table import Kind
from oven_bench.gym.trials import (
    bit_equality,
    command,
    coverage,
    healthy_with_trials,
    null_trials,
    planted_arms,
    short_horizon,
)
from oven_bench.gym.trials.command import Found, Size, coverages, figures, measure, parts
from oven_bench.gym.trials.coverage import Effect
from oven_bench.gym.trials.ordered_trials import Changes, Order, OrderingLink, Run, fingerprint, usual
from oven_bench.gym.trials.populations import POPULATIONS, prompts, rows
from oven_bench.gym.trials.short_horizon import FACTORS, Tried
from oven_core.protocol.actions import ROLLBACK

RATE, CLIP = "optimizer.lr_scale", "grad.clip"
SMALL = Size([1], nulls=1, rounds=1, draws=4, every=1)


class Forgetful(Line):
    """Takes its momentum along where a branch is taken back."""

    def restore_branch(self, state: Mapping[str, Any]) -> None:
        momentum = copy.deepcopy(self.optimizer.state_dict())
        super().restore_branch(state)
        self.optimizer.load_state_dict(momentum)


class Extravagant(Line):
    """Computes two steps for one now and then."""

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        if self.gradient_steps % 10 == 3:
            super().train_step(fault)
        return super().train_step(fault)


def line(kind: Kind, seed: int) -> Trainee:
    return Line(kind, seed)


def arms(kind: str, tick: int) -> list[Changes]:
    return [{RATE: 0.5, CLIP: 0.3}, {CLIP: 0.05}, {ROLLBACK: tick - 8}, {"data.skip": 7}]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (command, healthy_with_trials):
        monkeypatch.setattr(module, "TASKS", ("pretraining",))
    for module in (bit_equality, planted_arms):
        monkeypatch.setattr(module, "arms", arms)
    monkeypatch.setattr(coverage, "effects", lambda kind: [{RATE: 0.1}, {RATE: 4.0}, {CLIP: 0.02}, {CLIP: 1.0}])
    monkeypatch.setattr(command, "PER_RUN", 4)
    monkeypatch.setitem(POPULATIONS, "pretraining", lambda trainee: trainee.examples())
    monkeypatch.setattr(healthy_with_trials, "families", lambda: [Plain])


def bits(make: Any) -> tuple[list[bool], list[bool]]:
    found = [*bit_equality.compared(make, ["pretraining"], [1])]
    return [one.control_equal for one in found], [one.change_equal for one in found]


def test_bits_are_equal_where_a_branch_is_whole_and_not_where_it_forgets_something() -> None:
    assert bits(line) == ([True] * 4, [True] * 4)
    controls, changes = bits(Forgetful)
    rollback_alone = [False, False, True, False]  # it comes back to where the control is
    assert controls == changes == rollback_alone


def test_every_figure_is_measured_with_how_many_it_is_of() -> None:
    found = Found()
    told = [*measure(found, line, SMALL)]
    assert len(told) == parts(SMALL)
    said = figures(found)
    assert said | {"null_trials": 4, "bit_equal_runs": 4, "healthy_runs": 1, "coverage_trials": 3} == said
    assert said["coverage_intervals"] == 12
    ones = ("control_bit_equal", "change_bit_equal", "steps_charged_exact")
    assert [said[name] for name in ones] == [1, 1, 1]
    assert said["null_kept_share"] == said["copies_left"] == 0
    assert said["healthy_steps"] == sum(one.row.steps for one in found.played) > 0
    assert said["copies_at_once"] == 2
    assert said["trials_charged"] == len(found.charged) == 2 * 4 + 1 + 4 + 4 + 4
    assert json.dumps(said)


def test_steps_that_were_not_charged_and_copies_that_stay_are_seen() -> None:
    trainee = Line("pretraining", 1)
    run = Run(trainee, OrderingLink([(5, usual(trainee, {CLIP: 0.1}))]))
    kept = run.copies.take()
    run.play(5)
    (seen,) = run.close()
    assert (seen.left, seen.copies) == (1, 3)
    assert (seen.steps, seen.gone_on, seen.ended.extra) == (16, 8, 8)
    del kept
    told = command.charges([seen])
    assert (told["steps_charged_exact"], told["copies_at_once"], told["copies_left"]) == (1, 3, 1)
    seen.steps += 1
    assert command.charges([seen])["steps_charged_exact"] == 0


def test_a_trial_that_is_refused_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "effects", lambda kind: [{"no.such": 1.0}])
    with pytest.raises(RuntimeError, match=r"no\.such"):
        coverage.effects_of(line, "pretraining", 1, 1, 2)


def test_an_interval_covers_what_lies_within_it() -> None:
    effect = Effect("pretraining", 1.0, [(1.0, 0.1), (1.19, 0.1), (1.2, 0.1), (0.5, 0.0), (1.0, 0.0)])
    assert effect.covered == [True, True, False, False, True]
    assert effect.size == pytest.approx(1.0 / 0.06)
    told = coverages([effect, Effect("pretraining", 0.0, [(0.0, 0.0)])])
    assert (told["coverage"], told["coverage_intervals"]) == (pytest.approx(4 / 6, abs=1e-4), 6)
    assert (told["coverage_large_effects"], told["coverage_small_effects"]) == (0.6, 1.0)


def test_intervals_are_of_samples_that_both_arms_share() -> None:
    found, seen = coverage.effects_of(line, "pretraining", 1, 2, 5)
    assert [len(effect.samples) for effect in found] == [5] * 6
    assert len(seen) == 8
    assert all(one.ended.kept == 0 for one in seen), "no change is kept, so that every trial begins from the same run"
    assert len({effect.samples[0] for effect in found}) == 6


def test_other_batches_are_kept_by_luck_and_the_run_continues_without_them() -> None:
    found = null_trials.luck(line, 1, 4)
    assert [one.ended.kept for one in found] == [0] * 4
    assert {one.order.arms[0]["data.skip"] for one in found} == {100, 200, 300, 400}


def test_populations_are_of_the_task_s_own_reading() -> None:
    from oven_bench.gym.trainee_factory import make

    for kind, population, least in (("pretraining", rows, 576), ("grpo", prompts, 1600)):
        trainee = make(kind, 1)
        values, own = population(trainee), trainee.examples()
        assert len(values) >= least > len(own)
        if kind == "pretraining":
            assert values[: len(own)] == pytest.approx(own, rel=1e-5)
        assert all(0 <= value <= 10 for value in values)


def test_a_fingerprint_is_of_every_bit() -> None:
    zero, low = torch.zeros(2), torch.tensor([0.0, 1e-45])
    tensors: list[Any] = [zero, -zero, low, zero.double(), zero[None]]
    given = [*tensors, [zero], {"a": zero}, {"b": zero}, (1, {2}), None, 0.0]
    assert len({fingerprint(one) for one in given}) == len(given)
    assert fingerprint({"a": [zero, {1, 2}]}) == fingerprint({"a": [zero.clone(), {2, 1}]})
    with pytest.raises(TypeError, match="object"):
        fingerprint([object()])


def test_rates_are_tried_with_and_without_a_cool_down_and_played_to_the_end() -> None:
    found = short_horizon.tried(line, "pretraining", 1, steps=4, starts=(10, 20), end=60)
    assert [(one.start, one.factor) for one in found] == [(start, factor) for start in (10, 20) for factor in FACTORS]
    trainee = Line("pretraining", 1)
    while trainee.gradient_steps < 60:
        trainee.train_step()
    plain = trainee.quality()
    other = Line("pretraining", 1)
    while other.gradient_steps < 60:
        if other.gradient_steps == 20:
            other.scale = FACTORS[0]
        other.train_step()
    assert found[4].worth == pytest.approx((plain - other.quality()) / plain)


def test_what_a_scheme_keeps_is_counted_with_its_worth() -> None:
    tried = [
        Tried("grpo", 1, 10, factor, kept, cooled, worth, -worth)
        for factor, kept, cooled, worth in ((0.1, True, False, -0.2), (0.3, True, True, 0.1), (0.1, False, False, -0.4))
    ]
    said = short_horizon.figures(tried)
    assert (said["kept_share"], said["kept_n"], said["kept_worth"], said["kept_and_worse"]) == (0.6667, 2, -0.05, 1)
    assert (said["kept_cooled_n"], said["kept_cooled_worth"], said["kept_cooled_and_worse_cooled"]) == (1, 0.1, 1)


def test_an_order_has_the_rules_steps_and_a_cool_down_only_where_a_rate_changes() -> None:
    trainee = Line("pretraining", 1)
    assert usual(trainee, {RATE: 0.5}) == Order(({RATE: 0.5},), 8, 4)
    assert usual(trainee, {CLIP: 0.5}, {"data.skip": 3}).cooldown == 0
