"""Trains the recipe `grpo` on several ranks under FSDP2: what torchrun starts for the drill of `bench sharded`.

accelerate shards on accelerators only. Torch can do it on a CPU too, so the trainer is told that this one is sharded.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from accelerate import DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import TrainerCallback

from oven_learner import ranks
from oven_recipes.grpo.settings import GrpoSettings, parse_start
from oven_recipes.grpo.training_job import build


def main(start: str, seed: str, steps: str, cache: str, folder: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    whole = GrpoSettings(max_steps=int(steps))
    # A rank trains on its part of the prompts, and accelerate does not know the number of ranks before the trainer.
    settings = whole.model_copy(
        update={"prompts_per_step": whole.prompts_per_step // int(os.environ.get("WORLD_SIZE", "1"))}
    )
    output = Path(folder) / "checkpoints"
    job = build(settings, parse_start(start, int(seed), settings), int(seed), output, Path(cache))
    if ranks.world_size() > 1:
        state = job.trainer.accelerator.state
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
        job.trainer.is_fsdp_enabled = True
    rates = Rates()
    job.trainer.add_callback(rates)
    job.attach(recipe="grpo")
    job.trainer.train()
    (Path(folder) / f"rates-{ranks.rank()}.json").write_text(json.dumps(rates.values))


class Rates(TrainerCallback):
    """Notes the learning rate and the clip of this rank before each step."""

    def __init__(self) -> None:
        self.values: list[tuple[float, float]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.values.append((kwargs["optimizer"].param_groups[0]["lr"], args.max_grad_norm))


if __name__ == "__main__":
    main(*sys.argv[1:])
