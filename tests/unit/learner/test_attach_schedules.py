"""A decided learning rate under every schedule: the decided multiple at each later step, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.attached import THIRD_PARTY, trainer
from transformers import Trainer, TrainerCallback

from oven_learner.hf.attach import attach
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}
NEVER_BETTER: dict[str, Any] = {"patience": 0, "threshold": 1e9}
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"lr_scheduler_type": "constant"},
    "linear": {"lr_scheduler_type": "linear"},
    "cosine": {"lr_scheduler_type": "cosine"},
    "warm-up, then cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 4},
    "cosine with a floor": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0.002}},
    "warm-up, stable, decay": {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 2,
                               "lr_scheduler_kwargs": {"num_decay_steps": 5}},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": NEVER_BETTER, **EVALUATED},
    "plateau with a floor": {"lr_scheduler_type": "reduce_lr_on_plateau",
                             "lr_scheduler_kwargs": NEVER_BETTER | {"factor": 0.5, "min_lr": 0.002}, **EVALUATED},
    "greedy": {"lr_scheduler_type": "greedy", **EVALUATED,
               "lr_scheduler_kwargs": NEVER_BETTER | {"mode": "min", "factor": 0.5, "min_lr": 0.002}},
}  # fmt: skip


class Rates(TrainerCallback):
    """What the optimizer steps with: its own parameter groups, just before."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        optimizer = getattr(kw["optimizer"], "optimizer", kw["optimizer"])
        (rate,) = {float(group["lr"]) for group in optimizer.param_groups}
        self.seen[state.global_step + 1] = rate


def watched(folder: Path, schedule: str, **settings: Any) -> tuple[Trainer, Rates]:
    job, rates = trainer(folder, **SCHEDULES[schedule] | settings), Rates()
    job.add_callback(rates)
    return job, rates


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_is_the_decided_multiple_then_saved_then_resumed(tmp_path: Path, schedule: str) -> None:
    plain, own = watched(tmp_path / "own", schedule)
    plain.train()
    assert schedule == "constant" or len(set(own.seen.values())) > 1, "the schedule must move to mean something"

    job, rates = watched(tmp_path / "job", schedule, save_strategy="steps", save_steps=6, save_total_limit=2)
    line = FakeLink({3: ("optimizer.lr_scale", 0.5), 8: ("optimizer.lr_scale", 2.0)})
    attach(job, link=line)
    job.train()
    half, twice = {4, 5, 6, 7, 8}, {9, 10, 11, 12}
    wanted = {n: rate * (0.5 if n in half else 2.0 if n in twice else 1.0) for n, rate in own.seen.items()}
    assert rates.seen == pytest.approx(wanted, rel=1e-9)
    assert line.series("learning_rate") == pytest.approx(list(rates.seen.values()), rel=1e-8), "what is published"
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 2

    checkpoint = str(tmp_path / "job" / "checkpoint-6")
    alone, rates = watched(tmp_path / "job", schedule)
    alone.train(resume_from_checkpoint=checkpoint)
    assert rates.seen == pytest.approx({n: own.seen[n] * 0.5 for n in range(7, 13)}, rel=1e-9), "without a controller"

    resumed, rates = watched(tmp_path / "job", schedule)
    line = FakeLink({15: ("optimizer.lr_scale", 3.0)}, ResumeState(1, 12, 99, {"1": {"optimizer.lr_scale": 0.5}}))
    attachment = attach(resumed, link=line)
    resumed.train(resume_from_checkpoint=checkpoint)
    wanted = {n: own.seen[n] * (0.5 if n < 10 else 3.0) for n in range(7, 13)}
    assert rates.seen == pytest.approx(wanted, rel=1e-9)
    assert attachment.actuators.read("optimizer.lr_scale") == pytest.approx(3.0)
    assert [seen.step for seen in line.observed()] == list(range(7, 13))
