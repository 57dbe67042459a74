"""What channels keep beside the model, in the trainer's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from oven_core.errors import ConfigError

FILE = "channels.pt"
"""In a checkpoint: the state of each channel that has a module."""


def save(trainer: Any, folder: str) -> None:
    """Beside the optimizer's state, from the rank that saves."""
    kept = {one.name: one.module.state_dict() for one in trainer.channels if one.module is not None}
    if kept and trainer.args.should_save:
        torch.save(kept, os.path.join(folder, FILE))


def read(trainer: Any, checkpoint: str | None) -> dict[str, Any]:
    """What the checkpoint has of them; empty without a checkpoint. Raises ConfigError for one of other channels."""
    if checkpoint is None:
        return {}
    wanted = [one.name for one in trainer.channels if one.module is not None]
    file = Path(checkpoint, FILE)
    kept: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
    if kept.keys() != set(wanted):
        raise ConfigError(
            f"{checkpoint} has the weights that {_named(kept)} kept beside the model, and here it is "
            f"{_named(wanted)}; resume with the channels that it was saved with"
        )
    return kept


def load(trainer: Any, kept: dict[str, Any]) -> None:
    """Puts back what `read` returned. Raises ConfigError where it does not fit."""
    for channel in trainer.channels:
        if channel.name not in kept:
            continue
        try:
            channel.module.load_state_dict(kept[channel.name])
        except RuntimeError as error:
            raise ConfigError(
                f"the checkpoint's channel.{channel.name} does not fit: {error}; resume with the model and the pairs "
                "that it was saved with"
            ) from None


def _named(channels: Iterable[str]) -> str:
    return ", ".join(f"channel.{name}" for name in channels) or "no channels"
