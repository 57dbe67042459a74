"""Finds the body, the blocks and the size of a causal language model. Oracle prompts call a block's index its layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from oven_core.errors import ConfigError


def unwrap_model(model: Any) -> Any:
    """Return the transformers model inside wrappers: DistributedDataParallel, torch.compile, PEFT."""
    while True:
        if hasattr(model, "get_base_model"):
            return model.get_base_model()
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def model_body(model: Any) -> nn.Module:
    """Return the model without its language-model head. This part of the model is called with token ids."""
    module: nn.Module = unwrap_model(model).base_model
    return module


def decoder_blocks(model: Any) -> nn.ModuleList:
    """Return the decoder's blocks in order. Raises ConfigError for a model without recognisable blocks."""
    decoder, count = unwrap_model(model).get_decoder(), block_count(model)
    for module in decoder.children():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ConfigError(
        f"the {count} blocks of {type(unwrap_model(model)).__name__} were not found in {type(decoder).__name__}; use a "
        "decoder-only model from transformers (Llama, Qwen, Gemma, GPT-2, …)"
    )


def block_count(model: Any) -> int:
    """Return the number of blocks."""
    return int(unwrap_model(model).config.get_text_config().num_hidden_layers)


def hidden_size(model: Any) -> int:
    """Return the number of elements of a hidden state."""
    return int(unwrap_model(model).config.get_text_config().hidden_size)


def block_at(model: Any, index: int) -> nn.Module:
    """Return the block with this index, counted from 0. Raises ConfigError if the model has no such block."""
    last = block_count(model) - 1
    if not 0 <= index <= last:
        raise ConfigError(f"there is no block {index}; this model has blocks 0 to {last}; see layer_at(model, percent)")
    return decoder_blocks(model)[index]


def layer_at(model: Any, percent: float) -> int:
    """Return the index of the block at a depth of `percent`, rounded down. Raises ConfigError outside [0, 100)."""
    if not 0 <= percent < 100:
        raise ConfigError(f"a depth of {percent:g} % is invalid; expected at least 0 and less than 100")
    return int(block_count(model) * percent / 100)
