"""Reader of Hugging Face's `trainer_state.json`, which every checkpoint has: figures without times.

On a resume the Trainer continues from its checkpoint's history, so steps never go back in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from oven_controller.importing.importer import Logged, Recording
from oven_controller.importing.rows import whole
from oven_core.errors import ConfigError

NAME = "trainer_state.json"
MOST_BYTES = 512 * 2**20
"""It is one JSON object, and read whole: some three times its size in memory."""
_TOTAL = "train_runtime"
"""In the last entry, which sums the whole training up."""


class TrainerState:
    summary = f"a Hugging Face {NAME}, or a folder with one or with checkpoint-…/{NAME}"

    def find(self, source: Path) -> Path | None:
        if source.is_file():
            return source if source.suffix == ".json" else None
        if (source / NAME).is_file():
            return source / NAME
        kept = [path for path in source.glob(f"checkpoint-*/{NAME}") if _number(path) is not None]
        return max(kept, key=lambda path: _number(path) or 0, default=None)

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(
                f"{path} has {size / 2**20:.0f} MiB, and at most {MOST_BYTES >> 20} are read at once; import the same "
                "training from TensorBoard or W&B, or as JSONL"
            )
        try:
            state: Any = from_json(path.read_bytes(), allow_inf_nan=True)
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}; was the program killed while it wrote it?") from error
        history = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(history, list):
            raise ConfigError(f"{path} has no `log_history`, so no Hugging Face trainer wrote it")
        most = whole(state.get("max_steps"))
        return Recording(_logged(history, step or "step"), most or None, whole(state.get("global_step")))


def _logged(history: list[Any], step: str) -> Iterator[Logged]:
    for entry in history:
        if isinstance(entry, dict) and _TOTAL not in entry:
            yield Logged(entry.get(step), entry)
        elif isinstance(entry, dict):
            # What an evaluation of the end left beside the sums is a measurement.
            yield Logged(entry.get(step), {k: v for k, v in entry.items() if not k.startswith("train_")})


def _number(path: Path) -> int | None:
    found = re.fullmatch(r"checkpoint-(\d+)", path.parent.name)
    return int(found[1]) if found else None


IMPORTER = TrainerState()
