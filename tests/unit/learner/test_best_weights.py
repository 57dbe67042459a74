"""The weights that a run ends with: which copy is kept, and whether it is put back at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.best_weights import BestWeights
from oven_learner.optim import snapshot

READINGS = st.floats(-10, 10) | st.just(math.nan) | st.just(math.inf)


@dataclass
class Model:
    """One weight, and what reads of each value that it may have."""

    weight: int = 0
    reads: dict[int, float] = field(default_factory=dict)
    fails_at: frozenset[int] = frozenset()
    read: list[int] = field(default_factory=list)

    def take(self) -> int:
        return self.weight

    def restore(self, weight: int) -> None:
        self.weight = weight

    def measure(self) -> float:
        self.read.append(self.weight)
        if self.weight in self.fails_at:
            raise ValueError("no generation\nafter weights of NaN")
        return self.reads[self.weight]

    def best(self, better: Literal["up", "down"] = "down", **more: Any) -> BestWeights:
        spec = MetricSpec(name="eval/loss", better=better, held_out=True)
        return BestWeights(spec, **({"copy": self.take, "restore": self.restore, "measure": self.measure} | more))


def trained(model: Model, best: BestWeights, *readings: float) -> None:
    """One evaluation per step; the weight is the step's number."""
    for step, reading in enumerate(readings, start=1):
        model.weight = step
        model.reads.setdefault(step, reading)
        best.record_evaluation(step, step, {"eval/loss": reading})


def test_the_best_weights_are_restored_if_they_still_score_better() -> None:
    model = Model()
    best = model.best()
    trained(model, best, 3.0, 2.0, 2.5)
    assert model.read == [], "nothing is evaluated for its sake before the end"
    applied, metrics = best.choose_final_weights(3, 3)
    assert (applied.status, model.weight, metrics) == ("applied", 2, {"eval/loss": 2.0})
    assert applied.reason == "restored the weights of step 2: eval/loss 2, 2.5 at step 3"
    assert applied.before == applied.after == best.final_weights, "the knob keeps its value"


@pytest.mark.parametrize("then", [2.5, 2.6, math.nan, math.inf])
def test_the_last_weights_stay_if_the_best_ones_no_longer_score_better(then: float) -> None:
    model = Model(reads={2: then})
    best = model.best()
    trained(model, best, 3.0, 2.0, 2.5)
    applied, metrics = best.choose_final_weights(3, 3)
    assert (applied.status, model.weight, metrics) == ("noop", 3, {})
    assert applied.reason == f"kept the last weights: eval/loss 2.5, {then:.4g} at step 2"


def test_a_rollback_in_the_tick_of_the_best_score_still_restores_the_best_weights() -> None:
    model = Model(reads={9: 4.0})
    best = model.best()
    trained(model, best, 3.0, 2.0)
    model.weight = 9
    applied, _ = best.choose_final_weights(2, 1)
    assert (applied.status, model.weight) == ("applied", 2)


@pytest.mark.parametrize(
    ("fails", "words"), [(3, "because they cannot be measured: "), (2, "those of step 2 failed: ")]
)
def test_a_failing_evaluation_is_reported_and_the_last_weights_stay(fails: int, words: str) -> None:
    model = Model(fails_at=frozenset({fails}))
    best = model.best()
    trained(model, best, 3.0, 2.0, 2.5)
    applied, metrics = best.choose_final_weights(3, 3)
    assert (applied.status, model.weight, metrics) == ("rejected", 3, {})
    assert words in applied.reason and "no generation" in applied.reason and "\n" not in applied.reason


def test_if_a_copy_fails_training_continues_and_the_older_copy_counts() -> None:
    model = Model(reads={3: 9.0})
    best = model.best(copy=lambda: model.take() if model.weight != 2 else 1 // 0)
    trained(model, best, 3.0, 2.0)
    model.weight = 3
    applied, _ = best.choose_final_weights(3, 3)
    assert (applied.status, model.weight) == ("applied", 1)


@given(st.lists(READINGS, min_size=1, max_size=12), st.sampled_from(["up", "down"]))
def test_a_run_never_ends_worse_than_its_last_weights(readings: list[float], better: Literal["up", "down"]) -> None:
    model = Model()
    best = model.best(better)
    trained(model, best, *readings)
    applied, metrics = best.choose_final_weights(len(readings), len(readings))
    finite = [reading for reading in readings if math.isfinite(reading)]
    final_reading = readings[model.weight - 1]
    assert final_reading == (min if better == "down" else max)(finite) if finite else model.weight == len(readings)
    assert (applied.status == "applied") == bool(metrics) == (model.weight != len(readings))


def test_a_copy_holds_trained_weights_and_buffers_on_the_cpu() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[0].requires_grad_(False)
    moved: list[int] = []
    copies = snapshot.WeightCopies(model, lambda: moved.append(1))
    state = copies.take()
    assert not any(name.startswith("0.") for name in state) and "1.running_mean" in state
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)
    copies.restore(state)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name] + name.startswith("0.")) for name in before) and moved == [1]


def test_without_an_evaluation_the_last_weights_stay() -> None:
    model = Model()
    best = model.best()
    trained(model, best, math.nan, math.inf)
    best.record_evaluation(3, 3, {"eval/other": 1.0})
    applied, _ = best.choose_final_weights(4, 4)
    assert (applied.status, applied.reason) == ("noop", "no evaluation has measured eval/loss; kept the last weights")
