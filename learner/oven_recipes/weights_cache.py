"""A cache of models' weights on disk, so that a model is trained only once. A damaged entry counts as missing."""

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
WEIGHTS_FILE, DIGEST_FILE = "policy.safetensors", "sha256"


def key_of(factors: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits as the key of an entry. `factors` are all values that the weights depend on."""
    return hashlib.sha256(json.dumps(factors, sort_keys=True).encode()).hexdigest()[:16]


def load_weights(folder: Path) -> dict[str, Tensor] | None:
    """Return the entry's weights by name, or None if the entry is missing or damaged."""
    try:
        data = (folder / WEIGHTS_FILE).read_bytes()
        digest = (folder / DIGEST_FILE).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return load(data) if hashlib.sha256(data).hexdigest() == digest else None


def store_weights(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write an entry, and remove the file with the progress of its training. Tied weights are copied, because the file
    format cannot express shared memory."""
    with new_entry(folder) as temporary:
        data = save({name: weight.clone(memory_format=torch.contiguous_format) for name, weight in weights.items()})
        (temporary / WEIGHTS_FILE).write_bytes(data)
        (temporary / DIGEST_FILE).write_text(hashlib.sha256(data).hexdigest())
    unfinished_file(folder).unlink(missing_ok=True)


def unfinished_file(folder: Path) -> Path:
    """Return the file for the progress of a training whose weights will be stored in `folder`."""
    return folder.with_name(f"{folder.name}.unfinished")


def load_or_train(folder: Path, seed: int, build: Callable[[], Model], train: Callable[[Model, Path], object]) -> Model:
    """Build a model with `build`. Load its weights from the entry in `folder`. If there is no entry, train the model
    and store its weights. `train` gets the model and the file for its progress. Torch's global generator is restored,
    so that a run does not depend on the cache."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        if (weights := load_weights(folder)) is not None:
            model.load_state_dict(weights)
        else:
            train(model, unfinished_file(folder))
            store_weights(model.state_dict(), folder)
    return model


@contextlib.contextmanager
def new_entry(folder: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to `folder` at the end, so that readers never see an incomplete entry."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield temporary
        shutil.rmtree(folder, ignore_errors=True)  # a damaged entry, or an equal one from another process
        os.rename(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():  # no other process wrote the entry, so the disk is not writable
            raise
