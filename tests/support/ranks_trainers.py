"""Trainers for the workers of ranks_job: one sharded on CPU, and what is noted of any."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from tests.support.attached import llama, tokens, trainer
from transformers import LlamaForCausalLM, Trainer, TrainerCallback

import oven_learner.hf.attach  # noqa: F401  # before the fork, once for all ranks


class Steps(Protocol):
    def step(self, number: int, *values: float) -> None: ...


class Noting(TrainerCallback):
    """Notes the step, rate, this rank's loss, gradient-norm limit and β before each optimizer step."""

    def __init__(self, notes: Steps, measured: list[float], trainer: Any = None) -> None:
        self._notes, self._measured, self._trainer = notes, measured, trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        rate = kw["optimizer"].param_groups[0]["lr"]
        betas = [self._trainer.beta] if hasattr(self._trainer, "beta") else []
        self._notes.step(state.global_step + 1, rate, self._measured[-1], args.max_grad_norm, *betas)


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
        # TRL makes further states, which copy this one's type from the PartialState.
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
        self.is_fsdp_enabled = True


def filled_llama() -> LlamaForCausalLM:
    """A model whose weights are the same on each rank and in each training."""
    model = llama()
    generator = torch.Generator().manual_seed(11)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02, generator=generator)
    return model


def sharded_trainer(folder: Path, steps: int) -> Trainer:
    return trainer(
        folder, cls=Sharded, model=filled_llama(), data=tokens(), max_steps=steps, lr_scheduler_type="constant",
        ddp_backend="gloo", max_grad_norm=0.5,
    )  # fmt: skip


def whole(trainer: Trainer) -> list[torch.Tensor]:
    """Return the weights, gathered on every rank."""
    state = trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict()
    return [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in state.values()]
