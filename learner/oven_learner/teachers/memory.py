"""How many bytes a teacher holds, and the cheapest way to keep one that still fits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch
from torch import Tensor, nn

Form = Literal["resident", "8 bits", "4 bits", "offload"]
"""How a teacher is kept, from the fastest to the cheapest."""

SHARE_OF_FREE = 0.5
"""Of the memory that is free when a teacher is admitted, what it may take: activations, and optimizer states that are
made in the first step, need the rest."""
BYTES_PER_WEIGHT = {"8 bits": 1.0, "4 bits": 0.53}
"""Of a quantized linear layer, its scales included: NF4 has one in 8 bits for 64 weights."""


def tensors(model: nn.Module, *, buffers: bool = True) -> Iterator[Tensor]:
    """Parameters, buffers, and what a quantized layer keeps beside its weight."""
    for parameter in model.parameters():
        yield parameter.data
        yield from _beside(parameter)
    if buffers:
        yield from model.buffers()
    for module in model.modules():
        if (state := getattr(module, "state", None)) is not None and not isinstance(state, nn.Module):
            yield from _beside(state)  # LLM.int8 moves its scales there in the first pass


def own_bytes(model: nn.Module, *, buffers: bool = True) -> int:
    """Bytes that the model holds in memory: shared storages once, and what is offloaded not at all."""
    held: dict[tuple[torch.device, int], int] = {}
    for tensor in tensors(model, buffers=buffers):
        if tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            held[tensor.device, storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def _beside(owner: Any) -> Iterator[Tensor]:
    """Tensors among the attributes of bitsandbytes' parameters and states."""
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, Tensor):
            yield value
        elif name in ("quant_state", "state2"):
            yield from _beside(value)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Sizes of a model before it is loaded."""

    total: int
    """Bytes of its parameters as they are stored."""
    linear: int
    """Of these, bytes of the weights that can be quantized."""
    weights: int
    """Number of those weights."""

    def bytes_as(self, form: Form) -> int:
        """What it will hold in that form, about."""
        if form == "resident":
            return self.total
        return 0 if form == "offload" else int(self.total - self.linear + BYTES_PER_WEIGHT[form] * self.weights)


def cheapest_needed(footprint: Footprint, room: int, *, quantizable: bool) -> Form:
    """The first of resident, 8 bits, 4 bits and offload whose bytes lie within `room`. `quantizable`: bitsandbytes is
    there."""
    forms: tuple[Form, ...] = ("resident", "8 bits", "4 bits") if quantizable else ("resident",)
    return next((form for form in forms if footprint.bytes_as(form) <= room), "offload")


def free_bytes(device: torch.device) -> int:
    """Memory of the device that nothing has taken."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def return_freed() -> None:
    """Give back to the system what the process has freed: glibc keeps the weights that a quantized or offloaded model
    no longer has. Elsewhere it does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
