"""TRL's DPOTrainer under the controller: `oven-controller run -- python examples/trl_dpo.py`.

The controller finds the knob `dpo.beta`.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the script downloads nothing

from datasets import Dataset
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

import oven_learner as oven

DATA = [{"prompt": letter, "chosen": " aeiou", "rejected": " xyz"} for letter in "abcdefghijklmnop"] * 4


class Bytes(ByT5Tokenizer):
    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: Any = None) -> list[int]:
        return token_ids_0  # no end of sequence after a prompt


def model(width: int = 32) -> LlamaForCausalLM:
    size: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1}
    ids: dict[str, Any] = {"vocab_size": 259, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, max_position_embeddings=64, **size, **ids))


def main() -> None:
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model().save_pretrained(folder)  # TRL loads the reference model from the policy's folder
        args = DPOConfig(
            output_dir=folder, learning_rate=3e-3, per_device_train_batch_size=8, gradient_checkpointing=False,
            max_steps=12, beta=0.1,
            logging_steps=10, save_strategy="no", report_to=[], use_cpu=True, bf16=False, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = DPOTrainer(
            model=folder,
            args=args,
            train_dataset=Dataset.from_list(DATA),
            processing_class=Bytes(extra_ids=0),
        )
        oven.attach(trainer)
        trainer.train()


if __name__ == "__main__":
    main()
