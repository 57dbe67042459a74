"""Import Hugging Face's `trainer_state.json`, which every checkpoint contains. It has no timestamps.

A resumed Trainer continues the checkpoint's history, so steps never decrease.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from oven_controller.importing.importer import Logged, Recording
from oven_controller.importing.rows import whole
from oven_core.errors import ConfigError

NAME = "trainer_state.json"
MOST_BYTES = 512 * 2**20
"""Maximum file size. The file is one JSON object, which takes about three times its size in memory."""
_TOTAL = "train_runtime"
"""A key that marks the last entry, with the totals of the training."""


class _State(BaseModel):
    """The fields of the file that the importer uses."""

    log_history: list[Any]
    max_steps: Any = None
    global_step: Any = None


class TrainerState:
    """Importer of a Hugging Face Trainer's log history."""

    summary = f"a Hugging Face {NAME}, or a folder with one or with checkpoint-…/{NAME}"

    def find(self, source: Path) -> Path | None:
        if source.is_file():
            return source if source.suffix == ".json" else None
        if (source / NAME).is_file():
            return source / NAME
        checkpoints = [path for path in source.glob(f"checkpoint-*/{NAME}") if _number(path) is not None]
        return max(checkpoints, key=lambda path: _number(path) or 0, default=None)

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(
                f"{path} has {size / 2**20:.0f} MiB, but at most {MOST_BYTES >> 20} MiB are supported; import the same "
                "training from TensorBoard or W&B, or as JSONL"
            )
        try:
            content = from_json(path.read_bytes(), allow_inf_nan=True)
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}; was the program killed while it wrote it?") from error
        try:
            state = _State.model_validate(content)
        except ValidationError:
            raise ConfigError(f"{path} has no `log_history`, so no Hugging Face trainer wrote it") from None
        max_steps = whole(state.max_steps) or None
        return Recording(_logged(state.log_history, step or "step"), max_steps, whole(state.global_step))


def _logged(history: list[Any], step: str) -> Iterator[Logged]:
    for entry in history:
        if isinstance(entry, dict) and _TOTAL not in entry:
            yield Logged(entry.get(step), entry)
        elif isinstance(entry, dict):
            # The entry with totals may also have measurements of a last evaluation.
            yield Logged(entry.get(step), {k: v for k, v in entry.items() if not k.startswith("train_")})


def _number(path: Path) -> int | None:
    match = re.fullmatch(r"checkpoint-(\d+)", path.parent.name)
    return int(match[1]) if match else None


IMPORTER = TrainerState()
