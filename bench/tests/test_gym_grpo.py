"""The GRPO trainee: what the gym takes for granted of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from bench_testing.gym_line import resumed, weights
from oven_bench.fixed_rules import Change, RuleLink
from oven_bench.gym.fault import Fault, Rewards, Step, Trainee
from oven_bench.gym.sorting.sorting_task import JUDGES, held_out, pools
from oven_bench.gym.tasks.grpo.trainee import USER, Grpo
from oven_core.protocol.messages import Observation, RunStarted
from oven_core.protocol.rules import Rules
from oven_learner.client.oven_client import OvenClient
from oven_learner.rollback.memory_snapshots import Snapshots

BEGUN = 12


@pytest.fixture(scope="module")
def begun() -> Grpo:
    """Seed 101 after a few steps. Tests work on copies of it (`fresh`)."""
    trainee = Grpo(101)
    for _ in range(BEGUN):
        trainee.train_step()
    return trainee


@pytest.fixture
def fresh(begun: Grpo) -> Grpo:
    return resumed(begun)


class Judged(Fault):
    """Judges of which some say what they are told to; NaN: they abstain."""

    onset = 0

    def __init__(self, scores: Mapping[str, float], group: int | None = None) -> None:
        self._scores, self._group = scores, group

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        """Of one group, or of all."""
        changed = {name: scores.clone() for name, scores in rewards.items()}
        size = step.completions.group
        rows = slice(None) if self._group is None else slice(self._group * size, (self._group + 1) * size)
        for name, value in self._scores.items():
            changed[name][rows] = value
        return changed


def test_it_is_a_trainee(fresh: Grpo) -> None:
    trainee: Trainee = fresh
    assert trainee.kind == "grpo" and trainee.settings == USER
    assert 20_000 < weights(trainee).numel() < 60_000
    knobs = {"optimizer.lr_scale", "grad.clip", "grpo.beta", "data.mixture", "reward.weights"}
    assert set(trainee.actuators) == {*knobs, "run.evaluate"}


def test_no_prompt_is_both_trained_on_and_held_out() -> None:
    trained = {tuple(row) for level in pools() for row in level.digits.tolist()}
    assert not trained & {tuple(row) for row in held_out().digits.tolist()}
    assert held_out().levels.bincount().min() >= 190


def test_it_learns() -> None:
    trainee = Grpo(101)
    naive = trainee.quality()
    for _ in range(60):
        trainee.train_step()
    assert 0.5 < naive < 0.75
    assert trainee.quality() < naive - 0.15


def test_every_knob_acts_and_reads_back(begun: Grpo) -> None:
    untouched = resumed(begun)
    untouched.train_step()
    ways: dict[str, float | dict[str, float]] = {
        "optimizer.lr_scale": 0.1,
        "grad.clip": 0.01,
        "grpo.beta": 2.0,
        "data.mixture": {"level_3": 0.0, "level_4": 0.0, "level_5": 1.0},
        "reward.weights": {"exact": 1.0, "format": 0.0, "critic": 0.0},
    }
    assert set(ways) == set(begun.actuators) - {"run.evaluate"}
    for name, value in ways.items():
        turned = resumed(begun)
        assert turned.actuators.apply(name, value).status == "applied"
        assert turned.actuators.read(name) == value
        metrics = turned.train_step()
        assert not torch.equal(weights(turned), weights(untouched)), name
        assert turned.actuators.read(name) == value, name
        if name == "optimizer.lr_scale":
            assert metrics["learning_rate"] == pytest.approx(0.1 * USER["learning_rate"])
        if name == "data.mixture":
            assert "reward/level_5" in metrics and "reward/level_3" not in metrics


def test_a_knob_replaces_a_setting_that_a_fault_got_wrong(fresh: Grpo) -> None:
    class Strong(Fault):
        def settings(self, step: Step) -> None:
            step.settings["beta"] = 1.5
            step.settings["learning_rate"] *= 10

    fresh.train_step(Strong(onset=0))
    assert fresh.actuators.read("grpo.beta") == 1.5
    fresh.actuators.apply("grpo.beta", 0.1)
    fresh.actuators.apply("optimizer.lr_scale", 0.5)
    assert fresh.train_step(Strong(onset=0))["learning_rate"] == pytest.approx(5 * USER["learning_rate"])
    assert fresh.actuators.read("grpo.beta") == 0.1
    fresh.train_step()
    assert fresh.settings == USER  # a case leaves no trace in them


def test_a_judge_that_abstains_leaves_its_weight_to_the_others(begun: Grpo) -> None:
    nan = math.nan
    silent, alone = resumed(begun), resumed(begun)
    metrics = silent.train_step(Judged({"format": nan, "critic": nan}))
    alone.actuators.apply("reward.weights", {"exact": 1.0, "format": 0.0, "critic": 0.0})
    alone.train_step()
    assert torch.equal(weights(silent), weights(alone))
    assert metrics["committee/abstentions"] == 2 * USER["prompts"]
    assert "rewards/critic/mean" not in metrics and "committee/agreement" not in metrics
    assert metrics["reward"] == pytest.approx(metrics["rewards/exact/mean"])


def test_a_group_without_a_judge_is_skipped_and_so_is_a_step(begun: Grpo) -> None:
    nobody = dict.fromkeys(JUDGES, math.nan)
    skipped, partly, whole = resumed(begun), resumed(begun), resumed(begun)
    before = weights(skipped)
    metrics = skipped.train_step(Judged(nobody))
    assert torch.equal(weights(skipped), before)  # nor does Adam's momentum move it
    assert (skipped.gradient_steps, skipped.cursor) == (BEGUN + 1, BEGUN + 1)
    assert not {"loss", "reward", "grad_norm", "kl"} & set(metrics)
    partly.train_step(Judged(nobody, group=3))
    whole.train_step()
    assert torch.isfinite(weights(partly)).all()
    assert not torch.equal(weights(partly), weights(whole))


def test_a_broken_policy_has_a_score_and_does_not_raise(fresh: Grpo) -> None:
    with torch.no_grad():
        next(fresh.model.parameters()).fill_(math.nan)
    metrics = fresh.train_step()
    assert math.isnan(metrics["loss"]) and fresh.quality() == 1.0
    assert math.isfinite(metrics["reward"])


class Back:
    """Cuts the rate, and later asks for a rollback to the newest copy from tick 1 or before."""

    def start(self, run: RunStarted) -> None:
        self.announced = {spec.name: spec.value for spec in run.actuators}

    def look(self, observation: Observation) -> list[Change]:
        if observation.tick == 3:
            return [("optimizer.lr_scale", 0.5)]
        return [("run.rollback", 1.0)] if observation.tick == 8 else []


def test_the_client_takes_weights_and_data_back_and_leaves_the_knobs(begun: Grpo) -> None:
    trainee, rule = resumed(begun), Back()
    snapshots = Snapshots(lambda: (trainee.cursor, trainee.state()), trainee.restore, credit=math.inf)
    client = OvenClient(
        RuleLink(rule),
        trainee.actuators.copy(),
        metrics=trainee.metrics,
        rules=Rules(autonomy="auto"),
        snapshots=snapshots,
    )
    client.start()
    for _ in range(9):
        client.observe(trainee.cursor + 1, trainee.train_step())
        client.poll()
        if client.tick == 8:
            assert trainee.cursor == BEGUN and torch.equal(weights(trainee), weights(begun))
    client.close("completed")
    assert rule.announced["grpo.beta"] == USER["beta"]
    assert (trainee.gradient_steps, trainee.cursor) == (BEGUN + 9, BEGUN + 1)
    assert trainee.actuators.read("optimizer.lr_scale") == 0.5
