"""A teacher's model and tokenizer from its config."""

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
    """The model in the dtype of its weights' file, on the CPU; a quantized one is quantized while it is read, on
    `device`. A model that was given is returned as it is.

    `beside_training`: another thread trains meanwhile. transformers makes a model's dtype the process's default while
    it is built, and a step would compute in it; so it is read in the present default, and takes that memory for a
    moment.

    Raises TeacherRefusedError for one that cannot be loaded, and ConfigError for a diffusion teacher: that has no
    tokens to score.
    """
    if config.kind == "diffusion":
        raise ConfigError(
            f"teacher {config.name!r} is a diffusion model, and this trainer's policy writes tokens; give a causal "
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
    """Its tokenizer: the one given, or what is in the folder; None where nothing says. Raises TeacherRefusedError."""
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
            f"its tokenizer cannot be loaded from {str(source)!r}: {reason(error)}; give one as `tokenizer`"
        ) from error


def expected_footprint(config: TeacherConfig) -> Footprint:
    """Sizes of the model, without loading it. Raises TeacherRefusedError."""
    if config.model is not None:
        return quantization.footprint(config.model)
    from transformers import AutoModelForCausalLM

    described = _described(config)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config
        # The present default dtype, as in `load_model`; on the meta device the other one costs nothing.
        empty = made(described, dtype=torch.get_default_dtype())  # type: ignore[no-untyped-call]
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
        return TeacherRefusedError(f"there is no folder {name!r}; give the folder that `save_pretrained` wrote")
    return TeacherRefusedError(
        f"it cannot be loaded from {name!r}: {reason(error)[:300]}; give a folder that `save_pretrained` wrote"
    )
