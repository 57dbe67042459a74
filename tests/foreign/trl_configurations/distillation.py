"""TRL's DistillationTrainer, and its experimental ones: GKD, GOLD, SDFT, SDPO and IW-OPD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer

from oven_bench.configurations.configuration import resumed

from .tiny import (
    COMMON,
    EVALUATED,
    WORDS,
    chat_prompts,
    chats,
    even,
    llama,
    lora,
    named,
    prompts,
    saved,
    tokenizer,
    user,
)


def teacher() -> Any:
    return llama(num_hidden_layers=1)


def distillation(folder: Path, *, data: Any = prompts, peft: Any = None, **settings: Any) -> Trainer:
    defaults = {"per_device_train_batch_size": 2, "max_completion_length": 8}
    return DistillationTrainer(
        model=llama(),
        teacher_model=teacher(),
        args=DistillationConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=data(),
        eval_dataset=data().select(range(2)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


def gkd(folder: Path, *, peft: Any = None, **settings: Any) -> Trainer:
    from trl.experimental.gkd.gkd_config import GKDConfig
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    defaults = {"per_device_train_batch_size": 2, "max_new_tokens": 8, "max_length": 48}
    return GKDTrainer(
        model=llama(),
        teacher_model=teacher(),
        args=GKDConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=chats(),
        eval_dataset=chats().select(range(2)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


def gold(folder: Path, **settings: Any) -> Trainer:
    from trl.experimental.gold.gold_config import GOLDConfig
    from trl.experimental.gold.gold_trainer import GOLDTrainer

    defaults = {"per_device_train_batch_size": 2, "max_completion_length": 8, "max_length": 48}
    if settings.get("use_uld_loss"):
        settings["teacher_tokenizer_name_or_path"] = saved(folder)
    return GOLDTrainer(
        model=llama(),
        teacher_model=teacher(),
        args=GOLDConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=chats(),
        eval_dataset=chats().select(range(2)),
        processing_class=tokenizer(),
    )


def hinted() -> Dataset:
    """Prompts with what only the teacher is told."""
    return Dataset.from_list(
        [{"prompt": [user(f"say {word}")], "privileged_context": f"it is {word}"} for word in WORDS * 3]
    )


def sdft(folder: Path, *, peft: Any = None, **settings: Any) -> Trainer:
    from trl.experimental.sdft.sdft_config import SDFTConfig
    from trl.experimental.sdft.sdft_trainer import SDFTTrainer

    defaults = {"per_device_train_batch_size": 2, "num_generations": 1, "max_completion_length": 8}
    return SDFTTrainer(
        model=saved(folder),
        args=SDFTConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=hinted(),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


def sdpo(folder: Path, **settings: Any) -> Trainer:
    from trl.experimental.sdpo.sdpo_config import SDPOConfig
    from trl.experimental.sdpo.sdpo_trainer import SDPOTrainer

    defaults = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8}
    return SDPOTrainer(
        model=saved(folder),
        reward_funcs=[even],
        args=SDPOConfig(output_dir=str(folder), **(COMMON | defaults | {"success_reward_threshold": 0.2} | settings)),
        train_dataset=hinted(),
        processing_class=tokenizer(),
    )


def iw_opd(folder: Path, **settings: Any) -> Trainer:
    from trl.experimental.iw_opd.iw_opd_config import IWOPDConfig
    from trl.experimental.iw_opd.iw_opd_trainer import IWOPDTrainer

    defaults = {"per_device_train_batch_size": 2, "max_completion_length": 8, "max_length": 48}
    return IWOPDTrainer(
        model=llama(),
        teacher_model=saved(folder, teacher()),  # it compares the teacher's tokenizer
        args=IWOPDConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=chats(),
        eval_dataset=chats().select(range(2)),
        processing_class=tokenizer(),
    )


case = named("distillation", distillation)
on_policy, aligned = named("gkd", gkd), named("gold", gold)
self_taught, rewarded, weighted = named("sdft", sdft), named("sdpo", sdpo), named("iw_opd", iw_opd)
DISTILLATION = (
    case("forward_kl", beta=0.0),
    case("jensen_shannon", beta=0.5),
    case("reverse_kl", beta=1.0),
    case("conversational", data=chat_prompts),
    case("accumulation", gradient_accumulation_steps=2),
    case("evaluation", **EVALUATED),
    case("lora", peft=lora),
    case("resume", resumed, save_strategy="steps", save_steps=2, max_steps=4),
    on_policy("plain"),
    on_policy("all_on_policy", lmbda=1.0),
    on_policy("off_policy", lmbda=0.0),
    on_policy("teacher_writes", seq_kd=True, lmbda=0.0),
    on_policy("evaluation", **EVALUATED),
    on_policy("lora", peft=lora),
    aligned("plain"),
    aligned("off_policy", lmbda=0.0),
    aligned("universal_logits", use_uld_loss=True, lmbda=0.0),
    self_taught("plain"),
    self_taught("moving_teacher", teacher_model_kind="ema"),
    self_taught("lora", peft=lora),
    rewarded("plain"),
    rewarded("half_distilled", distillation_weight=0.5),
    weighted("plain"),
    weighted("jensen_shannon", distillation_objective="jsd", beta=0.5),
    weighted("off_policy", distillation_objective="jsd", lmbda=0.0),
)
