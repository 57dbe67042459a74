"""TRL's DistillationTrainer with a teacher that decisions swap, and the recipe on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, equal, llama, weights
from tests.support.tiny_grpo import ROWS
from tests.unit.learner.test_attach_trl import COMMON, tokenizer
from tests.unit.learner.test_teachers import teacher
from transformers import set_seed
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer

from oven_core.protocol.messages import RunEnded, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.teachers import TeacherConfig, Teachers
from oven_learner.testing import FakeLink
from oven_recipes.distillation.recipe import RECIPE
from oven_recipes.recipe_interface import TrainingRequest

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

TINY = {
    "lengths": (1, 2), "train_prompts": 20, "eval_prompts": 4, "hidden": 16, "layers": 1, "heads": 2, "ffn": 32,
    "sft_steps": 40, "sft_batch": 16, "sft_learning_rate": 1e-2, "prompts_per_step": 8, "eval_every": 2,
}  # fmt: skip


def distilling(folder: Path, **settings: Any) -> Any:
    """Its own teacher is called `one`; `two` is loaded beside it."""
    set_seed(3)
    teacher_model = teacher(11)
    set_seed(3)
    return DistillationTrainer(
        model=llama(),
        teacher_model=teacher_model,
        args=DistillationConfig(
            output_dir=str(folder), per_device_train_batch_size=8, max_completion_length=4,
            **(COMMON | {"lr_scheduler_type": "constant"} | settings),
        ),
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer(),
    )  # fmt: skip


def with_two(job: Any) -> Teachers:
    teachers = Teachers(job, initial_name="one")
    teachers.add("two", teacher(12), tokenizer())
    return teachers


def test_a_swap_is_announced_applied_and_seen_in_the_loss(tmp_path: Path) -> None:
    job = distilling(tmp_path, learning_rate=1e-9)
    teachers = with_two(job)
    line = FakeLink({3: ("teacher.active", "two")})
    attach(job, link=line, teachers=teachers)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    (spec,) = (spec for spec in run.actuators if spec.name == "teacher.active")
    assert (spec.choices, spec.value) == (("one", "two"), "one")
    assert "grpo.beta" not in {spec.name for spec in run.actuators}, "its beta is a divergence's, and no weight"
    assert [(r.status, r.before, r.after) for r in line.receipts()] == [("applied", "one", "two")]
    assert teachers.active == "two"
    loss = line.series("loss")
    before, after = loss[:3], loss[3:]
    assert max(before) < min(after) or max(after) < min(before), "the policy stands still; its teacher is another"


@pytest.mark.parametrize("storage", [{"strategy": "quantized"}, {"strategy": "offload"}], ids=["8 bits", "offload"])
def test_offloaded_and_resident_teachers_distil_alike(tmp_path: Path, storage: dict[str, Any]) -> None:
    losses = []
    for options in ({}, storage):
        job = distilling(tmp_path, learning_rate=1e-9, logging_steps=1, max_steps=2)
        teachers = Teachers(job, initial_name="one", offload_folder=tmp_path)
        teachers.register(TeacherConfig(name="two", model=teacher(12, width=64), tokenizer=tokenizer(), **options))
        teachers.swap("two")
        set_seed(5)
        job.train()
        losses.append([entry["loss"] for entry in job.state.log_history if "loss" in entry])
    assert len(losses[0]) == 2 and losses[1] == pytest.approx(
        losses[0], rel=0.05 if storage["strategy"] == "quantized" else 1e-6
    )


def test_attaching_with_teachers_changes_nothing(tmp_path: Path) -> None:
    plain = distilling(tmp_path / "plain")
    set_seed(3)
    plain.train()
    job = distilling(tmp_path / "attached")
    attach(job, link=FakeLink(), teachers=with_two(job))
    set_seed(3)
    job.train()
    assert equal(weights(plain), weights(job))


def test_the_recipe_trains_from_a_teacher_that_a_decision_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import oven_recipes.training_runner as recipes_run

    line = FakeLink({2: ("teacher.active", "strong")})
    monkeypatch.setattr(recipes_run, "attach", lambda trainer, **options: attach(trainer, link=line, **options))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "run").mkdir()
    RECIPE.load_training()(
        TrainingRequest("drill:weak-teacher", 1, 4, None, dict(TINY), folder=tmp_path / "run", cache=tmp_path / "cache")
    )
    run, end = line.sent[0], line.sent[-1]
    assert isinstance(run, RunStarted) and isinstance(end, RunEnded) and end.reason == "completed"
    assert run.recipe == "distillation"
    (receipt,) = line.receipts()
    assert (receipt.status, receipt.before, receipt.after) == ("applied", "small", "strong")
    held_out = [metric for metric in run.metrics if metric.held_out]
    assert {metric.name for metric in held_out} == {f"eval/accuracy{suffix}" for suffix in ("", "/len1", "/len2")}
    assert [seen.step for seen in line.observed() if "eval/accuracy" in seen.metrics] == [0, 2, 4]
    assert {"loss", "entropy", "completions/mean_length"} <= line.observed()[1].metrics.keys()
