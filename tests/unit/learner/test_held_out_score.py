"""How a trainer's held-out rows are scored at the end of training, and that scoring them changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, equal, trainer, weights
from tests.support.random_states import same_state
from tests.support.tiny_grpo import ROWS, grpo
from transformers import TrainerCallback

from oven_learner import random_state
from oven_learner.hf.final_weights import held_out_score

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class ScoreAfterStep2(TrainerCallback):
    """Reads the score when training has begun and after the second step."""

    def __init__(self, trained: Any, metric: str) -> None:
        self._trainer, self._metric = trained, metric
        self._score: Callable[[], float] | None = None
        self.value: float | None = None
        self.examples: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._score = held_out_score(self._trainer, self._metric)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2 and self._score is not None:
            generators = random_state.capture()
            self.value = self._score()
            assert self._score() == self.value
            assert same_state(random_state.capture(), generators)


def score_after_step_2(trained: Any, metric: str = "eval/loss") -> float | None:
    callback = ScoreAfterStep2(trained, metric)
    trained.add_callback(callback)
    trained.train()
    return callback.value


def test_the_score_is_the_mean_loss_of_the_rows(tmp_path: Path) -> None:
    trained = trainer(tmp_path, max_steps=2)
    score = score_after_step_2(trained)
    held_out: Any = trained.eval_dataset
    model: Any = trained.model
    losses = [float(model(row["x"][None], row["labels"][None])["loss"].detach()) for row in held_out]
    assert score == pytest.approx(fmean(losses))


def test_the_score_of_grpo_is_the_mean_reward_of_greedy_answers(tmp_path: Path) -> None:
    held_out = Dataset.from_list([ROWS[0], ROWS[0], ROWS[3]])
    score = score_after_step_2(grpo(tmp_path, eval_dataset=held_out, max_steps=2), "eval/reward")
    assert score is not None and 0 <= score <= 2


def test_scoring_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    alone = grpo(tmp_path, max_steps=4)
    alone.train()
    scored = grpo(tmp_path, max_steps=4, eval_dataset=Dataset.from_list(ROWS[:2]))
    assert score_after_step_2(scored, "eval/reward") is not None
    assert equal(weights(alone), weights(scored))
