"""Trainers for the workers of ranks_job: one sharded on CPU, and what is noted of any."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from tests.support.attached import llama, tokens, trainer
from transformers import Trainer, TrainerCallback

import oven_learner.hf.attach  # noqa: F401  # before the fork, once for all ranks


class Steps(Protocol):
    def step(self, number: int, *values: float) -> None: ...


class Noting(TrainerCallback):
    """Notes the step, rate, gradient-norm limit and this rank's loss before each optimizer step."""

    def __init__(self, notes: Steps, measured: list[float]) -> None:
        self._notes, self._measured = notes, measured

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        rate = kw["optimizer"].param_groups[0]["lr"]
        self._notes.step(state.global_step + 1, rate, self._measured[-1], args.max_grad_norm)


def losses(trainer: Trainer) -> list[float]:
    """Return this rank's loss of each step so far."""
    seen: list[float] = []
    step = trainer.training_step

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = step(*args, **kwargs)
        seen.append(float(loss))
        return loss

    trainer.training_step = noted  # type: ignore[method-assign]
    return seen


class Sharded(Trainer):
    """accelerate shards on accelerators only; torch can on CPU too, so tell it that this is one."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
        self.is_fsdp_enabled = True


def sharded_trainer(folder: Path, steps: int) -> Trainer:
    model = llama()
    generator = torch.Generator().manual_seed(11)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02, generator=generator)
    return trainer(
        folder, cls=Sharded, model=model, data=tokens(), max_steps=steps, lr_scheduler_type="constant",
        ddp_backend="gloo", max_grad_norm=0.5,
    )  # fmt: skip


def whole(trainer: Trainer) -> list[torch.Tensor]:
    """Return the weights, gathered on every rank."""
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in state.values()]
