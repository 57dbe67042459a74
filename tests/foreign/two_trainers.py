"""Supervised fine-tuning and then GRPO on the same model, one trainer after the other in one process: the pipeline of a
script that does both. The second stage's rate is a third of the first one's.
`oven-controller run -- python tests/foreign/two_trainers.py --steps 240`"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made here

import random
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from transformers import PrinterCallback, set_seed
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

import oven_learner as oven
from oven_bench.foreign.case import Case, Result, command_line
from oven_learner.link.link_interface import Link

if TYPE_CHECKING:
    from tests.foreign.grpo_evaluated import new_model, reinforce, texts, tokenizer
else:
    from grpo_evaluated import new_model, reinforce, texts, tokenizer  # beside this script

SECOND_RATE = 1 / 3
"""The second stage's, as a share of the first one's."""
EVAL_STEPS, EVAL_ROWS, TRAIN_ROWS, BATCH = 20, 64, 2048, 32

disable_progress_bar()


def supervise(model: Any, case: Case, folder: str, link: Link | None, attached: bool) -> None:
    generator = random.Random(f"texts {case.seed}")
    rows = [{"text": text} for text in texts(TRAIN_ROWS + EVAL_ROWS, generator)]
    own: dict[str, Any] = {}
    if case.optimizer == "sgd":  # SFTConfig offers no SGD with momentum
        own = {"optimizers": (torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9), None)}
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer(),
        args=SFTConfig(
            output_dir=folder,
            max_steps=case.steps,
            max_length=16,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=EVAL_ROWS,
            learning_rate=case.lr,
            lr_scheduler_type=case.schedule,
            warmup_steps=case.warmup_steps,
            optim="adafactor" if case.optimizer == "adafactor" else "adamw_torch",
            eval_strategy="steps",
            eval_steps=EVAL_STEPS,
            logging_steps=EVAL_STEPS,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            seed=case.seed,
        ),
        train_dataset=Dataset.from_list(rows[EVAL_ROWS:]),
        eval_dataset=Dataset.from_list(rows[:EVAL_ROWS]),
        **own,
    )
    trainer.remove_callback(PrinterCallback)
    if attached:
        oven.attach(trainer, link=link)
    trainer.train()


def train(case: Case, link: Link | None = None, *, attached: bool = True) -> Result:
    """Each stage gets half of the steps; the result is the second one's."""
    set_seed(case.seed)
    model = new_model(case)
    first = replace(case, steps=case.steps // 2)
    second = replace(case, steps=case.steps - first.steps, lr=SECOND_RATE * case.lr)
    with tempfile.TemporaryDirectory() as folder:
        supervise(model, first, folder, link, attached)
        return reinforce(model, second, folder, link, attached)


if __name__ == "__main__":
    command_line(__doc__, train, Case(steps=240, schedule="linear", warmup=0.05, lr=3e-3))
