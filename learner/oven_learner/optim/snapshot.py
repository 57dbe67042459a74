"""Copies in memory of the trained weights, the optimizer and the scheduler, without knob values or random state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from oven_learner.optim.lr_scale import LearningRateScale

LIMIT_BYTES = 512 * 1024 * 1024
"""Maximum bytes of all snapshots together. If they need more, there are no snapshots in memory."""


def snapshot_bytes(model: torch.nn.Module) -> int:
    """Return the size of a snapshot: the trained weights and two Adam moments. Shards of other ranks do not count."""
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def describe_sharding(model: torch.nn.Module) -> str:
    """Describe how the model is sharded, for example "FSDP2 shards it". Return an empty string if it is not."""
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return "FSDP2 shards it"
    wrappers = {type(module).__name__ for module in model.modules()}
    for name in ("FullyShardedDataParallel", "DeepSpeedEngine"):
        if name in wrappers:
            return f"{name} shards it"
    return ""


def best_copies_fit(model: torch.nn.Module, snapshot_count: int) -> bool:
    """Whether copies of the best and the final weights fit into memory, in addition to the rollback snapshots. If the
    model is too large for rollback snapshots, the two copies may use the whole limit."""
    rollback_bytes = snapshot_count * snapshot_bytes(model)
    if rollback_bytes > LIMIT_BYTES:
        rollback_bytes = 0
    return rollback_bytes + 2 * snapshot_bytes(model) // 3 <= LIMIT_BYTES  # weights are a third of a snapshot


class WeightCopies:
    """Takes and restores copies of the trained weights, in CPU memory."""

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
    """Takes and restores copies of a training loop's model, optimizers and schedulers."""

    def __init__(
        self,
        model: torch.nn.Module,
        scales: Sequence[LearningRateScale],
        on_restore: Callable[[], object] = lambda: None,
    ) -> None:
        self._model, self._on_restore = model, on_restore
        self._optimizers = [scale.optimizer for scale in scales]
        self._schedulers = [scale.scheduler for scale in scales if scale.scheduler is not None]

    def take(self) -> dict[str, Any]:
        """Return a copy of the state. Wait for the device before and after, so that the caller can time the copy."""
        self._wait()
        state = {
            "model": copy_tensors(trained_state(self._model)),
            "optimizers": [copy_tensors(optimizer.state_dict()) for optimizer in self._optimizers],
            "schedulers": [copy.deepcopy(scheduler.state_dict()) for scheduler in self._schedulers],
        }
        self._wait()
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state that `take` returned, with its learning rates. The caller restores the knobs."""
        self._model.load_state_dict(state["model"], strict=False)
        for optimizer, optimizer_state in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(copy_tensors(optimizer_state))
        for scheduler, scheduler_state in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(scheduler_state))
        self._on_restore()

    def _wait(self) -> None:
        if torch.cuda.is_available() and any(parameter.is_cuda for parameter in self._model.parameters()):
            torch.cuda.synchronize()


def trained_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return the model's state without its frozen parameters (such as a PEFT base model) and their quantization."""
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    state = model.state_dict()
    if not frozen:
        return state
    frozen_keys = {key for key in state if any(key == name or key.startswith(name + ".") for name in frozen)}
    return {key: value for key, value in state.items() if key not in frozen_keys}


def copy_tensors(tree: Any) -> Any:
    """Return a nested state with copies of its tensors. Other values are shared with the original."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), tree)
