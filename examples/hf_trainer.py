"""A Hugging Face Trainer under the controller: `oven-controller run -- python examples/hf_trainer.py`."""

from __future__ import annotations

import tempfile

from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

import oven_learner as oven

STEPS = 40
TEXT = b"the quick brown fox jumps over the lazy dog and runs away "


class Text(Dataset[dict[str, list[int]]]):
    """Windows of 24 bytes."""

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        start = index % (len(TEXT) - 24)
        return {"input_ids": list(TEXT[start : start + 24]), "labels": list(TEXT[start : start + 24])}


def main() -> None:
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder, max_steps=STEPS, per_device_train_batch_size=8, learning_rate=3e-3,
                max_grad_norm=0.5, logging_steps=20, save_strategy="no", report_to=[], use_cpu=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=Text(),
        )  # fmt: skip
        oven.attach(trainer)
        trainer.train()


if __name__ == "__main__":
    main()
