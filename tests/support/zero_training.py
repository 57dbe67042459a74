"""Gauges of a model that DeepSpeed's ZeRO shards on CPU, compared with those of the same model that is not sharded.

`torchrun --nproc-per-node 2 -m tests.support.zero_training FOLDER STEPS` writes the maximum relative error of each gauge
by stage and shape to FOLDER/errors-RANK.json. It needs DeepSpeed, with DS_ACCELERATOR=cpu in the environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed  # type: ignore[import-not-found, unused-ignore]
import torch
from tests.support.ranks_sharded import SHAPES, Shape, Training
from torch import distributed

from oven_learner.optim.zero_gauges import ZeroGauges, describe_obstacle

STAGES = (1, 2, 3)
SHAPE_NAMES = ("uneven", "llama", "frozen")


class ZeroTraining(Training):
    """The training of a shape with DeepSpeed, whose engine steps by itself."""

    def __init__(self, shape: Shape, stage: int) -> None:
        super().__init__(shape)
        zero: dict[str, Any] = {"stage": stage}
        if stage == 3:  # several sub-groups, and parameters that stay whole
            zero |= {"sub_group_size": 40, "stage3_param_persistence_threshold": 4}
        config = {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": shape.micro_batches,
            "gradient_clipping": shape.clip or 0.0, "zero_optimization": zero, "zero_allow_untested_optimizer": True,
        }  # fmt: skip
        self.model, optimizer, *_ = deepspeed.initialize(model=self.model, optimizer=self.optimizer, config=config)
        assert not describe_obstacle(optimizer)
        self.zero = ZeroGauges(optimizer, self.model)

    def step(self, data: torch.Generator) -> dict[str, float]:
        for _ in range(self.shape.micro_batches):
            self.model.backward(self._loss(data))
            self.model.step()
        return {name: float(number) for name, number in self.zero.after_step().items()}


def largest_errors(shape: Shape, stage: int, steps: int) -> dict[str, float]:
    """Return the maximum relative error of each gauge. A gauge that only one of the two has is an infinite error."""
    readings: list[list[dict[str, float]]] = []
    for training in (Training(shape), ZeroTraining(shape, stage)):
        data = torch.Generator().manual_seed(7)
        readings.append([training.step(data) for _ in range(steps)])
    errors: dict[str, float] = {}
    for row, zero_row in zip(*readings, strict=True):
        for name in ("optim/grad_momentum_cos", "optim/weight_norm", "optim/update_ratio"):
            value, zero_value = row.get(name, torch.nan), zero_row.get(name, torch.nan)
            if value == value or zero_value == zero_value:
                error = abs(zero_value - value) / abs(value)
                errors[name] = max(errors.get(name, 0.0), error if error == error else torch.inf)
    return errors


def main(folder: Path, steps: int) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes
    deepspeed.init_distributed(dist_backend="gloo")
    torch.set_num_threads(1)
    errors = {
        f"stage {stage}, {name}": largest_errors(SHAPES[name], stage, steps)
        for stage in STAGES
        for name in SHAPE_NAMES
    }  # fmt: skip
    (folder / f"errors-{distributed.get_rank()}.json").write_text(json.dumps(errors))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
