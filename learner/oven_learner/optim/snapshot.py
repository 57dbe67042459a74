"""Copies and restores the trained weights, optimizer and scheduler, but not actuators or random state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from oven_learner.optim.lr_scale import LearningRateScale

LIMIT_BYTES = 512 * 1024 * 1024
"""Maximum size of all snapshots together. Larger models have no snapshots in memory."""


def size(model: torch.nn.Module) -> int:
    """Return the bytes of the trained weights and two Adam moments; of this rank's shard if the model is sharded."""
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def sharded(model: torch.nn.Module) -> str:
    """Return what shards the model, in words; empty if nothing does."""
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return "FSDP2 shards it"
    wrappers = {type(module).__name__ for module in model.modules()}
    return next(
        (f"{name} shards it" for name in ("FullyShardedDataParallel", "DeepSpeedEngine") if name in wrappers), ""
    )


def best_fits(model: torch.nn.Module, snapshots: int) -> bool:
    """Whether the best weights, and at the end also the last ones, fit into memory next to the snapshots for rollback.

    If the model is too large for those snapshots, the two copies may use the whole limit.
    """
    for_rollback = snapshots * size(model)
    return (for_rollback if for_rollback <= LIMIT_BYTES else 0) + 2 * size(model) // 3 <= LIMIT_BYTES


class WeightCopies:
    """Copies of the trained weights only, in CPU memory."""

    def __init__(self, model: torch.nn.Module, on_restore: Callable[[], object] = lambda: None) -> None:
        self._model, self._on_restore = model, on_restore

    def take(self) -> dict[str, Any]:
        return {
            name: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            for name, value in trained_state(self._model).items()
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state, strict=False)
        self._on_restore()


class LoopSnapshot:
    """Copies of a loop's model, optimizer and scheduler."""

    def __init__(
        self,
        model: torch.nn.Module,
        scale: LearningRateScale,
        scheduler: Any,
        on_restore: Callable[[], object] = lambda: None,
    ) -> None:
        self._model, self._scale, self._on_restore = model, scale, on_restore
        self._scheduler = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it

    def take(self) -> dict[str, Any]:
        """Copy the state. It waits for the device before and after, so that a clock can measure the cost."""
        self._wait()
        state = {
            "model": copied(trained_state(self._model)),
            "optimizer": copied(self._scale.optimizer.state_dict()),
            "scheduler": copy.deepcopy(self._scheduler.state_dict()) if self._scheduler is not None else None,
        }
        self._wait()
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Restore a copy with its learning rates. The caller sets the actuators again."""
        self._model.load_state_dict(state["model"], strict=False)
        self._scale.optimizer.load_state_dict(copied(state["optimizer"]))
        if self._scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))
        self._on_restore()

    def _wait(self) -> None:
        if torch.cuda.is_available() and any(parameter.is_cuda for parameter in self._model.parameters()):
            torch.cuda.synchronize()


def trained_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return the state without frozen parameters, such as the base model of a PEFT adapter, and without their
    quantization state."""
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    state = model.state_dict()
    if not frozen:
        return state
    frozen_keys = {key for key in state if any(key == name or key.startswith(name + ".") for name in frozen)}
    return {key: value for key, value in state.items() if key not in frozen_keys}


def copied(tree: Any) -> Any:
    """Copy the tensors of a nested state. Other values stay the same objects."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), tree)
