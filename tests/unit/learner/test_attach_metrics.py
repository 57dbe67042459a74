"""attach and what it publishes: every step once, that step's own figures; and it changes nothing by itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Sequential, equal, llama, rows, tokens, trainer, weights
from transformers import Trainer, TrainerCallback

from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunEnded, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.optim import optimizer_gauges, update_norm
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def started(line: FakeLink) -> RunStarted:
    assert isinstance(line.sent[0], RunStarted)
    return line.sent[0]


def ended(line: FakeLink) -> RunEnded:
    assert isinstance(line.sent[-1], RunEnded)
    return line.sent[-1]


@pytest.mark.parametrize("settings", [
    {},
    {"gradient_accumulation_steps": 3},
    {"model": "llama"},
    {"max_grad_norm": 0.0, "lr_scheduler_type": "cosine", "warmup_steps": 3},
    {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 5},
], ids=["plain", "accumulation", "llama", "no clipping", "saves and evaluates"])  # fmt: skip
def test_every_step_is_published_with_its_own_metrics_and_training_is_unchanged(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    def made(name: str, **more: Any) -> Trainer:
        chosen = settings | more
        if chosen.get("model") == "llama":
            from transformers import set_seed

            set_seed(11)
            chosen |= {"model": llama(), "data": tokens()}
        return trainer(tmp_path / name, **chosen)

    plain = made("plain", logging_steps=1)
    plain.train()
    wanted = [entry for entry in plain.state.log_history if "loss" in entry]

    attached, line = made("attached", logging_steps=10), FakeLink()
    attach(attached, link=line)
    attached.train()
    assert [seen.step for seen in line.observed()] == list(range(1, 13))
    assert [seen.tick for seen in line.observed()] == list(range(1, 13))
    for metric in ("loss", "grad_norm", "learning_rate"):
        assert line.series(metric) == pytest.approx([entry[metric] for entry in wanted], rel=1e-6), metric
    assert equal(weights(plain), weights(attached)), "attaching changed the training"
    assert attached.state.global_step == 12
    assert (ended(line).reason, ended(line).step) == ("completed", 12)


def test_the_rank_of_random_numbers_is_the_same_too(tmp_path: Path) -> None:
    after = []
    for name in ("plain", "attached"):
        job = trainer(tmp_path / name)
        if name == "attached":
            attach(job, link=FakeLink())
        job.train()
        after.append(torch.rand(3))
    assert torch.equal(*after)


def test_a_nan_loss_arrives_as_nan(tmp_path: Path) -> None:
    """The trainer's own log shows a finite one: it filters."""
    job = trainer(tmp_path, data=rows(poison=17), cls=Sequential)  # four rows a step: the fifth
    line = FakeLink()
    attach(job, link=line)
    job.train()
    assert [math.isnan(loss) for loss in line.series("loss")[:5]] == [False] * 4 + [True]
    assert math.isnan(line.series("grad_norm")[4])


def test_evaluations_are_published_and_are_in_run_ended(tmp_path: Path) -> None:
    job, line = trainer(tmp_path, eval_strategy="steps", eval_steps=6), FakeLink()
    attach(job, link=line)
    job.train()
    measured = {seen.tick: seen.metrics["eval/loss"] for seen in line.observed() if "eval/loss" in seen.metrics}
    logged = {e["step"]: e["eval_loss"] for e in job.state.log_history if "eval_loss" in e}
    assert measured == {7: pytest.approx(logged[6])}
    assert ended(line).metrics["eval/loss"] == pytest.approx(logged[12], rel=1e-6)
    assert {m.name: m.held_out for m in started(line).metrics}["eval/loss"]


def test_a_user_evaluation_runs_at_the_start_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    job, line = trainer(tmp_path), FakeLink()
    attach(job, link=line, evaluate=lambda: {"eval/accuracy": job.state.global_step / 12}, evaluate_every=5)
    job.train()
    assert [(s.step, s.metrics["eval/accuracy"]) for s in line.observed() if "eval/accuracy" in s.metrics] == [
        (0, 0.0), (5, pytest.approx(5 / 12)), (10, pytest.approx(10 / 12)), (12, 1.0)
    ]  # fmt: skip
    assert ended(line).metrics == {"eval/accuracy": 1.0}


def test_a_requested_evaluation_is_published_with_the_next_step_and_changes_nothing(tmp_path: Path) -> None:
    own, link = trainer(tmp_path), FakeLink({3: ("run.evaluate", None), 7: ("run.evaluate", None)})
    attach(own, link=link, evaluate=lambda: {"eval/accuracy": 0.5}, evaluate_every=5)
    own.train()
    assert [s.tick for s in link.observed() if "eval/accuracy" in s.metrics] == [1, 4, 6, 8, 11, 13]
    assert own.state.global_step == 12

    by_itself, line = trainer(tmp_path, eval_strategy="steps", eval_steps=6), FakeLink({2: ("run.evaluate", None)})
    attach(by_itself, link=line)
    by_itself.train()
    assert [s.tick for s in line.observed() if "eval/loss" in s.metrics] == [3, 7]
    left_alone, silent = trainer(tmp_path), FakeLink()
    attach(left_alone, link=silent)
    left_alone.train()
    assert line.series("loss") == silent.series("loss")
    assert "run.evaluate" not in {spec.name for spec in started(silent).actuators}, "it has nothing to measure by"


