"""Save and load the state of channels in the trainer's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from oven_core.errors import ConfigError

FILE = "channels.pt"
"""File in a checkpoint with the state of each channel that has a module."""


def save(trainer: Any, folder: str) -> None:
    """Save the channels' state next to the optimizer's, on the rank that saves."""
    states = {channel.name: channel.module.state_dict() for channel in trainer.channels if channel.module is not None}
    if states and trainer.args.should_save:
        torch.save(states, os.path.join(folder, FILE))


def read(trainer: Any, checkpoint: str | None) -> dict[str, Any]:
    """Return the channels' state in the checkpoint, or {} without one. Raises ConfigError if the channels differ."""
    if checkpoint is None:
        return {}
    expected = [channel.name for channel in trainer.channels if channel.module is not None]
    file = Path(checkpoint, FILE)
    states: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
    if states.keys() != set(expected):
        raise ConfigError(
            f"{checkpoint} has the state of {_named(states)}, and this trainer has "
            f"{_named(expected)}; resume with the channels of the checkpoint"
        )
    return states


def load(trainer: Any, states: dict[str, Any]) -> None:
    """Restore the state that `read` returned. Raises ConfigError if it does not fit."""
    for channel in trainer.channels:
        if channel.name not in states:
            continue
        try:
            channel.module.load_state_dict(states[channel.name])
        except RuntimeError as error:
            raise ConfigError(
                f"the checkpoint's channel.{channel.name} does not fit: {error}; resume with the same model"
            ) from None


def _named(channels: Iterable[str]) -> str:
    return ", ".join(f"channel.{name}" for name in channels) or "no channels"
