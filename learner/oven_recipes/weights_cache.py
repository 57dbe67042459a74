"""A cache of weights, so that a second run starts at once. A damaged entry counts as missing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
WEIGHTS, DIGEST = "policy.safetensors", "sha256"


def key_of(decides: Mapping[str, Any]) -> str:
    """Return 16 hex digits that depend on everything that determines the weights."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def load_weights(folder: Path) -> dict[str, Tensor] | None:
    """Return the entry's weights by name; None if it is missing or damaged."""
    try:
        data = (folder / WEIGHTS).read_bytes()
        digest = (folder / DIGEST).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return load(data) if hashlib.sha256(data).hexdigest() == digest else None


def store_weights(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write an entry. Tied weights are copied, because the file format cannot express shared memory."""
    with new_entry(folder) as fresh:
        data = save({name: weight.clone(memory_format=torch.contiguous_format) for name, weight in weights.items()})
        (fresh / WEIGHTS).write_bytes(data)
        (fresh / DIGEST).write_text(hashlib.sha256(data).hexdigest())


def trained_once(folder: Path, seed: int, build: Callable[[], Model], train: Callable[[Model], object]) -> Model:
    """Load the model's weights from a sound entry, or train the model now and store them. Torch's global generator is
    restored, so that a run does not depend on the cache."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        if (weights := load_weights(folder)) is not None:
            model.load_state_dict(weights)
        else:
            train(model)
            store_weights(model.state_dict(), folder)
    return model


@contextlib.contextmanager
def new_entry(folder: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to `folder` at the end, so that readers see a whole entry or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield fresh
        shutil.rmtree(folder, ignore_errors=True)  # only a damaged entry, or an equal one of a racing process
        os.rename(fresh, folder)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not folder.is_dir():  # no other process won the race: the disk cannot be written
            raise
