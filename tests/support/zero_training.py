"""Trainings that DeepSpeed's ZeRO shards on CPU, for `torchrun -m tests.support.zero_training MODE FOLDER`.

Each rank writes FOLDER/result-RANK.json. With `gauges`, it contains the maximum relative error of each gauge, compared
with the same model that is not sharded, by stage and shape. With `trainer`, it contains what a Trainer has done alone,
observed, and with decisions. DeepSpeed needs DS_ACCELERATOR=cpu in the environment.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import deepspeed
import torch
from accelerate.state import DistributedType, PartialState
from tests.support.attached import tokens, trainer
from tests.support.ranks_sharded import MIN_VALUE, SHAPES, Shape, Training
from tests.support.ranks_trainers import filled_llama
from torch import distributed
from transformers import TrainerCallback

import oven_learner as oven
from oven_core.protocol.messages import RunStarted
from oven_learner.optim.zero_gauges import ZeroGauges, describe_obstacle
from oven_learner.testing import FakeLink

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
        self.engine, optimizer, *_ = deepspeed.initialize(model=self.model, optimizer=self.optimizer, config=config)
        assert not describe_obstacle(optimizer)
        self.zero = ZeroGauges(optimizer, self.engine)
        self.model = self.engine

    def step(self, data: torch.Generator) -> dict[str, float]:
        for _ in range(self.shape.micro_batches):
            self.engine.backward(self._loss(data))
            self.engine.step()
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
                error = abs(zero_value - value) / max(abs(value), MIN_VALUE)
                errors[name] = max(errors.get(name, 0.0), error if error == error else torch.inf)
    return errors


def gauge_errors(steps: int) -> dict[str, dict[str, float]]:
    deepspeed.init_distributed(dist_backend="gloo")
    return {
        f"stage {stage}, {name}": largest_errors(SHAPES[name], stage, steps)
        for stage in STAGES
        for name in SHAPE_NAMES
    }  # fmt: skip


class Noting(TrainerCallback):
    """Notes the step, rate, clip and weight decay at the end of each step."""

    def __init__(self) -> None:
        self.settings: list[list[float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        zero = kw["optimizer"].optimizer
        group = zero.param_groups[0]
        self.settings.append([state.global_step, group["lr"], zero.clip_grad, group["weight_decay"]])


def train_with_trainer(folder: Path, stage: int) -> dict[str, Any]:
    """Train alone, then observed, then with decisions."""
    # accelerate counts ranks on accelerators only, so tell it that the CPU is one.
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)  # noqa: SLF001

    def train(steps: int, link: FakeLink | None) -> tuple[list[torch.Tensor], list[list[float]]]:
        zero = {"stage": stage} | ({"stage3_param_persistence_threshold": 20} if stage == 3 else {})
        auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        config = dict.fromkeys(auto, "auto") | {"zero_optimization": zero, "zero_allow_untested_optimizer": True}
        job = trainer(
            folder, model=filled_llama(), data=tokens(), max_steps=steps, lr_scheduler_type="constant",
            max_grad_norm=0.5, weight_decay=0.1, deepspeed=config, use_cpu=False,
        )  # fmt: skip
        noting = Noting()
        if link is not None:
            oven.attach(job, link=link)
        job.add_callback(noting)
        job.train()
        parameters = list(job.model.parameters())  # type: ignore[union-attr]
        with deepspeed.zero.GatheredParameters(parameters, enabled=stage == 3):
            return [parameter.detach().clone() for parameter in parameters], noting.settings

    alone, observed = train(4, None)[0], train(4, FakeLink())[0]
    link = FakeLink({2: ("optimizer.lr_scale", 0.5), 3: ("grad.clip", 0.25), 4: ("optimizer.weight_decay", 0.5)})
    _, settings = train(8, link)
    result: dict[str, Any] = {"same": all(map(torch.equal, alone, observed)), "settings": settings}
    if distributed.get_rank() == 0:
        started = next(message for message in link.sent if isinstance(message, RunStarted))
        metrics = link.observed()[-1].metrics
        result |= {
            "actuators": [spec.name for spec in started.actuators],
            "unmeasured": started.unmeasured,
            "receipts": {receipt.actuator: receipt.status for receipt in link.receipts()},
            "gauges": [name for name, value in metrics.items() if name.startswith("optim/") and math.isfinite(value)],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["gauges", "trainer"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiling it takes minutes
    torch.set_num_threads(1)
    is_gauges = options.mode == "gauges"
    result = gauge_errors(options.steps) if is_gauges else train_with_trainer(options.folder, options.stage)
    (options.folder / f"result-{distributed.get_rank()}.json").write_text(json.dumps(result))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
