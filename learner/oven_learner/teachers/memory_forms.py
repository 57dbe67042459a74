"""The forms of a teacher in memory: their sizes, the choice of the fastest form that fits, and quantization.

Linear layers are quantized with bitsandbytes, on GPUs and CPUs, to 8 bits (LLM.int8, Dettmers et al. 2022, arXiv
2208.07339) or to 4 (NF4 with double quantization, Dettmers et al. 2023, arXiv 2305.14314). Embeddings, norms and the
output head are not quantized. TRL's fused log-probabilities read the head's weight directly, so it must be dense.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch
from torch import Tensor, nn

from oven_core.errors import ConfigError, TeacherRefusedError
from oven_learner.teachers.teacher_config import Bits

Form = Literal["resident", "8 bits", "4 bits", "offload"]
"""Forms of a teacher in memory, from the fastest to the smallest."""
MAX_FREE_SHARE = 0.5
"""Maximum share of free memory for a new teacher. The first step's activations and optimizer states need the rest."""
BITS: dict[Form, Bits] = {"8 bits": 8, "4 bits": 4}
"""Number of bits of each quantized form."""
BYTES_PER_WEIGHT = {"8 bits": 1.0, "4 bits": 0.53}
"""Bytes per weight of a quantized linear layer, including scales. NF4 has one 8-bit scale per 64 weights."""


def all_tensors(model: nn.Module, *, buffers: bool = True) -> Iterator[Tensor]:
    """Yield the parameters, the buffers, and the extra tensors of quantized layers."""
    for parameter in model.parameters():
        yield parameter.data
        yield from _extra_tensors(parameter)
    if buffers:
        yield from model.buffers()
    for module in model.modules():
        state = getattr(module, "state", None)
        if state is not None and not isinstance(state, nn.Module):
            yield from _extra_tensors(state)  # LLM.int8 moves its scales to the state in the first forward pass


def memory_bytes(model: nn.Module, *, buffers: bool = True) -> int:
    """Return the model's bytes in memory. Shared storages count once, and offloaded tensors do not count."""
    storage_bytes: dict[tuple[torch.device, int], int] = {}
    for tensor in all_tensors(model, buffers=buffers):
        if tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            storage_bytes[tensor.device, storage.data_ptr()] = storage.nbytes()
    return sum(storage_bytes.values())


def _extra_tensors(owner: Any) -> Iterator[Tensor]:
    """Yield the tensors among the attributes of a parameter or state of bitsandbytes."""
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, Tensor):
            yield value
        elif name in ("quant_state", "state2"):
            yield from _extra_tensors(value)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sizes of a model, which are known before it is loaded."""

    total_bytes: int
    """Bytes of all parameters as stored."""
    quantizable_bytes: int
    quantizable_weights: int

    def bytes_as(self, form: Form) -> int:
        """Return the approximate bytes of the model in this form."""
        if form == "resident":
            return self.total_bytes
        if form == "offload":
            return 0
        return int(self.total_bytes - self.quantizable_bytes + BYTES_PER_WEIGHT[form] * self.quantizable_weights)


def fastest_fitting_form(footprint: Footprint, available_bytes: int, *, quantizable: bool) -> Form:
    """Return the first of resident, 8 bits, 4 bits and offload that fits in `available_bytes`. The quantized forms are
    only considered if `quantizable`."""
    forms: tuple[Form, ...] = ("resident", "8 bits", "4 bits") if quantizable else ("resident",)
    return next((form for form in forms if footprint.bytes_as(form) <= available_bytes), "offload")


def free_bytes(device: torch.device) -> int:
    """Return the free memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def release_freed_memory() -> None:
    """Return freed memory to the system, because glibc would keep the memory of weights that were quantized or
    offloaded. With other C libraries this does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def can_quantize() -> bool:
    """Whether bitsandbytes can be imported."""
    with contextlib.suppress(ConfigError):
        return bool(_import_bitsandbytes())
    return False


def bitsandbytes_config(bits: Bits, dtype: torch.dtype) -> Any:
    """Return transformers' BitsAndBytesConfig. Raises ConfigError if bitsandbytes is not installed."""
    _import_bitsandbytes()
    from transformers import BitsAndBytesConfig

    if bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)  # type: ignore[no-untyped-call]
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def quantize(model: Any, bits: Bits, device: torch.device) -> None:
    """Quantize a model in place, layer by layer, and move the quantized layers to `device`. Layers that are already
    quantized stay unchanged. Raises ConfigError if bitsandbytes is not installed, and TeacherRefusedError for a
    model without linear layers."""
    bnb = _import_bitsandbytes()
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.pytorch_utils import Conv1D

    dense = dict(linear_layers(model))
    if dense:
        replace_with_bnb_linear(model, _find_head_names(model), bitsandbytes_config(bits, model.dtype))
        parameter_type = bnb.nn.Int8Params if bits == 8 else bnb.nn.Params4bit
        for name in list(dense):  # `pop` lets each dense layer be freed before the next is quantized
            old, new = dense.pop(name), model.get_submodule(name)
            weight = old.weight.data.T if isinstance(old, Conv1D) else old.weight.data
            options = {key: value for key, value in vars(new.weight).items() if key not in ("data", "CB", "SCB")}
            new.weight = parameter_type(weight.cpu(), requires_grad=False, **options).to(device)
            new.bias = old.bias
            new.train(old.training)
    layers = [module for module in model.modules() if isinstance(module, bnb.nn.Linear8bitLt | bnb.nn.Linear4bit)]
    if not layers:
        raise TeacherRefusedError("it has no linear layer to quantize; use the strategy 'resident' or 'offload'")
    for layer in layers:
        # Otherwise bitsandbytes repacks weights in the first pass on some processors, for widths that are multiples of
        # 32, and then computes in bfloat16.
        layer.support_avx512bf16_for_cpu = False


def linear_layers(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield the quantizable layers and their names. These are all linear layers except the output head."""
    from transformers.pytorch_utils import Conv1D

    heads = set(_find_head_names(model))
    for name, module in model.named_modules():
        if (type(module) is nn.Linear or isinstance(module, Conv1D)) and name not in heads:
            yield name, module


def footprint(model: nn.Module) -> Footprint:
    """Return the sizes of a model, which may be on the meta device."""
    weights = [module.weight for _, module in linear_layers(model) if isinstance(module.weight, torch.Tensor)]
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    linear = sum(weight.numel() * weight.element_size() for weight in weights)
    return Footprint(total, linear, sum(weight.numel() for weight in weights))


def _find_head_names(model: Any) -> list[str]:
    """Return the names of the output head, or [] for a model without a vocabulary."""
    if not hasattr(model, "get_output_embeddings"):
        return []
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if module is head]


def _import_bitsandbytes() -> Any:
    """Import and return bitsandbytes. Raises ConfigError if it is not installed."""
    # It would warn about each float32 batch that it casts, and about a missing faster kernel.
    for name in ("bitsandbytes.autograd._functions", "bitsandbytes.backends.cpu.ops"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigError(
            f"a quantized teacher needs the package bitsandbytes ({error}); install it with "
            '`pip install "oven-controller[quantized]"`, or use the strategy "resident" or "offload"'
        ) from error
