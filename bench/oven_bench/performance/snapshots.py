"""`bench snapshots`: which share of training time do the copies for rollback take?

A real Trainer trains on random tokens, in its own process, at two sizes: one whose copies fit in memory, and one that
is too large and writes checkpoints to disk. `attach` itself measures the time of the copies. Training time is the wall
time from the first step to the end.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from oven_bench.study import Report, Study
from oven_bench.worker_processes import in_new_process

SIZES = {"memory": (192, 4), "disk": (512, 6)}
"""Kind → (hidden size, layers): about 2.7 and 22 million parameters."""


def measure(kind: str, seconds: float) -> dict[str, float]:
    """Train for so many seconds, and return the number and cost of the copies."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"OVEN_RUN_DIR": folder, "OVEN_RELAUNCH": "1", "OMP_WAIT_POLICY": "PASSIVE"})
        return _train(kind, seconds, Path(folder))


def _train(kind: str, seconds: float, folder: Path) -> dict[str, float]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from oven_learner.hf.attach import attach
    from oven_learner.link.link_interface import SilentLink
    from oven_learner.rollback.disk_checkpoints import DiskCheckpoints
    from oven_learner.rollback.memory_snapshots import Snapshots

    hidden, layers = SIZES[kind]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
            num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=64,
        )
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 2048, (512, 32))]  # each [T]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder / "out"), max_steps=1_000_000, per_device_train_batch_size=4, report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
        ),
        train_dataset=rows,
    )  # fmt: skip
    times: list[float] = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            times.append(time.monotonic())

    attachment = attach(trainer, link=SilentLink(), seconds=seconds)
    trainer.add_callback(Watch())
    trainer.train()
    back = attachment.rollback
    assert isinstance(back, DiskCheckpoints if kind == "disk" else Snapshots), f"{kind}: it is {type(back).__name__}"
    wall = time.monotonic() - times[0]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": len(times),
        "copies": back.budget.count,
        "spent_s": round(back.budget.spent_s, 4),
        "wall_s": round(wall, 2),
        "share": round(back.budget.spent_s / wall, 5),
    }


@click.option("--seconds", type=float, default=330.0, help="Seconds of training at each size.")
def bench(seconds: float) -> Report:
    from oven_learner.rollback.memory_snapshots import MAX_TIME_SHARE

    sizes = {kind: in_new_process(measure, kind, seconds) for kind in SIZES}
    figures: dict[str, Any] = {f"{kind}_{name}": value for kind, size in sizes.items() for name, value in size.items()}
    above = [f"{kind}: copies take {size['share']:.2%} of training time, above the limit of {MAX_TIME_SHARE:.0%}"
             for kind, size in sizes.items() if size["share"] > MAX_TIME_SHARE]  # fmt: skip
    return Report(figures | {"limit": MAX_TIME_SHARE}, failures=above)


STUDY = Study("snapshots", bench, "--seconds 60 --json", "Exit code 1: copies take more than the limit.")
