"""The pretraining trainee: what the gym takes for granted of it."""

from __future__ import annotations

import math

import pytest
import torch

from bench_testing.gym_line import resumed, weights
from oven_bench.gym.fault import Fault, Step
from oven_bench.gym.tasks.pretraining.corpus import SHARES, corpus
from oven_bench.gym.tasks.pretraining.trainee import CLIP, LEARNING_RATE, WARMUP, WEIGHT_DECAY, WORST, Pretraining

BEGUN = 30


@pytest.fixture(scope="module")
def begun() -> Pretraining:
    """Seed 101 after a few steps. Tests work on copies of it (`fresh`)."""
    trainee = Pretraining(101)
    for _ in range(BEGUN):
        trainee.train_step()
    return trainee


@pytest.fixture
def fresh(begun: Pretraining) -> Pretraining:
    return resumed(begun)


def test_it_learns_and_meets_no_row_twice() -> None:
    trainee = Pretraining(101)
    naive = trainee.quality()
    steps = [trainee.train_step() for _ in range(60)]
    assert trainee.quality() < naive - 2
    assert max(step["data/repeated"] for step in steps) < 0.2  # rows that are alike by chance
    assert sum(step["data/repeated"] for step in steps) / 60 < 0.01
    rates = [step["learning_rate"] for step in steps]
    assert rates[0] == pytest.approx(LEARNING_RATE / WARMUP)
    assert rates[WARMUP - 1 :] == [LEARNING_RATE] * (61 - WARMUP)


def test_every_knob_acts_and_reads_back(begun: Pretraining, fresh: Pretraining) -> None:
    untouched = resumed(begun)
    untouched.train_step()
    assert fresh.actuators.read("optimizer.weight_decay") == WEIGHT_DECAY
    assert fresh.actuators.read("grad.clip") == CLIP
    assert fresh.actuators.read("data.mixture") == SHARES
    ways: dict[str, float | dict[str, float]] = {
        "optimizer.lr_scale": 0.1,
        "optimizer.weight_decay": 1.0,
        "grad.clip": 0.01,
        "data.mixture": {"modules": 0.0, "packages": 0.0, "network": 0.0, "tables": 1.0},
    }
    for name, value in ways.items():
        turned = resumed(begun)
        assert turned.actuators.apply(name, value).status == "applied"
        assert turned.actuators.read(name) == value
        metrics = turned.train_step()
        assert not torch.equal(weights(turned), weights(untouched)), name
        if name == "optimizer.lr_scale":
            assert metrics["learning_rate"] == pytest.approx(0.1 * LEARNING_RATE)


def test_a_setting_that_is_wrong_is_put_right_by_its_knob(fresh: Pretraining) -> None:
    class Wrong(Fault):
        def settings(self, step: Step) -> None:
            fresh.settings.update(weight_decay=50.0, clip=1e9)

    fresh.train_step(Wrong(onset=0))
    assert fresh.actuators.read("optimizer.weight_decay") == 50.0
    assert fresh.actuators.apply("optimizer.weight_decay", 0.1).status == "applied"
    fresh.train_step(Wrong(onset=0))
    assert fresh.optimizer.param_groups[0]["weight_decay"] == 0.1


def test_a_skip_moves_the_cursor_and_refuses_nonsense(begun: Pretraining, fresh: Pretraining) -> None:
    applied = fresh.actuators.apply("data.skip", 7)
    assert (applied.status, applied.before, applied.after) == ("applied", BEGUN, BEGUN + 7)
    assert fresh.cursor == BEGUN + 7
    untouched = resumed(begun)
    assert fresh.train_step()["loss"] != untouched.train_step()["loss"]
    for nonsense in (None, 0, -3, 1.5):
        assert fresh.actuators.apply("data.skip", nonsense).status == "rejected"


def test_a_broken_model_has_the_largest_loss_there_is(fresh: Pretraining) -> None:
    with torch.no_grad():
        for parameter in fresh.model.parameters():
            parameter.mul_(1e3)
    assert fresh.quality() == WORST == math.log(256)
    with torch.no_grad():
        next(iter(fresh.model.parameters())).fill_(math.nan)
    assert fresh.quality() == WORST
    assert math.isnan(fresh.train_step()["loss"])


def test_the_optimizer_is_torch_own_on_the_same_numbers(begun: Pretraining) -> None:
    """The flat views change nothing: one step equals that of a plain AdamW with torch's own clipping."""
    from copy import deepcopy

    from torch.nn import functional as F

    trainee = resumed(begun)
    model = deepcopy(trainee.model)
    plain = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
    for parameter, own in zip(model.parameters(), trainee.model.parameters(), strict=True):
        plain.state[parameter] = {name: value.clone() for name, value in trainee.optimizer.state[own].items()}
        parameter.grad = None
    seen: list[torch.Tensor] = []

    class Look(Fault):
        def batch(self, batch: torch.Tensor, step: Step) -> torch.Tensor:
            seen.append(batch)
            return batch

    metrics = trainee.train_step(Look(onset=0))
    loss = F.cross_entropy(model(seen[0][:, :-1]).flatten(0, 1), seen[0][:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    plain.step()
    assert metrics["loss"] == pytest.approx(loss.item()) and metrics["grad_norm"] == pytest.approx(
        norm.item(), rel=1e-5
    )
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    torch.testing.assert_close(weights(trainee), expected, rtol=1e-4, atol=1e-6)


def test_held_out_rows_are_apart_from_each_other_and_from_training() -> None:
    held = corpus()
    gauged, judged = ({tuple(row) for row in rows.tolist()} for rows in (held.gauged, held.judged))
    assert len(held.gauged) == 64 and len(held.judged) == 512
    assert not {row for row in gauged & judged if len(set(row)) > 2}  # blank lines and rules are alike everywhere
