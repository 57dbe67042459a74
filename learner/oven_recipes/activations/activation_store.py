"""A store of activations on disk, in memory-mapped safetensors files. An activation's key consists of a digest of the
model and the text, and the layer, so the files do not contain the text."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from oven_core.errors import ConfigError
from oven_recipes.activations.capture import Activation
from oven_recipes.activations.injection import check_vectors

FILE_PATTERN = "activations-*.safetensors"


def activation_key(model: str, text: str, layer: int) -> str:
    """Return the key of an activation: a digest of the model's name and the text, a dot, and the layer."""
    digest = hashlib.sha256(f"{len(model)}:{model}{text}".encode()).hexdigest()[:32]
    return f"{digest}.{layer}"


def layer_in_key(key: str) -> int:
    """Return the layer in a key. Raises ConfigError for an invalid key."""
    layer = key.rpartition(".")[2]
    if not layer.isdecimal():
        raise ConfigError(f"{key!r} is not the key of an activation; make it with activation_key(model, text, layer)")
    return int(layer)


class ActivationStore:
    """A store of activations in `folder`, which is created if it does not exist. Raises ConfigError for an unreadable
    file, and for files with different hidden sizes."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hidden_size: int | None = None
        """Number of elements of each vector, or None while the store is empty."""
        self._files: dict[str, Any] = {}
        """Key → the open file that contains it."""
        for path in sorted(self.folder.glob(FILE_PATTERN)):
            self._open_file(path)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def get(self, key: str) -> Tensor:
        """Return a key's vectors (tokens, hidden size). Raises ConfigError for an unknown key or invalid vectors."""
        if key not in self._files:
            raise ConfigError(
                f"activation {key!r} is not among the {len(self)} in {self.folder}; capture it with the same model, "
                "text and layer"
            )
        vectors: Tensor = self._files[key].get_tensor(key)
        assert self.hidden_size is not None
        check_vectors(vectors, self.hidden_size, f"{self.folder}, {key}")
        return vectors

    def add(self, model: str, activations: Iterable[Activation]) -> list[str]:
        """Write the activations that are not stored yet to one file, and return the keys of all `activations`. Raises
        ConfigError for invalid vectors."""
        keys, new_vectors = [], {}
        for text, layer, vectors in activations:
            key = activation_key(model, text, layer)
            keys.append(key)
            check_vectors(vectors, self.hidden_size or vectors.shape[-1], f"layer {layer}")
            if key not in self._files:
                new_vectors[key] = vectors.contiguous()
        if new_vectors:
            self._write(model, new_vectors)
        return keys

    def _write(self, model: str, new_vectors: dict[str, Tensor]) -> None:
        hidden_size = next(iter(new_vectors.values())).shape[1]
        path = self.folder / f"activations-{uuid.uuid4().hex}.safetensors"
        unfinished = path.with_suffix(".unfinished")
        save_file(new_vectors, unfinished, metadata={"model": model, "width": str(hidden_size)})
        os.replace(unfinished, path)  # atomic, so the file is never incomplete
        self._open_file(path)

    def _open_file(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
            keys = list(file.keys())
            hidden_size = int((file.metadata() or {})["width"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise ConfigError(
                f"{path} is not a complete file of activations ({type(error).__name__}: {error}); delete it, and "
                "capture them again"
            ) from None
        if self.hidden_size not in (None, hidden_size):
            raise ConfigError(
                f"{path} has activations of size {hidden_size}, but others in {self.folder} have size "
                f"{self.hidden_size}; use a separate folder for each model"
            )
        self.hidden_size = hidden_size
        self._files |= dict.fromkeys(keys, file)
