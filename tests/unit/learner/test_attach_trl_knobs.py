"""The knobs that attach finds on TRL's trainers: each acts from the step after its decision on, and is read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, llama, trainer
from tests.unit.learner.test_attach_trl import COMMON, grpo, sft, tokenizer
from transformers import set_seed
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from oven_core.errors import ConfigError
from oven_core.protocol.messages import ActuatorSpec, RunStarted, Value
from oven_learner.actuators import Actuators
from oven_learner.hf.attach import attach
from oven_learner.hf.knobs import trainer_knobs
from oven_learner.hf.knobs.trainer_knobs import UserValues
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.teachers import register_kl_knobs
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
PROMPTS = [{"prompt": letter} for letter in "abcdefghijklmnop"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """On disk, from where TRL loads the reference model."""
    folder = tmp_path_factory.mktemp("policy")
    set_seed(3)
    llama().save_pretrained(folder)
    return str(folder)


def vowels(completions: list[str], **_: Any) -> list[float | None]:
    return [sum(letter in "aeiou" for letter in text) / 4 for text in completions]


def lengths(completions: list[str], **_: Any) -> list[float | None]:
    return [float(len(text)) for text in completions]


def dpo(folder: Path, policy: str, held_out: Any = None, **settings: Any) -> DPOTrainer:
    set_seed(3)
    pairs = [{"prompt": "ab", "chosen": "cde", "rejected": letter * 3} for letter in "klmnopqr"]
    args = DPOConfig(output_dir=str(folder), per_device_train_batch_size=4, **COMMON | {"beta": 0.1} | settings)
    return DPOTrainer(
        model=policy, args=args, train_dataset=Dataset.from_list(pairs), eval_dataset=held_out,
        processing_class=tokenizer(),
    )  # fmt: skip


def rloo(folder: Path, policy: str, held_out: Any = None, **settings: Any) -> RLOOTrainer:
    set_seed(3)
    args = RLOOConfig(
        output_dir=str(folder), num_generations=4, per_device_train_batch_size=4, max_completion_length=4,
        **COMMON | {"beta": 0.1} | settings,
    )  # fmt: skip
    return RLOOTrainer(
        model=policy, reward_funcs=[vowels, lengths], args=args, train_dataset=Dataset.from_list(PROMPTS),
        eval_dataset=held_out,
        processing_class=tokenizer(),
    )  # fmt: skip


def distillation(folder: Path, policy: str, held_out: Any = None, **settings: Any) -> DistillationTrainer:
    set_seed(3)
    args = DistillationConfig(
        output_dir=str(folder), per_device_train_batch_size=4, max_completion_length=4,
        **COMMON | {"beta": 0.5} | settings,
    )  # fmt: skip
    return DistillationTrainer(
        model=policy, teacher_model=llama(), args=args, train_dataset=Dataset.from_list(PROMPTS),
        eval_dataset=held_out,
        processing_class=tokenizer(),
    )  # fmt: skip


def reusing_grpo(folder: Path, policy: str, **settings: Any) -> Any:
    return grpo(folder, model=policy, **{"num_iterations": 3, "learning_rate": 0.3} | settings)


def reusing_rloo(folder: Path, policy: str, **settings: Any) -> Any:
    return rloo(folder, policy, **{"num_iterations": 3, "learning_rate": 0.3} | settings)


SHARES = {"vowels": 1.0, "lengths": 0.0}
ACTS: dict[str, tuple[Any, str, Value, str, dict[str, Any]]] = {
    "dpo": (dpo, "dpo.beta", 0.3, "loss", {}),
    "rloo": (rloo, "rloo.beta", 0.3, "grad_norm", {}),
    "distillation": (distillation, "distillation.beta", 0.9, "loss", {}),
    "grpo, clipped": (reusing_grpo, "grpo.epsilon", 0.02, "clip_ratio/region_mean", {"max_steps": 6}),
    "grpo, clipped above": (
        reusing_grpo,
        "grpo.epsilon_high",
        0.028,
        "clip_ratio/high_mean",
        {"epsilon_high": 0.28, "max_steps": 6},
    ),
    "rloo, clipped": (reusing_rloo, "rloo.epsilon", 0.02, "loss", {"learning_rate": 0.03}),
    "rewards": (rloo, "reward.weights", SHARES, "loss", {"beta": 0.0}),
}


def specs(line: FakeLink) -> dict[str, ActuatorSpec]:
    assert isinstance(line.sent[0], RunStarted)
    return {spec.name: spec for spec in line.sent[0].actuators}


@pytest.mark.parametrize("case", ACTS)
def test_a_decision_acts_and_is_read_back(tmp_path: Path, policy: str, case: str) -> None:
    make, knob, value, gauge, settings = ACTS[case]
    series = []
    for plan in ({}, {1: (knob, value)}):
        line = FakeLink(dict(plan))
        attach(make(tmp_path, policy, **{"max_steps": 3} | settings), link=line).trainer.train()
        assert knob in specs(line)
        series.append([seen.metrics[gauge] for seen in line.observed()])
    own, changed = series
    assert own[0] == changed[0] and own[1:] != changed[1:]
    (receipt,) = line.receipts()
    assert receipt.status == "applied" and receipt.before == specs(line)[knob].value
    assert receipt.after == (value if isinstance(value, dict) else pytest.approx(value))


def offered(job: Any, existing: Actuators | None = None) -> dict[str, ActuatorSpec]:
    """What the families find on a trainer, beside what any has."""
    actuators, own = existing or Actuators(), UserValues()
    trainer_knobs.register_beta(job, actuators, own, USER_BOUNDS)
    trainer_knobs.register_epsilon(job, actuators, own)
    trainer_knobs.register_reward_weights(job, actuators)
    register_kl_knobs(actuators, job, None, USER_BOUNDS)
    return {spec.name: spec for spec in actuators.specs()}


def test_a_knob_without_effect_is_not_announced(tmp_path: Path, policy: str) -> None:
    on_policy = offered(grpo(tmp_path))
    assert not {"grpo.epsilon", "grpo.epsilon_high"} & set(on_policy), "the ratio is 1 before the policy moves"
    assert "grpo.beta" not in on_policy, "no reference model was loaded"
    assert set(offered(rloo(tmp_path, policy, beta=0.0))) == {"reward.weights"}
    assert not offered(distillation(tmp_path, policy, beta=1.0)), "another formula"
    assert not offered(dpo(tmp_path, policy, loss_type=["sft"]))
    assert set(offered(dpo(tmp_path, policy, precompute_ref_log_probs=True))) == {"dpo.beta"}
    assert not offered(sft(tmp_path))
    cispo = offered(reusing_grpo(tmp_path, policy, loss_type="cispo", epsilon_high=5.0))
    assert set(cispo) == {"grpo.epsilon_high", "reward.weights"}


def test_bounds_are_multiples_of_the_users_value_also_in_a_second_training(tmp_path: Path, policy: str) -> None:
    job = dpo(tmp_path, policy, beta=0.2, max_steps=3)
    line = FakeLink({1: ("dpo.beta", 0.5)})
    attach(job, link=line)
    for own in (0.2, 0.5):
        line.sent.clear()
        job.train()
        spec = specs(line)["dpo.beta"]
        assert spec.value == own
        assert spec.low == pytest.approx(0.02) and spec.high == pytest.approx(0.6)


def test_reward_weights_that_are_not_shares_are_not_announced(tmp_path: Path, policy: str) -> None:
    assert "reward.weights" not in offered(rloo(tmp_path, policy, reward_weights=[1.0, -0.5]))
    weighted = offered(rloo(tmp_path, policy, reward_weights=[3.0, 1.0]))
    assert weighted["reward.weights"].value == {"vowels": 0.75, "lengths": 0.25}


def test_a_completely_frozen_model_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    job, line = trainer(tmp_path), FakeLink()
    assert job.model is not None
    job.model.requires_grad_(False)
    attach(job, link=line)
    with pytest.raises(ConfigError, match=r"none of the model's 4 parameters requires a gradient.*unfreeze"):
        job.train()
    assert not line.sent


def test_an_actuator_of_the_user_takes_precedence(tmp_path: Path, policy: str) -> None:
    job, knobs = dpo(tmp_path, policy), Actuators()
    knobs.scalar("dpo.beta", lambda: job.beta, lambda value: setattr(job, "beta", value), low=0.05, high=0.15)
    result = offered(job, knobs)["dpo.beta"]
    assert (result.low, result.high) == (0.05, 0.15)
