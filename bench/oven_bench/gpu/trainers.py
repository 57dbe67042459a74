"""The trainers of `bench gpu`: TRL's GRPOTrainer that generates, and a supervised Trainer, both with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oven_bench.gpu.sizes import Sizes
from oven_bench.performance.step_arm import SIZES, Size, build_trainer, random_model

LEARNING_RATE = 1e-4
"""So large that each step changes weights in bf16, whose neighbours are up to 0.8 % apart."""


def repeatable() -> None:
    """Make torch use kernels that give the same bits each time, where it has them. Call it before the first kernel."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)


def even_share(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that random weights earn in different amounts: the share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / max(1, len(ids)) for ids in completion_ids]


def grpo_trainer(sizes: Sizes, folder: Path, steps: int) -> Any:
    settings = {"output_dir": str(folder), "max_steps": steps, "learning_rate": LEARNING_RATE, "weight_decay": 0.01}
    return build_trainer(sizes.order(str(folder)), even_share, "eager", **settings)


def supervised_trainer(sizes: Sizes, size: Size, folder: Path, steps: int, attention: str = "sdpa") -> Any:
    """Build a Trainer on random tokens. Its weights, data and order depend on torch's generators."""
    import torch
    from transformers import PrinterCallback, Trainer, TrainingArguments

    model = random_model(size, sizes.device, sizes.dtype, attention)
    ids = torch.randint(0, SIZES[size]["vocab_size"], (4 * sizes.rows, sizes.tokens))  # (N, T)
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, learning_rate=LEARNING_RATE, lr_scheduler_type="constant",
        per_device_train_batch_size=sizes.rows, logging_steps=1, logging_nan_inf_filter=False, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=sizes.device == "cpu",
        dataloader_pin_memory=sizes.device == "cuda",
    )  # fmt: skip
    data: Any = [{"input_ids": row, "labels": row} for row in ids]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    return trainer
