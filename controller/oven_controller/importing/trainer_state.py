"""Import Hugging Face's `trainer_state.json`, which every checkpoint contains. The file has no timestamps. A resumed
Trainer continues the history of its checkpoint, so steps never decrease."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from oven_controller.importing.importer import LogEntry, Recording
from oven_controller.importing.rows import step_number
from oven_core.errors import ConfigError

FILE_NAME = "trainer_state.json"
MAX_BYTES = 512 * 2**20
"""Maximum file size. The file is a single JSON object and needs about three times its size in memory."""
_TOTALS_KEY = "train_runtime"
"""A key that occurs only in the last entry of a history, which contains totals over the whole run."""


class _State(BaseModel):
    """The fields of the file that the importer uses."""

    log_history: list[Any]
    max_steps: Any = None
    global_step: Any = None


class TrainerStateImporter:
    """Importer for a Hugging Face Trainer's log history."""

    summary = f"a Hugging Face {FILE_NAME}, or a folder that contains {FILE_NAME} or checkpoint-…/{FILE_NAME}"

    def find(self, source: Path) -> Path | None:
        if source.is_file():
            return source if source.suffix == ".json" else None
        if (source / FILE_NAME).is_file():
            return source / FILE_NAME
        checkpoints = [path for path in source.glob(f"checkpoint-*/{FILE_NAME}") if _checkpoint_step(path) is not None]
        return max(checkpoints, key=lambda path: _checkpoint_step(path) or 0, default=None)

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(
                f"{path} has {size / 2**20:.0f} MiB, but the maximum is {MAX_BYTES >> 20} MiB; import the same "
                "training from TensorBoard, W&B or JSONL"
            )
        try:
            content = from_json(path.read_bytes(), allow_inf_nan=True)
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}; was the program killed while writing it?") from error
        try:
            state = _State.model_validate(content)
        except ValidationError:
            raise ConfigError(f"{path} has no `log_history`, so it is not from a Hugging Face trainer") from None
        max_steps = step_number(state.max_steps) or None  # 0 means unknown
        return Recording(_read_entries(state.log_history, step or "step"), max_steps, step_number(state.global_step))


def _read_entries(history: list[Any], step: str) -> Iterator[LogEntry]:
    for entry in history:
        if isinstance(entry, dict) and _TOTALS_KEY not in entry:
            yield LogEntry(entry.get(step), entry)
        elif isinstance(entry, dict):
            # The entry with the totals may also contain measurements from a last evaluation.
            yield LogEntry(entry.get(step), {key: entry[key] for key in entry if not key.startswith("train_")})


def _checkpoint_step(path: Path) -> int | None:
    match = re.fullmatch(r"checkpoint-(\d+)", path.parent.name)
    return int(match[1]) if match else None


IMPORTER = TrainerStateImporter()
