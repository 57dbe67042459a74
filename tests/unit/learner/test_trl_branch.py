"""A trial on TRL's trainers moves no bit of the branch that is kept: completions in a buffer, sampling, prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tests.support.attached import THIRD_PARTY
from tests.support.tiny_grpo import ROWS, grpo
from tests.support.trial_driver import Change, DrivenTrainer, Driver
from tests.unit.learner.test_attach_trl import sft

from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

HELD_OUT = Dataset.from_list(ROWS[:3])


def run(
    make: Any, folder: Path, driven: dict[str, Any] | None = None, change_at: int | None = None, **settings: Any
) -> DrivenTrainer:
    made = make(folder, **settings)
    attached = attach(made, link=FakeLink())

    def change() -> None:
        assert attached.actuators.apply("optimizer.lr_scale", 2.5).status == "applied"

    driver = Driver(attached.branch, changes=[change], **driven) if driven is not None else None
    watch = DrivenTrainer(made, driver or (Change(change_at, change) if change_at is not None else None))
    made.add_callback(watch)
    made.train()
    if driver is not None:
        assert driver.over
        assert not attached.branch.problem()
        assert len(driver.readings[0]) == len(HELD_OUT)
    return watch


GRPO = {
    "two steps to a generation, each used twice": {"steps_per_generation": 2, "num_iterations": 2},
    "a reference that follows, and accumulation": {
        "beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2, "gradient_accumulation_steps": 2,
        "steps_per_generation": 2,
    },
}  # fmt: skip


class Judge:
    """A reward function that counts its calls, and whose reward depends on them."""

    __name__ = "judge"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        self.calls += 1
        return [(len(text) * self.calls) % 3 / 3 + ("a" in text) for text in completions]


def test_what_a_reward_function_counts_comes_back(tmp_path: Path) -> None:
    common = {"max_steps": 6, "learning_rate": 0.05, "logging_steps": 50, "eval_dataset": HELD_OUT}
    alone = run(grpo, tmp_path, rewards=(Judge(),), **common)
    control = run(grpo, tmp_path, {"at": 2, "steps": 2}, rewards=(Judge(),), **common)
    assert control.seen == alone.seen


def test_supervised_training_keeps_its_control(tmp_path: Path) -> None:
    held_out = Dataset.from_list([{"text": "abc"}, {"text": "bcdef"}, {"text": "cde"}])
    alone = run(sft, tmp_path, held_out=held_out, logging_steps=50)
    control = run(sft, tmp_path, {"at": 1, "steps": 3}, held_out=held_out, logging_steps=50)
    assert control.seen == alone.seen


@pytest.mark.parametrize("settings", GRPO.values(), ids=GRPO)
def test_grpo_keeps_either_branch_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Over the end of an epoch, which comes after 8 steps or 4."""
    common = {"max_steps": 11, "learning_rate": 0.05, "logging_steps": 50, "eval_dataset": HELD_OUT} | settings
    alone = run(grpo, tmp_path, **common)
    control = run(grpo, tmp_path, {"at": 5, "steps": 4}, **common)
    assert control.seen == alone.seen
    directly = run(grpo, tmp_path, change_at=5, **common)
    changed = run(grpo, tmp_path, {"at": 5, "steps": 4, "keep": 0}, **common)
    assert directly.seen[11] != alone.seen[11]
    assert changed.seen == directly.seen
