"""Helpers for the tests of the channels and of PEFT: GRPO trainers of a few steps with one seed, TRL's and ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tests.support.attached import llama
from tests.unit.learner.test_attach_trl import COMMON, tokenizer
from transformers import set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

ROWS = [{"prompt": letter, "reference": after} for letter, after in zip("abcdefgh", "bcdefghi", strict=True)]


def vowels(completions: list[str], **_: Any) -> list[float | None]:
    return [sum(letter in "aeiou" for letter in text) / 4 for text in completions]


def early(completions: list[str], **_: Any) -> list[float | None]:
    return [sum(letter < "n" for letter in text) / 4 for text in completions]


async def patient(completions: list[str], **_: Any) -> list[float | None]:
    return early(completions)


def lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")


def grpo(
    folder: Path,
    cls: type[GRPOTrainer] = GRPOTrainer,
    *,
    rewards: Any = (vowels, early),
    rows: Any = None,
    **settings: Any,
) -> Any:
    set_seed(3)
    extra = {key: settings.pop(key) for key in ("channels", "peft_config", "eval_dataset") if key in settings}
    words = settings.pop("processing_class", None) or tokenizer()
    model: Any = settings.pop("model", None) or llama()
    if settings.get("beta") and "peft_config" not in extra and not isinstance(model, str):
        model.save_pretrained(folder / "policy")
        model = str(folder / "policy")
    defaults = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 4, "max_steps": 3}
    return cls(
        model=model,
        reward_funcs=list(rewards),
        args=GRPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=Dataset.from_list(rows or ROWS),
        processing_class=words,
        **extra,
    )


def losses(job: Any) -> list[float]:
    return [entry["loss"] for entry in job.state.log_history if "loss" in entry]


def batch(job: Any, advantages: list[float] | None = None, rows: Any = ROWS) -> dict[str, Any]:
    """Return eight sampled completions of two prompts. Without advantages GRPO's own loss has no gradient."""
    job.model.train()
    job.current_gradient_accumulation_steps = 1  # as `train()` sets it
    set_seed(5)
    inputs: dict[str, Any] = job._generate_and_score_completions([rows[0]] * 4 + [rows[1]] * 4)
    return inputs | {"advantages": torch.tensor(advantages or [0.0] * 8)}


def gradient(job: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Return the gradient of the trainable parameters as one vector."""
    job.model.zero_grad()
    job._compute_loss(job.model, inputs).backward()
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone() for p in trained])


def differentiated(job: Any, loss: torch.Tensor) -> torch.Tensor:
    """Return ∂loss/∂θ of the trainable parameters as one vector."""
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    parts = torch.autograd.grad(loss, trained, allow_unused=True)
    return torch.cat([
        torch.zeros_like(p).flatten() if part is None else part.flatten()
        for p, part in zip(trained, parts, strict=True)
    ])  # fmt: skip
