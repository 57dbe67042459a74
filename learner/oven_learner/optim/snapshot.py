"""What trains, its optimizer and its scheduler, copied and put back in place; no actuators, no random state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from oven_learner.optim.lr_scale import LearningRateScale

LIMIT_BYTES = 512 * 1024 * 1024
"""Of all snapshots together. A larger model has none in memory."""


def size(model: torch.nn.Module) -> int:
    """Bytes of what trains and two Adam moments of it; of this rank's part, where the model is sharded."""
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def sharded(model: torch.nn.Module) -> str:
    """What cuts the model into parts, in words; empty where it is whole."""
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return "FSDP2 shards it"
    wrappers = {type(module).__name__ for module in model.modules()}
    return next(
        (f"{name} shards it" for name in ("FullyShardedDataParallel", "DeepSpeedEngine") if name in wrappers), ""
    )


def best_fits(model: torch.nn.Module, snapshots: int) -> bool:
    """Whether the best weights, and at the end the last ones, have room beside so many snapshots for rollback. A model
    of which there are none, as it is too large for them, has the whole limit for these two."""
    beside = snapshots * size(model)
    return (beside if beside <= LIMIT_BYTES else 0) + 2 * size(model) // 3 <= LIMIT_BYTES


class WeightCopies:
    """Copies of the weights that train alone, in the CPU's memory, and the way back."""

    def __init__(self, model: torch.nn.Module, moved: Callable[[], object] = lambda: None) -> None:
        """`moved` is called when the weights were put back."""
        self._model, self._moved = model, moved

    def take(self) -> dict[str, Any]:
        return {
            name: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            for name, value in that_train(self._model).items()
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state, strict=False)
        self._moved()


class LoopSnapshot:
    """Copies of a loop's state, and the way back."""

    def __init__(
        self, model: torch.nn.Module, scale: LearningRateScale, scheduler: Any, moved: Callable[[], object]
    ) -> None:
        """`moved` is called when something else than the next step has changed the weights."""
        self._model, self._scale, self._moved = model, scale, moved
        self._scheduler = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it

    def take(self) -> dict[str, Any]:
        """Waits for the device before and after, so that what it costs can be measured by the clock."""
        self._wait()
        state = {
            "model": copied(that_train(self._model)),
            "optimizer": copied(self._scale.optimizer.state_dict()),
            "scheduler": copy.deepcopy(self._scheduler.state_dict()) if self._scheduler is not None else None,
        }
        self._wait()
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """With the rates of then: who goes back sets the actuators again."""
        self._model.load_state_dict(state["model"], strict=False)
        self._scale.optimizer.load_state_dict(copied(state["optimizer"]))
        if self._scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))
        self._moved()

    def _wait(self) -> None:
        if torch.cuda.is_available() and any(parameter.is_cuda for parameter in self._model.parameters()):
            torch.cuda.synchronize()


def that_train(model: torch.nn.Module) -> dict[str, Any]:
    """Without frozen parameters, such as all below a PEFT adapter, and what a quantized one keeps beside itself."""
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    state = model.state_dict()
    if not frozen:
        return state
    left_out = {key for key in state if any(key == name or key.startswith(name + ".") for name in frozen)}
    return {key: value for key, value in state.items() if key not in left_out}


def copied(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copied(value) for value in tree)
    return tree
