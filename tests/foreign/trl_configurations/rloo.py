"""TRL's RLOOTrainer, and its experimental online trainers: online DPO and A2PO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from oven_bench.configurations.configuration import resumed

from .grpo import TWO, judge, patient
from .grpo import make as online
from .tiny import COMMON, EVALUATED, chat_prompts, even, gpt2, llama, lora, named, prompts, saved, tokenizer


def rloo(folder: Path, **settings: Any) -> Trainer:
    return online(folder, cls=RLOOTrainer, config=RLOOConfig, **settings)


def right(completions: list[Any], **_: Any) -> list[float]:
    """0 or 1, as A2PO's rewards have to be."""
    return [float(value > 0.2) for value in even(completions)]


def online_dpo(
    folder: Path, *, data: Any = prompts, rewards: Any = (even,), judged: bool = False, peft: Any = None,
    **settings: Any,
) -> Trainer:  # fmt: skip
    from trl.experimental.online_dpo.online_dpo_config import OnlineDPOConfig
    from trl.experimental.online_dpo.online_dpo_trainer import OnlineDPOTrainer

    defaults = {"per_device_train_batch_size": 2, "max_new_tokens": 8, "max_length": 64}
    return OnlineDPOTrainer(
        model=saved(folder),
        reward_funcs=judge() if judged else list(rewards),
        args=OnlineDPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=data(),
        eval_dataset=data().select(range(2)),
        processing_class=tokenizer(),
        reward_processing_classes=tokenizer() if judged else None,
        peft_config=peft() if peft else None,
    )


def a2po(folder: Path, **settings: Any) -> Trainer:
    from trl.experimental.a2po.a2po_config import A2POConfig
    from trl.experimental.a2po.a2po_trainer import A2POTrainer

    defaults = {"per_device_train_batch_size": 4, "max_completion_length": 8, "num_value_samples": 2}
    return A2POTrainer(
        model=llama(),
        reward_funcs=[right],
        args=A2POConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=prompts(),
        processing_class=tokenizer(),
    )


case, pairs, values = named("rloo", rloo), named("online_dpo", online_dpo), named("a2po", a2po)
RLOO = (
    case("plain"),
    case("no_beta", beta=0.0),
    case("high_beta", beta=0.5),
    case("synced_reference", sync_ref_model=True, ref_model_sync_steps=2),
    case("normalized_advantages", normalize_advantages=True),
    case("clipped_rewards", reward_clip_range=(0.0, 0.2)),
    case("iterations", num_iterations=2),
    case("steps_per_generation", steps_per_generation=2, max_steps=4),
    case("clip_higher", epsilon=0.1, epsilon_high=0.3, num_iterations=2),
    case("accumulation", gradient_accumulation_steps=2),
    case("rewards_weighted", rewards=TWO, reward_weights=[0.7, 0.3]),
    case("rewards_async", rewards=(even, patient)),
    case("rewards_of_a_model", judges=1),
    case("masked_truncation", mask_truncated_completions=True),
    case("conversational", data=chat_prompts),
    case("dropout", model=gpt2),
    case("gradient_checkpointing", gradient_checkpointing=True),
    case("evaluation", **EVALUATED, per_device_eval_batch_size=4),
    case("lora", peft=lora),
    case("resume", resumed, save_strategy="steps", save_steps=2, max_steps=4),
    pairs("plain"),
    pairs("loss_ipo", loss_type="ipo"),
    pairs("missing_eos_penalty", missing_eos_penalty=1.0),
    pairs("rewards_of_a_model", judged=True),
    pairs("rewards_weighted", rewards=TWO, reward_weights=[0.7, 0.3]),
    pairs("accumulation", gradient_accumulation_steps=2),
    pairs("lora", peft=lora),
    values("plain"),
    values("with_what_is_never_right", filter_all_incorrect=False),
)
