"""A trial on a Hugging Face trainer moves no bit of the branch that is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Toy, rows, trainer
from tests.support.trial_driver import Change, DrivenTrainer, Driver
from transformers import set_seed

from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


DEFAULTS = {"max_steps": 14, "lr_scheduler_type": "cosine", "logging_steps": 100}


class Dropping(Toy):
    """With dropout and running statistics: its steps draw, and its buffers move."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )


def job(folder: Path, **settings: Any) -> Any:
    set_seed(4)
    made = trainer(folder, model=Dropping(), data=rows(26), **(DEFAULTS | settings))
    return made, attach(made, link=FakeLink())


def faster(attached: Any) -> None:
    assert attached.actuators.apply("optimizer.lr_scale", 2.0).status == "applied"


def plain(folder: Path, change_at: int | None = None, **settings: Any) -> DrivenTrainer:
    made, attached = job(folder, **settings)
    watch = DrivenTrainer(made, Change(change_at, lambda: faster(attached)) if change_at is not None else None)
    made.add_callback(watch)
    made.train()
    return watch


def tried(
    folder: Path,
    *,
    at: int = 3,
    keep: int | None = None,
    change: Callable[[Any], object] = faster,
    lengths: Sequence[int] = (),
    **settings: Any,
) -> tuple[DrivenTrainer, Driver]:
    made, attached = job(folder, **settings)
    driver = Driver(attached.branch, at=at, steps=4, changes=[lambda: change(attached)], keep=keep, lengths=lengths)
    watch = DrivenTrainer(made, driver)
    made.add_callback(watch)
    made.train()
    assert driver.over
    assert attached.branch.recorded == 0
    return watch, driver


CASES = {
    "one batch a step": {},
    "two, and an epoch that ends with one": {"gradient_accumulation_steps": 2},
    "another optimizer": {"optim": "adagrad"},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_the_control_is_kept_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Over the end of an epoch, with dropout, a shuffled order, and a schedule."""
    alone = plain(tmp_path, **settings)
    for at in (3, 5, 6, 7):  # epochs end at 7 or 4, 8, 12
        other, driver = tried(tmp_path, at=at, **settings)
        assert driver.prints[0] == alone.seen[at + 4]
        assert other.seen == alone.seen, at
        assert other.epochs[-len(alone.epochs) :] == alone.epochs
        assert driver.readings[0] != driver.readings[1]


def test_the_change_is_kept_as_if_it_had_been_made_directly(tmp_path: Path) -> None:
    directly = plain(tmp_path, change_at=5)
    kept, _ = tried(tmp_path, at=5, keep=0)
    assert kept.seen == directly.seen


def test_arms_that_are_alike_end_alike(tmp_path: Path) -> None:
    _, driver = tried(tmp_path, change=lambda _: None)
    assert driver.prints[0] == driver.prints[1]
    assert driver.readings[0] == driver.readings[1]


def test_an_arm_may_read_further_than_the_control(tmp_path: Path) -> None:
    """As one that goes back does to catch up: what it read beyond is given to the control again."""
    alone = plain(tmp_path)
    other, _ = tried(tmp_path, at=2, lengths=[7])
    assert other.seen == alone.seen
    directly = plain(tmp_path, change_at=2)
    kept, _ = tried(tmp_path, at=2, lengths=[7], keep=0)
    assert kept.seen == directly.seen


def test_what_was_due_within_a_branch_is_made_up_for(tmp_path: Path) -> None:
    """And nothing is saved, evaluated or logged of a branch that is left."""
    settings: dict[str, Any] = {"logging_steps": 5, "eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps"}
    other, _ = tried(tmp_path, at=4, save_steps=5, **settings)
    losses = [entry for entry in other.trainer.state.log_history if "loss" in entry]
    evaluated = [entry for entry in other.trainer.state.log_history if "eval_loss" in entry]
    assert [entry["step"] for entry in losses] == [9, 10]
    assert [entry["step"] for entry in evaluated] == [9, 10, 14]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-10", "checkpoint-14", "checkpoint-9"
    ]  # fmt: skip


def test_a_trial_may_end_with_the_training(tmp_path: Path) -> None:
    """A branch does not end the training at its last step, and the one that is kept does."""
    alone = plain(tmp_path)
    other, _ = tried(tmp_path, at=10)
    assert other.seen == alone.seen
    assert other.trainer.state.global_step == 14


def test_two_trials_in_a_resumed_training(tmp_path: Path) -> None:
    """From a checkpoint inside an epoch."""
    plain(tmp_path, save_strategy="steps", save_steps=5, gradient_accumulation_steps=2, max_steps=5)

    def resumed(trials: Sequence[int]) -> DrivenTrainer:
        made, attached = job(tmp_path, gradient_accumulation_steps=2)
        drivers = [
            Driver(attached.branch, at=at, steps=2, changes=[lambda: faster(attached)] * 2, keep=None) for at in trials
        ]
        watch = DrivenTrainer(made, One(drivers) if drivers else None)
        made.add_callback(watch)
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
        assert all(driver.over for driver in drivers)
        return watch

    assert resumed((6, 9)).seen == resumed(()).seen


class One:
    """Several drivers, one after another."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self._drivers = drivers

    def step_ended(self, step: int, fingerprint: Callable[[], str]) -> None:
        for driver in self._drivers:
            if not driver.over:
                driver.step_ended(step, fingerprint)
                return
