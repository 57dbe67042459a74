"""Compares the results of two trainings bit for bit: logs, weights, optimizer, random generators, checkpoints."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

Leaves: TypeAlias = dict[str, Any]
"""Path → tensor, array, number, text or None, in the order in which they are compared."""

CLOCK: Final = ("runtime", "per_second", "step_time")
"""Endings of names of logged times, which are not compared."""
STATE: Final = (
    "global_step", "epoch", "max_steps", "num_train_epochs", "total_flos", "num_input_tokens_seen", "best_metric",
    "best_global_step",
)  # fmt: skip
"""Fields of the trainer's state that are compared."""
OTHER_MODELS: Final = ("ref_model", "teacher_model")
WEIGHTS: Final = ("model.safetensors", "adapter_model.safetensors")


def leaves(trainer: Any, folder: Path) -> Leaves:
    """The results of a trainer that has trained. Tensors are copied. `folder` is the trainer's output folder."""
    unwrap = trainer.accelerator.unwrap_model
    parts: dict[str, Any] = {
        "log": [
            {name: value for name, value in entry.items() if not name.endswith(CLOCK)}
            for entry in trainer.state.log_history
        ],
        "model": dict(unwrap(trainer.model).state_dict()),
    }
    for name in OTHER_MODELS:
        other_model = getattr(trainer, name, None)
        if isinstance(other_model, torch.nn.Module):
            parts[name] = dict(unwrap(other_model).state_dict())
    parts |= {
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
        "state": {name: getattr(trainer.state, name) for name in STATE},
        "random": {
            "python": repr(random.getstate()),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        },
        "checkpoints": checkpoints(folder),
    }
    return copied_leaves(parts)


def copied_leaves(parts: Mapping[str, Any]) -> Leaves:
    """All tensors and values in nested mappings and sequences, by path. Tensors are copied."""
    return dict(_flat(parts, ""))


def checkpoints(folder: Path) -> dict[str, dict[str, str]]:
    """Checkpoint → weight file → SHA-256, of all checkpoints that the trainer kept."""
    folders = sorted(path for path in folder.glob("checkpoint-*") if path.is_dir())
    return {
        path.name: {
            name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in WEIGHTS if (path / name).is_file()
        }
        for path in folders
    }


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """An empty mapping or sequence is a leaf, so that a missing one is found."""
    below = f"{path}/" if path else ""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{below}{name}")
    elif isinstance(value, list | tuple) and value:
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{below}{number}")
    elif isinstance(value, torch.Tensor):
        yield path, value.detach().clone()
    elif isinstance(value, np.ndarray):
        yield path, value.copy()
    else:
        yield path, value


@dataclass(frozen=True)
class Difference:
    """The first leaf in which two trainings differ."""

    path: str
    alone: str
    attached: str

    def __str__(self) -> str:
        return f"{self.path}: {self.alone} alone, {self.attached} attached"


def first_difference(alone: Leaves, attached: Leaves) -> Difference | None:
    """None if both have the same leaves with the same bits. A NaN equals itself; 0.0 and -0.0 differ."""
    for path in (*alone, *(path for path in attached if path not in alone)):
        if path not in alone or path not in attached:
            return Difference(path, *("present" if path in leaf else "absent" for leaf in (alone, attached)))
        if not _same_bits(alone[path], attached[path]):
            return Difference(path, *_shown(alone[path], attached[path]))
    return None


def _same_bits(first: Any, second: Any) -> bool:
    """Compare large tensors where they are, because copies of a card's memory take long."""
    if (
        isinstance(first, torch.Tensor)
        and isinstance(second, torch.Tensor)
        and first.layout is second.layout is torch.strided
        and (first.dtype, first.shape, first.device) == (second.dtype, second.shape, second.device)
    ):
        return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second)))
    return _bits(first) == _bits(second)


def _bits(value: Any) -> tuple[str, ...] | tuple[str, tuple[int, ...], bytes]:
    if isinstance(value, torch.Tensor):
        dense = value.to_dense() if value.layout is not torch.strided else value
        raw = dense.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), raw
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, float):
        return "float", (), struct.pack("d", value)
    return type(value).__name__, repr(value)


def _shown(alone: Any, attached: Any) -> tuple[str, str]:
    """Two leaves as text. Of tensors of one shape, the first entry that differs."""
    if isinstance(alone, torch.Tensor) and isinstance(attached, torch.Tensor):
        if (alone.shape, alone.dtype) != (attached.shape, attached.dtype):
            return f"{alone.dtype} {tuple(alone.shape)}", f"{attached.dtype} {tuple(attached.shape)}"
        first, second = (tensor.to_dense().cpu().flatten() for tensor in (alone, attached))
        differing_bytes = first.view(torch.uint8) != second.view(torch.uint8)
        entry = int(differing_bytes.nonzero()[0, 0]) // first.element_size()
        return f"{first[entry].item()!r} in entry {entry} of {first.numel()}", repr(second[entry].item())
    return repr(alone)[:80], repr(attached)[:80]
