"""Detect the format of training logs by their contents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from oven_controller.importing.csv_table import find_delimiter
from oven_controller.importing.importer import Importer
from oven_controller.importing.text_lines import read_head
from oven_core.errors import ConfigError
from oven_core.plugins import import_object

IMPORTERS: Final = {
    "csv": "oven_controller.importing.csv_table:open_table",
    "jsonl": "oven_controller.importing.json_history:open_json_lines",
    "json": "oven_controller.importing.json_history:open_json",
    "console": "oven_controller.importing.console.console_log:open_console_log",
    "tensorboard": "oven_controller.importing.tensorboard:open_event_files",
    "trainer_state": "oven_controller.importing.trainer_state:open_trainer_state",
    "wandb": "oven_controller.importing.wandb:open_wandb",
}
"""The importers, by name."""


SUPPORTED: Final = (
    "Hugging Face's trainer_state.json, TensorBoard event files, W&B run folders, CSV, TSV, JSON Lines, JSON, and the "
    "console output of a training program"
)
TRAINER_STATE = "trainer_state.json"
EVENT_FILE_MARKER = ".tfevents."
_WANDB_MAGIC = b":W&B"
_TABLE_SUFFIXES = (".csv", ".tsv")
_JSON_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_LOG_SUFFIXES = (*_TABLE_SUFFIXES, *_JSON_SUFFIXES, ".log", ".txt", ".out")
_JSON = re.compile(r'\s*(\{\s*["}]|\[\s*(\{\s*["}]|[\[\]]))')
"""The beginning of a JSON object or list, unlike `[INFO] …` or `{'loss': …`."""


def find_importer(source: Path) -> tuple[str, Importer, Path]:
    """Return the name of an importer, the importer, and the path that it reads. Raises ConfigError unless exactly one
    importer can read `source`."""
    if not source.exists():
        raise ConfigError(f"{source} does not exist; give the file or folder that the training wrote")
    name, path = _detect(source)
    importer: Importer = import_object("importer", name, IMPORTERS[name])
    return name, importer, path


def _detect(source: Path) -> tuple[str, Path]:
    if not source.is_dir():
        return detect_file(source), source
    paths = detect_folder(source)
    if len(paths) == 1:
        return next(iter(paths.items()))
    if len(paths) > 1:
        choices = ", ".join(map(str, paths.values()))
        raise ConfigError(f"{source} can be read in more than one way; choose one of {choices}")
    files = log_files(source)
    if len(files) == 1:
        return detect_file(files[0]), files[0]
    folders = [path for pattern in ("*/", "*/*/") for path in sorted(source.glob(pattern)) if detect_folder(path)]
    if candidates := files or folders:
        more = ", …" if len(candidates) > 5 else ""
        problem = "has several files that may be logs" if files else "itself has no log"
        raise ConfigError(f"{source} {problem}; choose one of {', '.join(map(str, candidates[:5]))}{more}")
    raise ConfigError(f"{source} has no training log; supported are {SUPPORTED}")


def detect_file(path: Path) -> str:
    """Return the name of the importer for a file. The contents decide; the suffix matters only if they are ambiguous.
    Raises ConfigError for an empty or binary file."""
    if EVENT_FILE_MARKER in path.name:
        return "tensorboard"
    with path.open("rb") as file:
        magic = file.read(len(_WANDB_MAGIC))
    if magic == _WANDB_MAGIC or path.suffix == ".wandb":
        return "wandb"
    head = read_head(path).lstrip("\ufeff")
    if not head.strip():
        raise ConfigError(f"{path} has no usable measurements: the file is empty")
    suffix = path.suffix.lower()
    is_complete = path.stat().st_size <= len(head.encode())
    if _JSON.match(head) and (name := _detect_json(head, is_complete, suffix)):
        return name
    if suffix in _JSON_SUFFIXES:
        return _JSON_SUFFIXES[suffix]
    return "csv" if suffix in _TABLE_SUFFIXES or find_delimiter(head.splitlines()) else "console"


def detect_folder(folder: Path) -> dict[str, Path]:
    """Return the file or folder to read for each importer that can read something in the folder."""
    paths: dict[str, Path] = {}
    if (folder / TRAINER_STATE).is_file():
        paths["trainer_state"] = folder / TRAINER_STATE
    else:
        checkpoints = [
            path for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}") if checkpoint_step(path) is not None
        ]
        if checkpoints:
            paths["trainer_state"] = max(checkpoints, key=lambda path: checkpoint_step(path) or 0)
    if any(EVENT_FILE_MARKER in path.name and path.is_file() for path in folder.iterdir()):
        paths["tensorboard"] = folder
    wandb_files = sorted(folder.glob("run-*.wandb"))
    if len(wandb_files) == 1:
        paths["wandb"] = wandb_files[0]
    return paths


def log_files(folder: Path) -> list[Path]:
    """Return the files in a folder whose suffixes are those of logs."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _LOG_SUFFIXES and path.is_file())


def checkpoint_step(path: Path) -> int | None:
    """Return the step in the name of the folder of a checkpoint's file."""
    match = re.fullmatch(r"checkpoint-(\d+)", path.parent.name)
    return int(match[1]) if match else None


def _detect_json(head: str, is_complete: bool, suffix: str) -> str | None:
    """Return the format of a text that begins like JSON, or None if it is not JSON. `head` is the beginning of the
    text, or the complete text."""
    lines = [line for line in head.splitlines() if line.strip()]
    whole_lines = lines if is_complete or len(lines) == 1 else lines[:-1]
    first = _parse(whole_lines[0])
    is_row = isinstance(first, dict) and "log_history" not in first and all(line[0] == "{" for line in whole_lines)
    if is_row and (len(lines) > 1 or _JSON_SUFFIXES.get(suffix) == "jsonl"):
        return "jsonl"
    if suffix == ".json" or (is_complete and _parse(head) is not None):
        return "trainer_state" if '"log_history"' in head else "json"
    return None


def _parse(text: str) -> object:
    """Return the value of a JSON text, or None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
