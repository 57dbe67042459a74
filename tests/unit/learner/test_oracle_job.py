"""The recipe's job on a given model: what is put together, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.activations import model, tokenizer
from tests.support.attached import THIRD_PARTY

from oven_recipes.oracle.settings import OracleSettings, parse_start
from oven_recipes.oracle.training_job import build
from oven_recipes.training_runner import Job

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SMALL: dict[str, Any] = {
    "hidden": 16, "pretrain_steps": 0, "sft_steps": 1, "sft_batch": 2, "train_texts": 9, "prompts_per_step": 1,
    "num_generations": 2, "max_completion_length": 4, "max_steps": 1, "eval_items": 2, "quick_items": 2,
}  # fmt: skip


def job(folder: Path, start: str = "tuned", **values: Any) -> Job:
    settings = OracleSettings.model_validate({**SMALL, **values})
    checkpoints = folder / "run" / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    return build(settings, parse_start(start, 1, settings), 1, checkpoints, folder / "cache")


def base_model_of(folder: Path) -> str:
    """A model's folder."""
    model().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    return str(folder / "model")


def test_the_reference_is_the_supervised_adapter_also_where_the_penalty_begins_at_0(tmp_path: Path) -> None:
    trainer = job(tmp_path, kl_penalty=0).trainer
    assert trainer.beta == trainer.args.beta == 0 and trainer.args.scale_rewards == "none"
    weights = dict(trainer.model.named_parameters())
    reference = {name: weight for name, weight in weights.items() if ".ref." in name}
    assert reference and all(torch.equal(w, weights[n.replace(".ref.", ".default.")]) for n, w in reference.items())
    assert any(weight.abs().sum() > 0 for name, weight in reference.items() if "lora_B" in name), "it was taught"
    assert not any(weight.requires_grad for weight in reference.values())
