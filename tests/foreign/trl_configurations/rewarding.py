"""TRL's RewardTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from oven_bench.configurations.configuration import resumed

from .tiny import COMMON, EVALUATED, lora, named, preferences, preferred_chats, scorer, tokenizer


def margins() -> Dataset:
    return Dataset.from_list([{**row, "margin": 0.1 * number} for number, row in enumerate(preferences())])


def unprompted() -> Dataset:
    """The prompt is part of both texts."""
    return preferences().map(
        lambda row: {"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]},
        remove_columns="prompt",
    )


def make(folder: Path, *, data: Any = unprompted, stream: bool = False, peft: Any = None, **settings: Any) -> Trainer:
    rows = data().to_iterable_dataset() if stream else data()
    defaults = {"per_device_train_batch_size": 2, "max_length": 32}
    return RewardTrainer(
        model=scorer(),
        args=RewardConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=rows,
        eval_dataset=data().select(range(4)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


def classifier_lora() -> Any:
    return lora(task_type="SEQ_CLS", modules_to_save=["score"])


case = named("reward", make)
REWARDING = (
    case("plain"),
    case("prompt_apart", data=preferences),
    case("conversational", data=preferred_chats),
    case("margin", data=margins),
    case("centred", center_rewards_coefficient=0.01),
    case("stream", stream=True),
    case("accumulation", gradient_accumulation_steps=2),
    case("gradient_checkpointing", gradient_checkpointing=True),
    case("evaluation", **EVALUATED),
    case("lora", peft=classifier_lora),
    case("resume", resumed, save_strategy="steps", save_steps=2, max_steps=4),
)
