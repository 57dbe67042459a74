"""Cached weights, so that a second run starts at once. A damaged entry counts as missing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

WEIGHTS, DIGEST = "policy.safetensors", "sha256"


def key_of(decides: Mapping[str, Any]) -> str:
    """Return 16 hex digits over everything that decides the weights."""
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
    """Write beside the target, then rename, so that a reader sees a whole entry or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        data = save({name: weight.contiguous() for name, weight in weights.items()})
        (fresh / WEIGHTS).write_bytes(data)
        (fresh / DIGEST).write_text(hashlib.sha256(data).hexdigest())
        shutil.rmtree(folder, ignore_errors=True)  # only ever a corrupt entry, or an equal one of a racing process
        os.rename(fresh, folder)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not (folder / WEIGHTS).is_file():  # not the race's winner in our place: a disk that cannot be written
            raise
