"""TRL's GRPOTrainer under the controller: `oven-controller run -- python examples/trl_grpo.py`.

The reward is the share of vowels; a knob of one's own stands beside those that `attach` finds.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made here

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import oven_learner as oven

STEPS = 16
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a letter."""
    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", *LETTERS])}
    letters = Tokenizer(WordLevel(words, unk_token="<pad>"))
    letters.pre_tokenizer = Split("", "isolated")
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=letters, **special)  # type: ignore[no-untyped-call]


def vowels(completions: list[str], **_: Any) -> list[float | None]:
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]


def main() -> None:
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=3 + len(LETTERS), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=vowels,
            args=GRPOConfig(
                output_dir=folder, max_steps=STEPS, per_device_train_batch_size=8, num_generations=8,
                max_completion_length=8, learning_rate=3e-3, max_grad_norm=0.2, logging_steps=8, save_strategy="no",
                report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, dataloader_pin_memory=False,
            ),
            train_dataset=Dataset.from_list([{"prompt": letter} for letter in LETTERS[:16]]),
            processing_class=tokenizer(),
        )  # fmt: skip
        knobs = oven.Actuators()
        knobs.scalar(
            "grpo.epsilon_high",
            lambda: float(trainer.epsilon_high),
            lambda value: setattr(trainer, "epsilon_high", value),
            low=0.1,
            high=0.4,
        )
        oven.attach(trainer, actuators=knobs)
        trainer.train()


if __name__ == "__main__":
    main()
