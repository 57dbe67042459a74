"""Causal language modelling with the Hugging Face Trainer: tokens in blocks of one length, linear decay, an evaluation
on held-out files every few steps. `oven-controller run -- python tests/foreign/clm_trainer.py --width 64`"""

from __future__ import annotations

import sysconfig
import tempfile
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

import oven_learner as oven
from oven_bench.foreign.case import Case, Result, command_line
from oven_learner.link.link_interface import Link

BLOCK = 64
"""Tokens of a row; one token is one byte."""
EVAL_STEPS = 25
EVAL_ROWS, FINAL_ROWS = 64, 256
TRAIN_BYTES, HELD_OUT_BYTES = 700_000, 60_000


def rows(files: list[Path], limit: int) -> Dataset:
    """All files behind one another, cut into blocks; the rest that fills no block is dropped."""
    stream: list[int] = []
    for path in files:
        stream.extend(chain(path.read_bytes(), b"\n"))
        if len(stream) >= limit:
            break
    whole = len(stream) // BLOCK * BLOCK
    blocks = [stream[start : start + BLOCK] for start in range(0, whole, BLOCK)]
    return Dataset.from_dict({"input_ids": blocks, "labels": blocks})


@cache
def load() -> tuple[Dataset, Dataset]:
    """Training and held-out rows of the standard library's sources, split by file."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    held_out = files[5::10]
    return rows([path for path in files if path not in held_out], TRAIN_BYTES), rows(held_out, HELD_OUT_BYTES)


def optimizers(model: torch.nn.Module, case: Case) -> tuple[torch.optim.Optimizer | None, Any]:
    """SGD with momentum is no choice of TrainingArguments; the others are."""
    if case.optimizer != "sgd":
        return None, None
    return torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9), None


def train(case: Case, link: Link | None = None, *, attached: bool = True) -> Result:
    set_seed(case.seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=case.width,
        intermediate_size=3 * case.width,
        num_hidden_layers=2,
        num_attention_heads=max(2, case.width // 32),
        max_position_embeddings=BLOCK,
        initializer_range=case.init_std,
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    train_rows, held_out = load()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=case.steps,
                per_device_train_batch_size=8 if case.width < 256 else 4,
                per_device_eval_batch_size=64,
                learning_rate=case.lr,
                lr_scheduler_type=case.schedule,
                warmup_steps=case.warmup_steps,
                optim="adafactor" if case.optimizer == "adafactor" else "adamw_torch",
                weight_decay=0.1 if case.optimizer == "adamw" else 0.0,
                eval_strategy="steps",
                eval_steps=EVAL_STEPS,
                logging_steps=EVAL_STEPS,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
                seed=case.seed,
            ),
            train_dataset=train_rows,
            eval_dataset=held_out.select(range(EVAL_ROWS)),
            data_collator=default_data_collator,
            optimizers=optimizers(model, case),
        )
        if attached:
            oven.attach(trainer, link=link)
        trainer.train()
        final = trainer.evaluate(held_out.select(range(EVAL_ROWS, EVAL_ROWS + FINAL_ROWS)))
    return Result(float(final["eval_loss"]), "held-out loss, nats per byte", "down")


if __name__ == "__main__":
    command_line(__doc__, train, Case(warmup=0.05))
