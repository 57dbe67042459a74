"""Import Hugging Face's `trainer_state.json`, which every checkpoint contains. The file has no timestamps. A resumed
Trainer continues the history of its checkpoint, so steps never decrease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from oven_controller.importing.importer import LogEntry, Recording
from oven_controller.importing.json_history import load_json
from oven_controller.importing.rows import step_number
from oven_core.errors import ConfigError


class _State(BaseModel):
    """The fields of the file that the importer uses."""

    log_history: list[Any]
    max_steps: Any = None
    global_step: Any = None


@contextmanager
def open_trainer_state(path: Path, skipped: Counter[str], step: str | None = None) -> Iterator[Recording]:
    """Open a Hugging Face Trainer's log history."""
    content = load_json(path)
    try:
        state = _State.model_validate(content)
    except ValidationError:
        raise ConfigError(f"{path} has no `log_history`, so it is not from a Hugging Face trainer") from None
    max_steps = step_number(state.max_steps) or None  # 0 means unknown
    yield Recording(_read_entries(state.log_history, step or "step"), max_steps, step_number(state.global_step))


def _read_entries(history: list[Any], step: str) -> Iterator[LogEntry]:
    return (LogEntry(entry.get(step), entry) for entry in history if isinstance(entry, dict))
