"""Measure how many bytes a teacher uses, and choose the fastest form that fits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch
from torch import Tensor, nn

Form = Literal["resident", "8 bits", "4 bits", "offload"]
"""How a teacher is kept, from the fastest to the smallest."""

SHARE_OF_FREE = 0.5
"""Share of the free memory that a new teacher may use. Activations and optimizer states of the first step need the
rest."""
BYTES_PER_WEIGHT = {"8 bits": 1.0, "4 bits": 0.53}
"""Bytes per weight of a quantized linear layer, including scales. NF4 has one 8-bit scale per 64 weights."""


def tensors(model: nn.Module, *, buffers: bool = True) -> Iterator[Tensor]:
    """Yield parameters, buffers, and the extra tensors of quantized layers."""
    for parameter in model.parameters():
        yield parameter.data
        yield from _extra_tensors(parameter)
    if buffers:
        yield from model.buffers()
    for module in model.modules():
        if (state := getattr(module, "state", None)) is not None and not isinstance(state, nn.Module):
            yield from _extra_tensors(state)  # LLM.int8 moves its scales here in the first pass


def own_bytes(model: nn.Module, *, buffers: bool = True) -> int:
    """Return the model's bytes in memory. Shared storages count once, offloaded tensors not at all."""
    held: dict[tuple[torch.device, int], int] = {}
    for tensor in tensors(model, buffers=buffers):
        if tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            held[tensor.device, storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def _extra_tensors(owner: Any) -> Iterator[Tensor]:
    """Yield tensors among the attributes of bitsandbytes' parameters and states."""
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, Tensor):
            yield value
        elif name in ("quant_state", "state2"):
            yield from _extra_tensors(value)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Sizes of a model before it is loaded."""

    total: int
    """Bytes of its parameters as stored."""
    linear: int
    """Bytes of the quantizable weights among them."""
    weights: int
    """Number of quantizable weights."""

    def bytes_as(self, form: Form) -> int:
        """Return the approximate bytes in that form."""
        if form == "resident":
            return self.total
        return 0 if form == "offload" else int(self.total - self.linear + BYTES_PER_WEIGHT[form] * self.weights)


def cheapest_needed(footprint: Footprint, room: int, *, quantizable: bool) -> Form:
    """Return the first of resident, 8 bits, 4 bits and offload that fits in `room` bytes. `quantizable`: bitsandbytes
    is available."""
    forms: tuple[Form, ...] = ("resident", "8 bits", "4 bits") if quantizable else ("resident",)
    return next((form for form in forms if footprint.bytes_as(form) <= room), "offload")


def free_bytes(device: torch.device) -> int:
    """Return the free memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def return_freed() -> None:
    """Return freed memory to the system. glibc otherwise keeps the weights of a quantized or offloaded model. A no-op
    elsewhere."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
