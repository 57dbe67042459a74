"""Helpers for the tests of attach: trainers that take a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from oven_learner.rollback import snapshot_memory

THIRD_PARTY = (
    # accelerate and torch warn of each other's ways; none of it is ours.
    "ignore:.*pin_memory.*:UserWarning",
    "ignore:.*lr_scheduler.step.*:UserWarning",
    "ignore::DeprecationWarning:(torch|trl|transformers|accelerate|datasets|huggingface_hub|multiprocess|dill).*",
    "ignore::FutureWarning:(torch|trl|transformers|accelerate|datasets|huggingface_hub).*",
)


class Toy(torch.nn.Module):
    """A model with two layers and a mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        guess = self.body(x)  # [batch, 1]
        return {"loss": torch.nn.functional.mse_loss(guess, labels), "logits": guess}


def rows(count: int = 64, poison: int | None = None) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    made = []
    for index in range(count):
        x = torch.randn(4, generator=generator)
        made.append({"x": x * float("nan") if index == poison else x, "labels": x.sum().reshape(1)})
    return made


class Sequential(Trainer):
    """A trainer that reads its rows in order, so that a test knows which step sees which row."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> torch.utils.data.SequentialSampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


def trainer(folder: Path, *, data: list[Any] | None = None, **settings: Any) -> Trainer:
    """Return a trainer of twelve steps on the toy model."""
    set_seed(3)
    model = settings.pop("model", None) or Toy()
    cls = settings.pop("cls", Trainer)
    optimizers = settings.pop("optimizers", (None, None))
    defaults: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 0.01,
        "logging_steps": 10, "save_strategy": "no", "report_to": [], "remove_unused_columns": False,
        "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "seed": 3,
    }  # fmt: skip
    return cls(  # type: ignore[no-any-return]
        model=model,
        args=TrainingArguments(**(defaults | settings)),
        train_dataset=data or rows(),
        eval_dataset=rows(8),
        optimizers=optimizers,
    )


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def tokens(count: int = 64) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = [torch.randint(3, 32, (12,), generator=generator) for _ in range(count)]
    return [{"input_ids": row, "labels": row.clone()} for row in made]


def weights(trainer: Trainer) -> list[torch.Tensor]:
    assert isinstance(trainer.model, torch.nn.Module)
    return [parameter.detach().clone() for parameter in trainer.model.state_dict().values()]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def leave_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the model too large to copy."""
    monkeypatch.setattr(snapshot_memory, "LIMIT_BYTES", 0)
    monkeypatch.setattr(snapshot_memory, "MAX_HOST_SHARE", 0.0)
