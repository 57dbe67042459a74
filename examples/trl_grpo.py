"""TRL's GRPOTrainer under the controller: `oven-controller run -- python examples/trl_grpo.py`.

The controller finds the knob `grpo.epsilon`, because completions are used twice. The script adds its own knob.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the script downloads nothing

from datasets import Dataset
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import oven_learner as oven

DATA = [{"prompt": letter} for letter in "abcdefghijklmnop"]


class Bytes(ByT5Tokenizer):
    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: Any = None) -> list[int]:
        return token_ids_0  # no end of sequence after a prompt


def model(width: int = 32) -> LlamaForCausalLM:
    size: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1}
    ids: dict[str, Any] = {"vocab_size": 259, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, max_position_embeddings=64, **size, **ids))


def vowels(completions: list[str], **_: Any) -> list[float | None]:
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]


def main() -> None:
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder, learning_rate=3e-3, per_device_train_batch_size=8, gradient_checkpointing=False,
            max_steps=16, num_generations=8, num_iterations=2, max_completion_length=8, max_grad_norm=0.2,
            logging_steps=10, save_strategy="no", report_to=[], use_cpu=True, bf16=False, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model(), reward_funcs=vowels, args=args, train_dataset=Dataset.from_list(DATA),
            processing_class=Bytes(extra_ids=0),
        )  # fmt: skip
        knobs = oven.Actuators()
        knobs.scalar(
            "grpo.top_entropy", lambda: trainer.top_entropy_quantile,
            lambda share: setattr(trainer, "top_entropy_quantile", share), low=0.2, high=1.0,
        )  # fmt: skip
        oven.attach(trainer, actuators=knobs)
        trainer.train()


if __name__ == "__main__":
    main()
