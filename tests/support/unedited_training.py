"""Training scripts without a line for the controller: `unedited_training.py KIND FOLDER` writes FOLDER/weights.pt.

`prepare` writes what TRL's command line needs: a model, a tokenizer and rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

STEPS = 6
COMMON: dict[str, Any] = {
    "learning_rate": 3e-3, "per_device_train_batch_size": 4, "max_steps": STEPS, "logging_steps": 2, "bf16": False,
    "save_strategy": "no", "use_cpu": True, "dataloader_pin_memory": False, "disable_tqdm": True, "report_to": "none",
}  # fmt: skip


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    size: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    ids: dict[str, Any] = {"vocab_size": 259, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, max_position_embeddings=64, **size, **ids))


def tokenizer() -> Any:
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer(extra_ids=0)


def save(model: Any, folder: Path) -> None:
    if os.environ.get("RANK", "0") == "0":
        torch.save({name: value.detach().cpu() for name, value in model.state_dict().items()}, folder / "weights.pt")


def prepare(folder: Path) -> None:
    llama().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    (folder / "rows").mkdir()
    rows = [{"text": f"the quick brown fox {number}"} for number in range(STEPS * 8)]
    (folder / "rows" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def train_with_trainer(folder: Path, **settings: Any) -> None:
    from transformers import Trainer, TrainingArguments

    ids = torch.randint(3, 200, (STEPS * 8, 12), generator=torch.Generator().manual_seed(1))
    rows: Any = [{"input_ids": row, "labels": row} for row in ids]
    trainer = Trainer(
        model=llama(), args=TrainingArguments(output_dir=str(folder / "out"), **COMMON | settings), train_dataset=rows
    )
    trainer.train()
    save(trainer.model, folder)


def train_with_report_to(folder: Path) -> None:
    import oven_learner  # noqa: F401

    train_with_trainer(folder, report_to="oven")


def train_sft(folder: Path) -> None:
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    rows = Dataset.from_list([{"text": "the quick brown fox"}, {"text": "jumps over the lazy dog"}] * STEPS * 4)
    args = SFTConfig(output_dir=str(folder / "out"), **COMMON | {"gradient_checkpointing": False})
    trainer = SFTTrainer(model=llama(), args=args, train_dataset=rows, processing_class=tokenizer())
    trainer.train()
    save(trainer.model, folder)


def train_dpo(folder: Path) -> None:
    from datasets import Dataset
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    llama().save_pretrained(folder / "model")
    rows = [{"prompt": letter, "chosen": " aeiou", "rejected": " xyz"} for letter in "abcdefgh"] * STEPS
    args = DPOConfig(output_dir=str(folder / "out"), **COMMON | {"gradient_checkpointing": False})
    trainer = DPOTrainer(
        model=str(folder / "model"), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer()
    )
    trainer.train()
    save(trainer.model, folder)


def train_grpo(folder: Path) -> None:
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    def vowels(completions: list[str], **_: Any) -> list[float | None]:
        return [sum(letter in "aeiou" for letter in text) / 4 for text in completions]

    rows = Dataset.from_list([{"prompt": letter} for letter in "abcdefgh"])
    sizes = {"num_generations": 4, "max_completion_length": 4, "per_device_train_batch_size": 8}
    args = GRPOConfig(output_dir=str(folder / "out"), **COMMON | sizes | {"gradient_checkpointing": False})
    trainer = GRPOTrainer(
        model=llama(), reward_funcs=[vowels], args=args, train_dataset=rows, processing_class=tokenizer()
    )
    trainer.train()
    save(trainer.model, folder)


def train_with_lightning(folder: Path) -> None:
    from lightning import LightningModule, Trainer, seed_everything
    from torch.utils.data import DataLoader, TensorDataset

    class Sums(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.body(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", torch.nn.functional.mse_loss(self.body(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    seed_everything(0, verbose=False)
    module, x = Sums(), torch.randn(STEPS * 8, 8)
    rows = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, rows, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=24))
    save(module, folder)


def train_with_accelerate(folder: Path) -> None:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS * accelerator.num_processes)
    x = torch.randn(STEPS * 2 * 8 * accelerator.num_processes, 8)
    rows = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model, optimizer, rows, scheduler = accelerator.prepare(model, optimizer, rows, scheduler)
    for inputs, wanted in rows:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), wanted))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.wait_for_everyone()
    save(accelerator.unwrap_model(model), folder)
    accelerator.end_training()


KINDS: dict[str, Callable[[Path], None]] = {
    "trainer": train_with_trainer,
    "report_to": train_with_report_to,
    "sft": train_sft,
    "dpo": train_dpo,
    "grpo": train_grpo,
    "lightning": train_with_lightning,
    "accelerate": train_with_accelerate,
    "prepare": prepare,
}

if __name__ == "__main__":
    _, kind, path = sys.argv
    torch.set_num_threads(1)
    KINDS[kind](Path(path))
