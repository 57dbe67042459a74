"""Loads the user's model and oracle adapter from folders or the Hugging Face hub, and creates new adapters. Errors are
reported in one line with a remedy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils import load_peft_weights
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from oven_core.errors import ConfigError

ALPHA_PER_RANK = 2
"""LoRA's α divided by its rank, as for Activation Oracles (128 / 64)."""
LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, SafetensorError, ImportError)
"""Errors that transformers, peft and safetensors raise for a missing, damaged or unsuitable model."""


def load_model(name: str, dtype: str) -> tuple[PreTrainedModel, Any]:
    """Return the model and its tokenizer, which pads on the left. `name` is a folder or a hub id. With `dtype` "auto",
    the stored type is used. Raises ConfigError if the model or its tokenizer cannot be loaded."""
    try:
        config = AutoConfig.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
        model: Any = AutoModelForCausalLM.from_pretrained(name, config=config, dtype=dtype)
    except LOADING_ERRORS as error:
        raise ConfigError(_loading_problem("model", name, error)) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    if torch.cuda.is_available():
        model = model.cuda()
    return model, tokenizer


def fresh_adapter(model: PreTrainedModel, rank: int) -> Any:
    """Return `model` with a new LoRA adapter, `default`, on all linear layers except the head (Hu et al. 2021, arXiv
    2106.09685). It has no effect before training."""
    config = LoraConfig(
        r=rank, lora_alpha=ALPHA_PER_RANK * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return _with_adapter(model, config)


def load_adapter(model: PreTrainedModel, model_name: str, path: str) -> Any:
    """Return `model` with the adapter at `path`, ready for training. Raises ConfigError if the adapter does not fit."""
    try:
        config = PeftConfig.from_pretrained(path)
        weights = load_peft_weights(path, device="cpu")
    except LOADING_ERRORS as error:
        raise ConfigError(_loading_problem("adapter", path, error)) from error
    base_model = str(config.base_model_name_or_path or "an unnamed model")
    remedy = f"it was trained for {base_model}: set that model with --model, or use an adapter of {model_name}"
    if _is_hub_id(base_model) and _is_hub_id(model_name) and base_model.lower() != model_name.lower():
        raise ConfigError(f"adapter {path} does not belong to {model_name}; {remedy}")
    config.inference_mode, config.base_model_name_or_path = False, None  # peft fills in the name of `model`
    try:
        policy = _with_adapter(model, config)
    except LOADING_ERRORS as error:
        raise ConfigError(f"adapter {path} does not fit {model_name} ({_first_line(error)}); {remedy}") from error
    expected = {name: tuple(weight.shape) for name, weight in get_peft_model_state_dict(policy).items()}
    actual = {name: tuple(weight.shape) for name, weight in weights.items()}
    if actual != expected:
        name = min(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
        raise ConfigError(
            f"adapter {path} does not fit {model_name}: the shape of {name} is {actual.get(name, 'missing')}, but the "
            f"model requires {expected.get(name, 'no such weight')}; {remedy}"
        )
    if invalid_names := [name for name, weight in weights.items() if not bool(torch.isfinite(weight).all())]:
        raise ConfigError(f"adapter {path}: {invalid_names[0]} has NaN or infinite weights; use another checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_peft_model_state_dict(policy, weights)
    return policy


def _with_adapter(model: PreTrainedModel, config: PeftConfig) -> Any:
    with warnings.catch_warnings():
        # GPT-2 stores its matrices transposed. peft detects that, warns about each layer, and handles it correctly.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False", category=UserWarning)
        return get_peft_model(model, config)


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).is_dir()


def _loading_problem(kind: str, name: str, error: BaseException) -> str:
    problem = _first_line(error)
    if _is_hub_id(name):
        return (
            f"{kind} {name} is neither a folder nor in the hub's cache, and could not be downloaded ({problem}); run "
            f"`hf download {name}` with a connection, and use the folder that it prints"
        )
    return f"cannot load {kind} {name} ({problem}); use a folder that save_pretrained wrote, or a hub id"


def _first_line(error: BaseException) -> str:
    """Return the error's type and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