def test_the_run_is_announced_in_observe_with_bounds_from_the_users_own_values(tmp_path: Path) -> None:
    job, line = trainer(tmp_path, max_grad_norm=2.0), FakeLink()
    attach(job, link=line)
    job.train()
    run = started(line)
    assert run.rules.autonomy == "observe"
    assert run.horizon.max_steps == 12
    knobs = {spec.name: spec for spec in run.actuators}
    assert (knobs["optimizer.lr_scale"].low, knobs["optimizer.lr_scale"].high) == (0.1, 3.0)
    assert (knobs["grad.clip"].low, knobs["grad.clip"].high, knobs["grad.clip"].value) == (0.2, 6.0, 2.0)
    assert {"run.hold", "run.stop", "run.checkpoint", "run.rollback"} <= set(knobs)
    assert [seen.progress for seen in line.observed()] == pytest.approx([n / 12 for n in range(1, 13)])


def test_attaching_twice_is_refused(tmp_path: Path) -> None:
    job = trainer(tmp_path)
    attach(job, link=FakeLink())
    with pytest.raises(ConfigError, match="already attached"):
        attach(job, link=FakeLink())


def test_a_training_that_raises_is_announced_as_failed(tmp_path: Path) -> None:
    class Boom(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 4:
                raise RuntimeError("out of memory")

    job, line = trainer(tmp_path), FakeLink()
    attach(job, link=line)
    job.add_callback(Boom())
    with pytest.raises(RuntimeError, match="out of memory"):
        job.train()
    assert (ended(line).reason, ended(line).detail) == ("failed", "RuntimeError: out of memory")
    assert len(line.observed()) == 4


def test_a_second_training_is_a_second_incarnation(tmp_path: Path) -> None:
    job, line = trainer(tmp_path), FakeLink()
    attach(job, link=line)
    job.train()
    job.train()
    kinds = [type(message) for message in line.sent]
    assert kinds.count(RunStarted) == kinds.count(RunEnded) == 2
    assert len(line.observed()) == 24


def test_the_alignment_gauge_is_the_cosine_of_gradient_and_first_moment(tmp_path: Path) -> None:
    wanted: list[float] = []

    class ByHand(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            optimizer = getattr(kw["optimizer"], "optimizer", kw["optimizer"])
            pairs = [
                (p.grad.double().flatten(), optimizer.state[p]["exp_avg"].double().flatten())
                for group in optimizer.param_groups
                for p in group["params"]
                if p in optimizer.state
            ]
            if pairs:
                gradient, moment = (torch.cat(side) for side in zip(*pairs, strict=True))
                wanted.append(float(torch.nn.functional.cosine_similarity(gradient, moment, dim=0)))

    job, line = trainer(tmp_path), FakeLink()
    job.add_callback(ByHand())
    attach(job, link=line)
    job.train()
    cosines = [seen.metrics.get(optimizer_gauges.GRADIENT_ALIGNMENT.name) for seen in line.observed()]
    assert cosines[0] is None, "before the first step there is no moment"
    assert cosines[1:] == pytest.approx(wanted, abs=1e-5) and len(wanted) == 11


def test_a_running_mean_replaces_a_missing_first_moment(tmp_path: Path) -> None:
    wanted: list[float] = []

    class ByHand(TrainerCallback):
        mean: torch.Tensor | None = None

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            gradient = torch.cat([p.grad.flatten() for p in kw["model"].parameters()])
            if self.mean is not None:
                wanted.append(float(torch.nn.functional.cosine_similarity(gradient, self.mean, dim=0)))
            before = torch.zeros_like(gradient) if self.mean is None else self.mean
            self.mean = 0.9 * before + 0.1 * gradient

    job, line = trainer(tmp_path, optim="sgd"), FakeLink()
    job.add_callback(ByHand())
    attach(job, link=line)
    job.train()
    cosines = [seen.metrics.get(optimizer_gauges.GRADIENT_ALIGNMENT.name) for seen in line.observed()]
    assert cosines[0] is None and cosines[1:] == pytest.approx(wanted, abs=1e-5) and len(wanted) == 11


def test_a_gauge_whose_running_mean_is_too_large_is_reported_as_unmeasured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_learner.optim.optimizer_gauges.MAX_COPY_BYTES", 8)
    job, line = trainer(tmp_path, optim="sgd"), FakeLink()
    attach(job, link=line)
    job.train()
    assert all(optimizer_gauges.GRADIENT_ALIGNMENT.name not in seen.metrics for seen in line.observed())
    run = line.sent[0]
    assert isinstance(run, RunStarted) and "SGD keeps none" in run.unmeasured[optimizer_gauges.GRADIENT_ALIGNMENT.name]


def test_a_time_budget_ends_the_run_cleanly(tmp_path: Path) -> None:
    job, line = trainer(tmp_path), FakeLink()
    attach(job, link=line, seconds=1e-6)
    job.train()
    assert job.state.global_step == 1
    assert (ended(line).reason, ended(line).detail) == ("completed", "the time budget is used up")


def test_a_gauge_that_raises_does_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_gauges, "gradient_alignment", lambda *_: 1 / 0)
    job, line = trainer(tmp_path), FakeLink()
    attach(job, link=line)
    job.train()
    assert len(line.observed()) == 12


def test_the_alignment_is_the_same_in_small_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = []
    for chunk in (2**24, 9):
        monkeypatch.setattr(update_norm, "CHUNK", chunk)
        job, line = trainer(tmp_path), FakeLink()
        attach(job, link=line)
        job.train()
        result.append([seen.metrics.get(optimizer_gauges.GRADIENT_ALIGNMENT.name, 9.0) for seen in line.observed()])
    assert result[0] == pytest.approx(result[1], abs=1e-6)
