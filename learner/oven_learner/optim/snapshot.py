"""Copies in memory of the trained weights, the optimizer and the scheduler, without knob values or random state. If the
model is sharded by FSDP2, each rank copies its own shards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from oven_learner.optim.lr_scale import LearningRateScale
from oven_learner.optim.sharding import local


def snapshot_bytes(model: torch.nn.Module) -> int:
    """Return the size of a snapshot: the trained weights and two Adam moments. Shards of other ranks do not count."""
    weights = [local(parameter) for parameter in model.parameters() if parameter.requires_grad]
    return 3 * sum(tensor.numel() * tensor.element_size() for tensor in weights)


class WeightCopies:
    """Takes and restores copies of the trained weights, in CPU memory."""

    def __init__(self, model: torch.nn.Module, on_restore: Callable[[], object] = lambda: None) -> None:
        self._model, self._on_restore = model, on_restore

    def take(self) -> Any:
        return copy_state(trained_state(self._model), torch.device("cpu"))

    @torch.no_grad()
    def restore(self, state: Any) -> None:
        self._model.load_state_dict(restored_state(state, trained_state(self._model)), strict=False)
        self._on_restore()


class LoopSnapshot:
    """Takes and restores copies of a training loop's model, optimizers and schedulers."""

    def __init__(
        self,
        model: torch.nn.Module,
        scales: Sequence[LearningRateScale],
        on_restore: Callable[[], object] = lambda: None,
        *,
        device: torch.device | None = None,
    ) -> None:
        """`device` is where the copies are stored. By default, each is on the device of its original."""
        self._model, self._on_restore, self._device = model, on_restore, device
        self._optimizers = [scale.optimizer for scale in scales]
        self._schedulers = [scale.scheduler for scale in scales if scale.scheduler is not None]

    def take(self) -> dict[str, Any]:
        """Return a copy of the state. Wait for the device before and after, so that the caller can time the copy."""
        self._wait()
        state = {
            "model": copy_state(trained_state(self._model), self._device),
            "optimizers": [copy_state(optimizer.state_dict(), self._device) for optimizer in self._optimizers],
            "schedulers": [copy.deepcopy(scheduler.state_dict()) for scheduler in self._schedulers],
        }
        self._wait()
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state that `take` returned, with its learning rates. The caller restores the knobs."""
        self._model.load_state_dict(restored_state(state["model"], trained_state(self._model)), strict=False)
        for optimizer, optimizer_state in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(restored_state(optimizer_state, optimizer.state_dict()))
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


@dataclass(frozen=True, slots=True)
class TensorCopy:
    """A copy of this rank's elements of a tensor."""

    values: torch.Tensor
    original_device: torch.device
    rebuild: Callable[[torch.Tensor], torch.Tensor]
    """Returns a tensor with these elements that is sharded like the original."""


def copy_state(tree: Any, device: torch.device | None = None) -> Any:
    """Return a nested state with copies of its tensors, on `device` or on their own devices. Other values are shared
    with the original."""

    def copy_tensor(tensor: torch.Tensor) -> TensorCopy:
        own = local(tensor)
        values = own.clone() if device is None else own.to(device, copy=True)
        return TensorCopy(values, own.device, _rebuild_like(tensor))

    return tree_map_only(torch.Tensor, copy_tensor, tree)


def restored_state(saved: Any, current: Any) -> Any:
    """Return the state that `copy_state` has copied, for `load_state_dict`. The copies overwrite tensors of the current
    state that have the same place and shape, so that a restore needs no additional memory."""
    if isinstance(saved, TensorCopy):
        if isinstance(current, torch.Tensor):
            target = local(current)
            if (target.shape, target.dtype) == (saved.values.shape, saved.values.dtype):
                target.copy_(saved.values)
                return current
        return saved.rebuild(saved.values.to(saved.original_device, copy=True))
    if isinstance(saved, dict):
        by_key = current if isinstance(current, dict) else {}
        return type(saved)((key, restored_state(value, by_key.get(key))) for key, value in saved.items())
    if isinstance(saved, list | tuple):
        is_alike = isinstance(current, list | tuple) and len(current) == len(saved)
        in_order = current if is_alike else [None] * len(saved)
        return type(saved)(restored_state(*values) for values in zip(saved, in_order, strict=True))
    return copy.deepcopy(saved)


def _rebuild_like(tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that makes this rank's elements a tensor that is sharded like this one."""
    if not isinstance(tensor, DTensor):
        return lambda values: values
    mesh, placements, shape, stride = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
    return lambda values: DTensor.from_local(values, mesh, placements, run_check=False, shape=shape, stride=stride)
