"""Load a teacher's model and tokenizer from its config."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from oven_core.errors import ConfigError, TeacherRefusedError, reason
from oven_learner.teachers import quantization
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Footprint, Form


def load_model(config: TeacherConfig, form: Form, device: torch.device, *, beside_training: bool = False) -> Any:
    """Load the model on the CPU, in the dtype of its file. A quantized one is quantized while loading, on `device`.

    A model in the config is returned unchanged. `beside_training` means that another thread is training. transformers
    sets the process's default dtype while it builds a model, which would affect a step. So the model is then read in
    the current default dtype, which needs that memory for a moment.

    Raises TeacherRefusedError if loading fails, and ConfigError for a diffusion teacher, which scores no tokens.
    """
    if config.kind == "diffusion":
        raise ConfigError(
            f"teacher {config.name!r} is a diffusion model, and this trainer's policy generates tokens; use a causal "
            "language model, kind 'small' or 'big'"
        )
    if config.model is not None:
        return config.model
    from transformers import AutoModelForCausalLM

    described = _described(config)
    stored, default = described.dtype or torch.float32, torch.get_default_dtype()
    options: dict[str, Any] = {"dtype": default if beside_training else "auto"}
    if form in ("8 bits", "4 bits"):
        options["quantization_config"] = quantization.settings(8 if form == "8 bits" else 4, stored)
        options["device_map"] = {"": device}
    try:
        model = AutoModelForCausalLM.from_pretrained(str(config.model_name), **options)
    except Exception as error:
        raise _unloaded(config, error) from error
    if beside_training and stored != default:
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(stored)
        model.config.dtype = stored
    return model


def load_tokenizer(config: TeacherConfig) -> Any:
    """Return the config's tokenizer, or the one in the model's folder, or None. Raises TeacherRefusedError."""
    if config.tokenizer is not None and not isinstance(config.tokenizer, str | os.PathLike):
        return config.tokenizer
    source = config.tokenizer or config.model_name
    if source is None:
        return None
    from transformers import AutoTokenizer

    folder = Path(source)
    if config.tokenizer is None and folder.is_dir() and not any(folder.glob("tokenizer*")):
        return None
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise TeacherRefusedError(
            f"its tokenizer cannot be loaded from {str(source)!r}: {reason(error)}; pass one as `tokenizer`"
        ) from error


def expected_footprint(config: TeacherConfig) -> Footprint:
    """Return the model's sizes without loading it. Raises TeacherRefusedError."""
    if config.model is not None:
        return quantization.footprint(config.model)
    from transformers import AutoModelForCausalLM

    described = _described(config)
    with torch.device("meta"):
        from_config = AutoModelForCausalLM.from_config
        # The current default dtype, as in `load_model`; on the meta device memory does not matter.
        empty = from_config(described, dtype=torch.get_default_dtype())  # type: ignore[no-untyped-call]
    return quantization.footprint(empty.to(described.dtype or torch.float32))


def _described(config: TeacherConfig) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(config.model_name))
    except Exception as error:
        raise _unloaded(config, error) from error


def _unloaded(config: TeacherConfig, error: Exception) -> TeacherRefusedError:
    name = str(config.model_name)
    if not Path(name).is_dir() and (os.sep in name.strip(".") and (name.startswith((os.sep, ".", "~")))):
        return TeacherRefusedError(f"there is no folder {name!r}; use a folder written by `save_pretrained`")
    return TeacherRefusedError(
        f"it cannot be loaded from {name!r}: {reason(error)[:300]}; use a folder written by `save_pretrained`"
    )
