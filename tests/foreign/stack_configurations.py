"""Trainers of transformers and TRL with settings that every supported version has, on the tiny models of
trl_configurations. The table of `oven-controller bench stacks`. TRL is imported when a trainer is made, because the
table is also used without it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainingArguments

from oven_bench.configurations.configuration import Configuration, resumed

_spec = importlib.util.spec_from_file_location("oven_tiny", Path(__file__).parent / "trl_configurations" / "tiny.py")
assert _spec is not None
assert _spec.loader is not None
tiny: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)  # the package itself needs the newest TRL

COMMON = tiny.COMMON | {"max_steps": 8, "lr_scheduler_type": "constant"}
SAVED = {"save_strategy": "steps", "save_steps": 4}


def trainer(folder: Path, *, model: Any = tiny.gpt2, **settings: Any) -> Trainer:
    return Trainer(
        model=model(),
        args=TrainingArguments(output_dir=str(folder), per_device_train_batch_size=4, **(COMMON | settings)),
        train_dataset=tiny.rows(),
        eval_dataset=tiny.rows(8),
    )


def tokenizer() -> Any:
    """transformers 4 would also return token types, which the models do not take."""
    made = tiny.tokenizer()
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def sft(folder: Path) -> Trainer:
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    return SFTTrainer(
        model=tiny.llama(),
        args=SFTConfig(output_dir=str(folder), per_device_train_batch_size=2, max_length=32, **COMMON),
        train_dataset=tiny.texts(),
        processing_class=tokenizer(),
    )


def dpo(folder: Path) -> Trainer:
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    return DPOTrainer(
        model=tiny.saved(folder),
        args=DPOConfig(output_dir=str(folder), per_device_train_batch_size=2, max_length=32, **COMMON),
        train_dataset=tiny.preferences(),
        processing_class=tokenizer(),
    )


def grpo(folder: Path) -> Trainer:
    """With a reference model, and completions that are used twice."""
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    return online(folder, GRPOTrainer, GRPOConfig, num_iterations=2)


def rloo(folder: Path) -> Trainer:
    from trl.trainer.rloo_config import RLOOConfig
    from trl.trainer.rloo_trainer import RLOOTrainer

    return online(folder, RLOOTrainer, RLOOConfig)


def online(folder: Path, cls: Any, config: Any, **settings: Any) -> Trainer:
    defaults = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8, "beta": 0.05}
    made: Trainer = cls(
        model=tiny.saved(folder),
        reward_funcs=[tiny.even, tiny.plain],
        args=config(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=tiny.prompts(),
        processing_class=tokenizer(),
    )
    return made


CONFIGURATIONS = (
    Configuration("trainer/dropout", trainer),
    Configuration("trainer/evaluated", lambda folder: trainer(folder, model=tiny.llama, **tiny.EVALUATED)),
    Configuration("trainer/resumed", lambda folder: trainer(folder, **SAVED), resumed),
    Configuration("sft", sft),
    Configuration("dpo", dpo),
    Configuration("grpo", grpo),
    Configuration("rloo", rloo),
)
