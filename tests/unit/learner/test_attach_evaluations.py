"""What attach announces of a trainer's own evaluations: it comes, and it is what the training is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, llama
from tests.unit.learner.test_attach_trl import grpo, sft
from tests.unit.learner.test_attach_trl_knobs import distillation, dpo, rloo
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments, set_seed

from oven_agents.stats.objective import held_out_metric
from oven_core.protocol.messages import MetricSpec, RunEnded, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
TEXTS = [{"text": "abcd"}, {"text": "bcde"}]
PAIRS = [{"prompt": "ab", "chosen": "cde", "rejected": letter * 3} for letter in "st"]
PROMPTS = [{"prompt": letter} for letter in "wxyz"]
MADE: dict[str, tuple[Callable[..., Any], list[dict[str, str]], str, str]] = {
    "sft": (lambda folder, _, **more: sft(folder, **more), TEXTS, "loss", "down"),
    "dpo": (dpo, PAIRS, "loss", "down"),
    "distillation": (distillation, PROMPTS, "loss", "down"),
    "grpo": (lambda folder, _, **more: grpo(folder, **more), PROMPTS, "reward", "up"),
    "rloo": (rloo, PROMPTS, "reward", "up"),
}
"""Trainer, what it is evaluated on, and the metric that says how it is doing."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    set_seed(3)
    llama().save_pretrained(folder)
    return str(folder)


def announced(line: FakeLink) -> list[MetricSpec]:
    assert isinstance(line.sent[0], RunStarted)
    return [spec for spec in line.sent[0].metrics if spec.held_out]


def came(line: FakeLink) -> dict[str, list[float]]:
    """By metric: what was published while it trained, and at the end."""
    values: dict[str, list[float]] = {}
    assert isinstance(line.sent[-1], RunEnded)
    for metrics in [*(seen.metrics for seen in line.observed()), line.sent[-1].metrics]:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return values


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_every_announced_held_out_metric_is_published(tmp_path: Path, policy: str, name: str, several: bool) -> None:
    make, data, last, better = MADE[name]
    sets: Any = Dataset.from_list(data)
    if several:
        sets = {"b": Dataset.from_list(data[:1] * 2), "a": sets}
    names = [f"eval/b_{last}", f"eval/a_{last}"] if several else [f"eval/{last}"]
    more = {} if name == "sft" or name == "dpo" else {"per_device_eval_batch_size": 4}
    job = make(tmp_path, policy, held_out=sets, max_steps=3, eval_strategy="steps", eval_steps=2, **more)
    line = FakeLink()
    attach(job, link=line)
    job.train()
    assert [(spec.name, spec.better) for spec in announced(line)] == [(name, better) for name in names]
    measured = came(line)
    assert all(len(measured[name]) == 2 for name in names), measured.keys()
    assert isinstance(line.sent[0], RunStarted)
    whole = held_out_metric(line.sent[0])
    assert whole is not None and whole.name == names[0], "the first set stands for the whole"
    if not several:
        logged = next(entry[f"eval_{last}"] for entry in job.state.log_history if f"eval_{last}" in entry)
        assert measured[names[0]][0] == pytest.approx(logged)


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(x)  # [B, 2]
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_the_metric_for_best_model_is_the_target_and_the_run_ends_with_its_best(tmp_path: Path) -> None:
    data = Dataset.from_list([{"x": [1.0, float(n % 2)], "labels": n % 2} for n in range(8)])
    accuracies = [0.25, 0.75, 0.5, 0.5, 0.5]

    job = Trainer(
        Line(),
        TrainingArguments(
            str(tmp_path), max_steps=8, eval_strategy="steps", eval_steps=1, save_steps=1, load_best_model_at_end=True,
            metric_for_best_model="accuracy", report_to="none", use_cpu=True, disable_tqdm=True,
        ),
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=lambda _: {"accuracy": accuracies.pop(0)},
        callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
    )  # fmt: skip
    line = FakeLink()
    attach(job, link=line)
    job.train()
    assert [(spec.name, spec.better) for spec in announced(line)] == [("eval/accuracy", "up")]
    assert job.state.global_step == 5 and job.state.best_global_step == 2
    assert came(line)["eval/accuracy"] == [0.25, 0.75, 0.5, 0.5, 0.75], "the last is that of the restored weights"


