"""An adapter from a folder, on the model that it was trained on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from oven_controller.errors import ConfigError


def with_adapter(model: Any, folder: Path | str) -> Any:
    """`model` with the adapter in `folder`, to be trained further: a PeftModel whose adapter is named `default`.

    Raises ConfigError for a folder without an adapter, and for an adapter of another model: one of another name where
    both are known, and one that has weights for modules which this model hasn't, or of other shapes, or lacks some. The
    model is then as it was.
    """
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    folder = Path(folder)
    if not (folder / "adapter_config.json").is_file():
        raise ConfigError(f"{folder}: no adapter_config.json; give the folder that an adapter was saved in")
    try:
        config = PeftConfig.from_pretrained(str(folder))
        weights = load_peft_weights(str(folder), device="cpu")
    except Exception as error:  # json, safetensors and PEFT raise what they like
        raise ConfigError(f"{folder}: the adapter cannot be read ({error}); save it again") from None
    base, config.base_model_name_or_path = config.base_model_name_or_path, model.name_or_path or None
    own, its = _name(model.name_or_path), _name(base)
    if own and its and own != its:
        raise ConfigError(_other(folder, base, f"this one is {own}; if they are the same, write its name there"))
    config.inference_mode = False
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:  # none of the modules that it names
        raise ConfigError(_other(folder, base, str(error).split(". ")[0])) from None
    wanted = {name: tuple(one.shape) for name, one in get_peft_model_state_dict(adapted).items()}
    given = {name: tuple(one.shape) for name, one in weights.items()}
    if wanted != given:
        adapted.unload()
        name = min(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        there = f"{given.get(name, 'nothing')} in the adapter, {wanted.get(name, 'nothing')} in the model"
        raise ConfigError(_other(folder, base, f"{name}: {there}"))
    set_peft_model_state_dict(adapted, weights)
    return adapted


def _name(path: str | None) -> str:
    """The model's own name, of a path, a hub's name or a folder in the hub's cache; in small letters."""
    parts = [part for part in re.split(r"[/\\]|--", path or "") if part]
    if "snapshots" in parts:
        parts = parts[: parts.index("snapshots")]
    return parts[-1].lower() if parts else ""


def _other(folder: Path, base: str | None, why: str) -> str:
    name = re.sub(r"[^ -~]", "?", base or "one without a name")
    return (
        f"{folder}: an adapter of another model, {name} in its adapter_config.json ({why}); load that model, or give "
        "an adapter that was trained on this one"
    )
