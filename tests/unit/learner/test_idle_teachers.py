"""KL to the teachers that do not teach now: right, sampled, and without a trace in the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, llama, weights
from tests.support.tiny_grpo import grpo, lora
from tests.unit.learner.test_attach_trl import tokenizer
from tests.unit.learner.test_teachers import teacher
from transformers import set_seed

from oven_core.protocol.messages import RunStarted
from oven_learner.hf.attach import attach
from oven_learner.teachers import TeacherConfig, Teachers
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def trained(folder: Path, kl_every: int, **settings: Any) -> tuple[Any, FakeLink]:
    """Six steps with two teachers, of which `small` teaches until the third step has ended."""
    job: Any = grpo(folder, lr_scheduler_type="constant", logging_steps=1, **({"max_steps": 6} | settings))
    teachers = Teachers(job, kl_every=kl_every, initial_name="without", offload_folder=folder)
    teachers.add("small", teacher(11), tokenizer())
    teachers.register(TeacherConfig(name="strong", model=teacher(12), tokenizer=tokenizer(), strategy="offload"))
    teachers.swap("small")
    job.beta = job.args.beta = 0.2
    line = FakeLink({3: ("teacher.active", "strong")})
    attach(job, link=line, teachers=teachers)
    set_seed(3)
    job.train()
    return job, line


def values_of(line: FakeLink, name: str) -> list[float]:
    """Its values, in the steps that have one."""
    return [observation.metrics[name] for observation in line.observed() if name in observation.metrics]


def shaky() -> Any:
    """With dropout: each forward pass draws."""
    set_seed(3)
    model = llama()
    model.config.attention_dropout = 0.2
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.2
    return model


@pytest.mark.parametrize(
    "settings",
    [{"model": shaky}, {"peft_config": lora}, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}],
    ids=["dropout", "adapter", "accumulated"],
)
def test_sampling_idle_teachers_changes_no_bit_of_the_training(tmp_path: Path, settings: dict[str, Any]) -> None:
    ends = []
    for kl_every in (0, 1):
        made = {key: value() if callable(value) else value for key, value in settings.items()}
        job, line = trained(tmp_path / str(kl_every), kl_every, **made)
        logs = [
            {k: v for k, v in entry.items() if "time" not in k and "per_second" not in k}
            for entry in job.state.log_history
        ]
        ends.append((weights(job), torch.get_rng_state(), logs, line))
    (first, state, logs, silent), (second, state_too, logs_too, line) = ends
    assert equal(first, second) and torch.equal(state, state_too) and logs == logs_too
    assert not [name for name in silent.observed()[0].metrics if name.startswith("kl/")]
    assert all(values_of(line, f"kl/{name}") for name in ("small", "strong"))


def test_kl_is_published_for_idle_teachers_in_sampled_steps(tmp_path: Path) -> None:
    _, line = trained(tmp_path, 2)
    kl_names = [{name for name in observation.metrics if name.startswith("kl/")} for observation in line.observed()]
    assert kl_names == [set(), {"kl/strong"}, set(), {"kl/small"}, set(), {"kl/small"}]
    assert isinstance(line.sent[0], RunStarted)
    assert {metric.name for metric in line.sent[0].metrics if metric.name.startswith("kl/")} == {
        "kl/small",
        "kl/strong",
    }


def test_kl_on_the_same_completions_equals_trls(tmp_path: Path) -> None:
    job: Any = grpo(tmp_path, lr_scheduler_type="constant", logging_steps=1, max_steps=3)
    teachers = Teachers(job, kl_every=1, initial_name="without")
    for name in ("one", "same"):
        teachers.add(name, teacher(11), tokenizer())
    teachers.swap("one")
    job.beta = job.args.beta = 0.2
    line = FakeLink()
    attach(job, link=line, teachers=teachers)
    job.train()
    assert line.series("kl/same") == pytest.approx(line.series("kl"), rel=1e-5)
