"""TRL's SFTTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from oven_bench.configurations.configuration import resumed

from .tiny import COMMON, EVALUATED, chats, completed, gpt2, llama, lora, mixtral, named, qwen3, texts, tokenizer


def tokenized() -> Dataset:
    words = tokenizer()
    return Dataset.from_list([{"input_ids": words(row["text"])["input_ids"]} for row in texts()])


def ratio_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """A user's loss function."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def make(
    folder: Path, *, model: Any = llama, data: Any = texts, stream: bool = False, held_out: Any = None,
    peft: Any = None, extra: Any = None, **settings: Any,
) -> Trainer:  # fmt: skip
    rows = data().to_iterable_dataset() if stream else data()
    defaults = {"per_device_train_batch_size": 2, "max_length": 32}
    return SFTTrainer(
        model=model(),
        args=SFTConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=rows,
        eval_dataset=(held_out or data)().select(range(4)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
        **(extra or {}),
    )


def prompt_tuning() -> Any:
    from peft import PromptTuningConfig

    return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)


case = named("sft", make)
SFT = (
    case("plain"),
    case("dropout", model=gpt2),
    case("tied_embeddings", model=qwen3),
    case("router_loss", model=mixtral),
    case("completion_only", data=completed),
    case("whole_sequence", data=completed, completion_only_loss=False),
    case("conversational", data=chats),
    case("assistant_only", data=chats, assistant_only_loss=True),
    case("tokenized", data=tokenized),
    case("formatting_function", extra={"formatting_func": lambda row: row["text"] + "!"}),
    case("loss_dft", loss_type="dft"),
    case("own_loss", extra={"compute_loss_func": ratio_loss}),
    case("label_smoothing", label_smoothing_factor=0.1),
    case("packing_bfd", packing=True, max_length=48),
    case("packing_wrapped", packing=True, packing_strategy="wrapped", max_length=24),
    case("packing_evaluation", packing=True, eval_packing=False, max_length=48, **EVALUATED),
    case("padding_free", padding_free=True, max_length=None),
    case("pad_to_multiple", pad_to_multiple_of=8),
    case("truncation", max_length=8),
    case("no_length_limit", max_length=None),
    case("stream", stream=True),
    case("shuffled_before", shuffle_dataset=True),
    case("accumulation", gradient_accumulation_steps=2),
    case("gradient_checkpointing", gradient_checkpointing=True),
    case("evaluation", **EVALUATED),
    case("evaluation_conversational", data=chats, **EVALUATED),
    case("liger", use_liger_kernel=True),
    case("activation_offloading", activation_offloading=True),
    case("neftune", neftune_noise_alpha=5.0),
    case("lora", peft=lora),
    case("lora_dropout", peft=lambda: lora(lora_dropout=0.2)),
    case("lora_checkpointing", peft=lora, gradient_checkpointing=True),
    case("prompt_tuning", peft=prompt_tuning),
    case("bf16_autocast", bf16=True),
    case("epochs", max_steps=-1, num_train_epochs=1, per_device_train_batch_size=12),
    case(
        "resume_in_a_later_epoch",
        resumed,
        per_device_train_batch_size=8,
        save_strategy="steps",
        save_steps=4,
        max_steps=6,
    ),
    case("forty_steps_far_too_fast", max_steps=40, learning_rate=3.0, lr_scheduler_type="constant"),
    case("resume", resumed, save_strategy="steps", save_steps=2, max_steps=4),
    case("resume_lora", resumed, peft=lora, save_strategy="steps", save_steps=2, max_steps=4),
)
