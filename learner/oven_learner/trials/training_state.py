"""Weights, optimizer, scheduler and gradient scaler, copied and put back bit for bit, in the memory that they have.

`state_dict` and `load_state_dict` of an optimizer will not do: loading casts its moments to the weights' type.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import torch
from torch.distributed.checkpoint.stateful import Stateful

from oven_learner.trials.copies import PlainValues, copied, put

COPIES = 2
"""States that a trial holds at once: where it began, and the control's end."""
SPARE = 0.9
"""The share of the free memory that they may take."""


class TrainingState:
    """Of one process. Gradients are not in it: a step boundary is where they are cleared."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        scheduler: Any = None,
        scaler: Any = None,
        *,
        beside: Sequence[torch.nn.Module] = (),
        stateful: Mapping[str, Stateful] | None = None,
    ) -> None:
        """`beside`: other models whose weights training moves, such as an average. `stateful`: the user's own objects
        with `state_dict` and `load_state_dict`."""
        self.model, self._beside = model, tuple(beside)
        self._optimizers = list(_with_inner(optimizer))
        self._scheduler = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it
        self._scaler, self._stateful = scaler, dict(stateful or {})

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler sets the rate, whose place is put back as well."""
        return self._scheduler is not None

    def take(self) -> dict[str, Any]:
        self._wait()
        return {
            "weights": [weight.detach().clone() for weight in self._weights()],
            "optimizers": [_taken(optimizer) for optimizer in self._optimizers],
            "scheduler": copy.deepcopy(self._scheduler.state_dict()) if self._scheduler is not None else None,
            "scaler": copied(self._scaler.state_dict()) if self._scaler is not None else None,
            "stateful": {name: copied(thing.state_dict()) for name, thing in self._stateful.items()},
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Raises ValueError where the model or the optimizer has other parts than then."""
        for weight, then in zip(self._weights(), state["weights"], strict=True):
            if weight.shape == then.shape:
                weight.copy_(then)
            else:
                weight.data = then.clone()  # a buffer that grows
        for optimizer, then in zip(self._optimizers, state["optimizers"], strict=True):
            _put_back(optimizer, then)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))
        if self._scaler is not None:
            self._scaler.load_state_dict(copied(state["scaler"]))
        for name, thing in self._stateful.items():
            thing.load_state_dict(copied(state["stateful"][name]))
        self._wait()

    def size(self) -> dict[torch.device, int]:
        """Bytes of one copy, by device. Before the first step: as if the optimizer kept two moments."""
        found: dict[torch.device, int] = {}
        moments = [value for one in self._optimizers for kept in one.state.values() for value in _tensors(kept)]
        weights = list(self._weights())
        expected = [] if moments else [p for p in self.model.parameters() if p.requires_grad] * 2
        for tensor in (*weights, *moments, *expected):
            found[tensor.device] = found.get(tensor.device, 0) + tensor.numel() * tensor.element_size()
        return found

    def does_not_fit(self) -> str:
        """Why the copies of a trial have no room beside the run, with the figures; empty where they have."""
        for device, one in self.size().items():
            free = _free(device)
            if COPIES * one > SPARE * free:
                return (
                    f"{COPIES} copies of what trains need {_in_words(COPIES * one)} on {device}, and of the "
                    f"{_in_words(free)} that are free {SPARE:.0%} may be taken; smaller batches or another device "
                    "make room"
                )
        return ""

    def _weights(self) -> Iterator[torch.Tensor]:
        """What training moves, in order: what trains, and every buffer, saved with the model or not."""
        yield from (parameter for parameter in self.model.parameters() if parameter.requires_grad)
        yield from self.model.buffers()
        for other in self._beside:
            yield from other.parameters()
            yield from other.buffers()

    def _wait(self) -> None:
        """What a copy costs can be measured by the clock."""
        for device in {weight.device for weight in self._weights() if weight.is_cuda}:
            torch.cuda.synchronize(device)


def _taken(optimizer: Any) -> dict[str, Any]:
    return {
        "state": {parameter: copied(dict(kept)) for parameter, kept in optimizer.state.items()},
        "groups": [{key: copied(value) for key, value in _settings(group)} for group in optimizer.param_groups],
        "own": _own(optimizer).take(),
    }


def _put_back(optimizer: Any, then: dict[str, Any]) -> None:
    for parameter in [parameter for parameter in optimizer.state if parameter not in then["state"]]:
        del optimizer.state[parameter]
    for parameter, kept in then["state"].items():
        now = optimizer.state[parameter]  # made anew where there is none
        for key in [key for key in now if key not in kept]:
            del now[key]
        for key, value in kept.items():
            now[key] = put(now.get(key), value)
    for group, settings in zip(optimizer.param_groups, then["groups"], strict=True):
        for key in [key for key, _ in _settings(group) if key not in settings]:
            del group[key]
        for key, value in settings.items():
            group[key] = put(group.get(key), value)
    _own(optimizer).restore(then["own"])


def _own(optimizer: Any) -> PlainValues:
    """Counters that it keeps beside its state; its containers are hooks and defaults."""
    return PlainValues(optimizer, containers=False)


def _settings(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in group.items() if key != "params"]


def _with_inner(optimizer: Any) -> Iterator[Any]:
    """Optimizers may hold others: accelerate's wrapper, SAM, Lookahead, one for each kind of weight."""
    inner = [value for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer)]
    for held in vars(optimizer).values():
        if isinstance(held, list | tuple):
            inner += [value for value in held if isinstance(value, torch.optim.Optimizer)]
    if not (inner and type(optimizer).__module__.startswith("accelerate.")):
        yield optimizer
    for one in inner:
        yield from _with_inner(one)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _free(device: torch.device) -> int:
    """Bytes; on a GPU with what torch holds and does not use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available)


def _in_words(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"
