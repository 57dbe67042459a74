"""What a trial is measured by, and why none can be made: of the trainer's rows, and of the user's own function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, trainer
from tests.support.tiny_grpo import ROWS, grpo
from tests.support.trial_driver import DrivenTrainer, Driver
from tests.unit.learner.test_attach_trl import sft
from transformers import TrainerCallback

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink
from oven_learner.trials import training_state

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class Look(TrainerCallback):
    """Reads the examples after the second step."""

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        self.problem = "no step was made"
        self.found: list[float] = []
        self.name = ""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            branch = self._attached.branch
            self.problem = branch.problem()
            if not self.problem:
                self.found, self.name = list(branch.examples()), branch.reading.name


def looked(made: Any, **options: Any) -> Look:
    attached = attach(made, link=FakeLink(), **options)
    look = Look(attached)
    made.add_callback(look)
    made.train()
    return look


def test_each_row_has_its_own_loss(tmp_path: Path) -> None:
    made = trainer(tmp_path, max_steps=2)
    look = looked(made)
    held_out: Any = made.eval_dataset
    model: Any = made.model
    expected = [float(model(row["x"][None], row["labels"][None])["loss"].detach()) for row in held_out]
    assert look.name == "eval/loss"
    assert look.found == pytest.approx(expected)


def test_the_users_own_list_goes_before_the_rows(tmp_path: Path) -> None:
    link = FakeLink()
    made = trainer(tmp_path, max_steps=2)
    spec = MetricSpec(name="quality", better="up", held_out=True)
    attached = attach(made, link=link, evaluate=lambda: {"other": 3, "quality": [1.0, 3.0]}, metrics=(spec,))
    look = Look(attached)
    made.add_callback(look)
    made.train()
    assert (look.name, look.found) == ("quality", [1.0, 3.0])
    assert attached.last_evaluation == {"other": 3.0, "quality": 2.0}


def test_a_greedy_answer_has_the_trainers_reward(tmp_path: Path) -> None:
    """The same for the same prompt, and unlike what is sampled."""
    held_out = Dataset.from_list([ROWS[0], ROWS[0], ROWS[3]])
    look = looked(grpo(tmp_path, eval_dataset=held_out, max_steps=2))
    assert look.name == "eval/reward"
    assert look.found[0] == look.found[1]
    assert all(0 <= reward <= 2 for reward in look.found)


def test_supervised_rows_too(tmp_path: Path) -> None:
    look = looked(sft(tmp_path, Dataset.from_list([{"text": "abc"}, {"text": "bcdef"}]), max_steps=2))
    assert len(look.found) == 2
    assert look.found[0] != look.found[1]


def test_why_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trainer(tmp_path, max_steps=2)
    alone.eval_dataset = None
    assert "give the trainer an eval_dataset" in looked(alone).problem

    assert "ignore_data_skip" in looked(trainer(tmp_path, max_steps=2, ignore_data_skip=True)).problem

    monkeypatch.setattr(training_state, "SPARE", 1e-15)
    assert "2 copies of what trains need 0.0 MiB on cpu" in looked(trainer(tmp_path, max_steps=2)).problem


class Stream(torch.utils.data.IterableDataset[Any]):
    """Never the same twice."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            x = torch.randn(4)
            yield {"x": x, "labels": x.sum().reshape(1)}


class Average(TrainerCallback):
    """An exponential average of the weights, in tensors, and what it has seen."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.updates = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        self.updates += 1
        for name, value in kw["model"].named_parameters():
            self.shadow[name].mul_(0.9).add_(value.detach(), alpha=0.1)


def streamed(folder: Path, trial: bool) -> tuple[DrivenTrainer, Average]:
    made = trainer(folder, data=Stream(), logging_steps=100)  # type: ignore[arg-type]
    attached = attach(made, link=FakeLink())
    average = Average(made.model)  # type: ignore[arg-type]
    made.add_callback(average)

    def change() -> None:
        attached.actuators.apply("optimizer.lr_scale", 3.0)

    driver = Driver(attached.branch, at=3, steps=4, changes=[change]) if trial else None
    watch = DrivenTrainer(made, driver)
    made.add_callback(watch)
    made.train()
    assert driver is None or driver.over
    return watch, average


def test_a_stream_is_recorded_and_a_callbacks_average_comes_back(tmp_path: Path) -> None:
    (alone, mean), (tried, other) = streamed(tmp_path, False), streamed(tmp_path, True)
    assert tried.seen == alone.seen
    assert other.updates == mean.updates == 12
    assert all(torch.equal(other.shadow[name], value) for name, value in mean.shadow.items())
