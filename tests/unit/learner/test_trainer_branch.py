"""A trial on a Hugging Face trainer moves no bit of the branch that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Toy, rows, trainer
from tests.support.trial_driver import DrivenTrainer, Driver
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
    watch = DrivenTrainer(made)
    if change_at is not None:
        watch.driver = Change(change_at, lambda: faster(attached))  # type: ignore[assignment]
    made.add_callback(watch)
    made.train()
    return watch


class Change:
    def __init__(self, at: int, change: Any) -> None:
        self._at, self._change = at, change

    def step_ended(self, step: int, _: Any) -> None:
        if step == self._at:
            self._change()


def tried(folder: Path, *, at: int = 3, steps: int = 4, keep: int | None = None, change: Any = faster, **settings: Any):
    made, attached = job(folder, **settings)
    lengths = settings.pop("lengths", ())
    driver = Driver(attached.branch, at=at, steps=steps, changes=[lambda: change(attached)], keep=keep, lengths=lengths)
    watch = DrivenTrainer(made, driver)
    made.add_callback(watch)
    made.train()
    assert driver.over
    assert len(attached.branch._loop.tape) == 0
    return watch


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
        other = tried(tmp_path, at=at, **settings)
        assert other.driver is not None
        assert other.driver.prints[0] == alone.seen[at + 4]
        assert other.seen == alone.seen, at
        assert other.epochs[-len(alone.epochs) :] == alone.epochs
        assert other.driver.readings[0] != other.driver.readings[1]


def test_the_change_is_kept_as_if_it_had_been_made_directly(tmp_path: Path) -> None:
    directly = plain(tmp_path, change_at=5)
    assert tried(tmp_path, at=5, keep=0).seen == directly.seen


def test_arms_that_are_alike_end_alike(tmp_path: Path) -> None:
    watch = tried(tmp_path, change=lambda _: None)
    assert watch.driver is not None
    assert watch.driver.prints[0] == watch.driver.prints[1]
    assert watch.driver.readings[0] == watch.driver.readings[1]
