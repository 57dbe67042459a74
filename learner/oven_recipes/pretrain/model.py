"""The model: a Llama small enough for one CPU core, or what a Hugging Face configuration says, its weights drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from oven_core.errors import ConfigError, reason
from oven_recipes.pretrain.settings import PretrainSettings


def build_model(settings: PretrainSettings, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Freshly initialised, in float32; torch's global generator decides its weights. Raises ConfigError for sizes, or a
    configuration, that make no language model over the corpus's rows."""
    config: PreTrainedConfig
    if settings.model is None:
        if settings.hidden % settings.heads or settings.hidden // settings.heads % 2:
            raise ConfigError(
                f"recipe_options.hidden = {settings.hidden} over heads = {settings.heads}: a head takes a whole, even "
                "number of them (rotary positions turn pairs)"
            )
        config = LlamaConfig(
            hidden_size=settings.hidden,
            intermediate_size=settings.ffn,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=settings.context,
            tie_word_embeddings=True,
        )
    else:
        config = _configured(settings.model)
        room = getattr(config, "max_position_embeddings", None)
        if room is not None and room < settings.context:
            raise ConfigError(
                f"{settings.model} has room for {room:,} positions, and a row has {settings.context:,} tokens: make "
                "recipe_options.context smaller"
            )
    # The corpus has a tokenizer of its own, whatever the configuration was made for.
    config.vocab_size = len(tokenizer)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, tokenizer.eos_token_id, tokenizer.pad_token_id
    config.use_cache = False
    try:
        made: Any = AutoModelForCausalLM
        model: PreTrainedModel = made.from_config(config, dtype=torch.float32)
    except Exception as error:
        raise ConfigError(f"{settings.model or 'the sizes'} make no causal language model: {reason(error)}") from error
    return model


def _configured(file: Path) -> PreTrainedConfig:
    try:
        values = json.loads(file.read_text())
        kind = values.pop("model_type")
        return AutoConfig.for_model(kind, **values)
    except Exception as error:  # whatever a configuration class says of what it is given
        raise ConfigError(
            f"{file} is not a configuration that transformers knows ({reason(error)}); give another one, "
            "or install the version that it was written for"
        ) from error
