"""Quantize teachers to 8 or 4 bits with bitsandbytes: LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339) and NF4 with
double quantization (Dettmers et al. 2023, arXiv 2305.14314).

Linear layers are quantized, on GPUs and CPUs. Embeddings, norms and the output head are not. TRL's fused
log-probabilities read the head's weight directly, not through its `forward`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from oven_core.errors import ConfigError, TeacherRefusedError
from oven_learner.teachers.config import Bits
from oven_learner.teachers.memory import Footprint


def available() -> bool:
    """Whether bitsandbytes can be imported."""
    try:
        _bitsandbytes()
    except ConfigError:
        return False
    return True


def settings(bits: Bits, dtype: torch.dtype) -> Any:
    """Return transformers' BitsAndBytesConfig. Raises ConfigError if bitsandbytes is not installed."""
    _bitsandbytes()
    from transformers import BitsAndBytesConfig

    if bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)  # type: ignore[no-untyped-call]
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def quantize(model: Any, bits: Bits, device: torch.device) -> None:
    """Quantize a model in place, layer by layer, and move those layers to `device`. Already quantized layers stay.

    Raises ConfigError if bitsandbytes is not installed, and TeacherRefusedError if there is no linear layer.
    """
    bnb = _bitsandbytes()
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.pytorch_utils import Conv1D

    dense = dict(linear_layers(model))
    if dense:
        replace_with_bnb_linear(model, _heads(model), settings(bits, model.dtype))
        parameter_type = bnb.nn.Int8Params if bits == 8 else bnb.nn.Params4bit
        for name in list(dense):
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
        # bitsandbytes repacks weights in the first pass on some processors only, for widths that are multiples of 32,
        # and computes in bfloat16 from then on.
        layer.support_avx512bf16_for_cpu = False


def linear_layers(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield the quantizable layers by name: all linear layers but the output head."""
    from transformers.pytorch_utils import Conv1D

    heads = set(_heads(model))
    for name, module in model.named_modules():
        if (type(module) is nn.Linear or isinstance(module, Conv1D)) and name not in heads:
            yield name, module


def footprint(model: nn.Module) -> Footprint:
    """Return the sizes of a model, which may be on the meta device."""
    weights = [module.weight for _, module in linear_layers(model) if isinstance(module.weight, torch.Tensor)]
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    linear = sum(weight.numel() * weight.element_size() for weight in weights)
    return Footprint(total, linear, sum(weight.numel() for weight in weights))


def _heads(model: Any) -> list[str]:
    """Return the names of the output head; empty for a model without a vocabulary."""
    if not hasattr(model, "get_output_embeddings"):
        return []
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if module is head]


def _bitsandbytes() -> Any:
    # It warns about each float32 batch that it casts, and at each start about a missing faster kernel.
    for name in ("bitsandbytes.autograd._functions", "bitsandbytes.backends.cpu.ops"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigError(
            f"a quantized teacher needs the package bitsandbytes ({error}): "
            '`pip install "oven-controller[quantized]"`, or use the strategy "resident" or "offload"'
        ) from error