@pytest.mark.parametrize("resumes", [False, True])
def test_results_of_compute_metrics_are_announced_as_held_out_without_a_direction(
    tmp_path: Path, resumes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """If an evaluation before the training, or in the checkpoint to resume from, has shown their names."""
    data = Dataset.from_list([{"x": [1.0, float(n % 2)], "labels": n % 2} for n in range(8)])

    def make(steps: int) -> Trainer:
        settings = TrainingArguments(
            str(tmp_path), max_steps=steps, eval_strategy="steps", eval_steps=1, save_steps=1, report_to="none",
            use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        return Trainer(Line(), settings, None, data, data, compute_metrics=lambda _: {"accuracy": 0.25})

    if resumes:
        make(1).train()
    job, line = make(2), FakeLink()
    attach(job, link=line)
    if not resumes:
        job.evaluate()
    with caplog.at_level("WARNING", logger="oven.learner"):
        job.train(resume_from_checkpoint=resumes)
    assert [(spec.name, spec.better) for spec in announced(line)] == [
        ("eval/loss", "down"),
        ("eval/accuracy", "neither"),
    ]
    assert isinstance(line.sent[0], RunStarted)
    target = held_out_metric(line.sent[0])
    assert target is not None and target.name == "eval/loss", "no direction is guessed"
    assert came(line)["eval/accuracy"][0] == 0.25
    assert sum('attach(metrics=(MetricSpec(name="eval/accuracy", ' in text for text in caplog.messages) == 1


@pytest.mark.parametrize("declared", [False, True])
def test_the_first_evaluation_of_a_first_run_says_how_to_declare_what_compute_metrics_returns(
    tmp_path: Path, declared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its names are unknown before. `compute_metrics` is called by the trainer only, because it may have a state."""
    data = Dataset.from_list([{"x": [1.0, 0.0], "labels": 1}] * 2)
    accuracies = [0.25, 0.75, 0.5]  # one for each evaluation by the trainer

    target: dict[str, Any] = {"metric_for_best_model": "accuracy", "greater_is_better": True} if declared else {}
    settings = TrainingArguments(
        str(tmp_path), max_steps=3, eval_strategy="steps", eval_steps=1, report_to="none", use_cpu=True,
        disable_tqdm=True, **target,
    )  # fmt: skip
    job = Trainer(Line(), settings, None, data, data, compute_metrics=lambda _: {"accuracy": accuracies.pop(0)})
    line = FakeLink()
    attach(job, link=line)
    with caplog.at_level("WARNING", logger="oven.learner"):
        job.train()
    assert [spec.name for spec in announced(line)] == ["eval/accuracy" if declared else "eval/loss"]
    assert came(line)["eval/accuracy"] == [0.25, 0.75, 0.5]
    lines = [text for text in caplog.messages if "eval/accuracy" in text]
    assert len(lines) == (0 if declared else 1)
    assert all('TrainingArguments(metric_for_best_model="accuracy", greater_is_better=True)' in text for text in lines)


def test_each_evaluation_set_has_its_own_reward(tmp_path: Path, policy: str) -> None:
    """TRL logs both as eval_reward; what is rewarded here is the prompt."""

    def reward(prompts: list[str], **_: Any) -> list[float | None]:
        return [float(prompt == "w") for prompt in prompts]

    sets = {name: Dataset.from_list([{"prompt": name}] * 4) for name in "wx"}
    job = rloo(tmp_path, policy, held_out=sets, max_steps=2, eval_strategy="steps", eval_steps=1)
    job.reward_funcs = [reward, reward]
    line = FakeLink()
    attach(job, link=line)
    job.train()
    measured = came(line)
    assert (set(measured["eval/w_reward"]), set(measured["eval/x_reward"])) == ({2.0}, {0.0})
    assert "eval/reward" not in measured
