"""Reads prompts from lists, files, folders or functions into validated rows, with locations for error messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from oven_core.errors import ConfigError, reason

Row: TypeAlias = dict[str, Any]
"""One prompt, with the columns that a reward function also gets."""
Prompts: TypeAlias = Iterable[Any] | str | Path | Callable[[], Iterable[Any]]
"""A list of prompts, a JSONL file, a folder saved by the `datasets` library, or a function that returns prompts."""

PROMPT, TOPIC = "prompt", "topic"
MAX_ROWS = 5_000_000
"""Maximum number of prompts in one source. A function that yields more probably never ends."""


def read(prompts: Prompts, source_name: str) -> Iterator[tuple[str, Row]]:
    """Yield (location, row) for each prompt, in order. Raises ConfigError, with `source_name`, for a source that cannot
    be read and for invalid prompts."""
    for count, (location, entry) in enumerate(_read_entries(prompts, source_name), start=1):
        if count > MAX_ROWS:
            raise ConfigError(f"{source_name} has more than {MAX_ROWS:,} prompts; give fewer, or a function that ends")
        yield location, validate_row(entry, location)


def validate_row(entry: Any, location: str) -> Row:
    """Return a prompt as a row. `entry` is text, messages, or a mapping with one of them as `prompt` and other columns.
    Raises ConfigError for anything else."""
    row = dict(entry) if isinstance(entry, Mapping) else {PROMPT: entry}
    if PROMPT not in row:
        columns = ", ".join(map(str, row)) or "nothing"
        raise ConfigError(f"{location} has no `prompt`, only {columns}; add the string or the messages as `prompt`")
    if invalid_names := [name for name in row if not isinstance(name, str)]:
        raise ConfigError(f"{location} has the column name {invalid_names[0]!r}; use a string")
    prompt = row[PROMPT]
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError(f"{location} is empty; remove it, or add text")
    elif not _is_messages(prompt):
        kind = type(prompt).__name__
        raise ConfigError(
            f"{location} has the type {kind}; expected text or messages: "
            'a string, or a list of {"role": …, "content": …}'
        )
    return row


def is_text(row: Row) -> bool:
    """Whether the prompt is text rather than messages."""
    return isinstance(row[PROMPT], str)


def digest(prompt: Any) -> str:
    """Return the BLAKE2b hash of the prompt's JSON, 16 bytes in hexadecimal."""
    data = json.dumps(prompt, sort_keys=True, ensure_ascii=False, default=str).encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _read_entries(prompts: Prompts, source_name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(prompts, str | Path):
        yield from _read_path(Path(prompts))
        return
    if callable(prompts):
        prompts = prompts()
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | Mapping):
        kind = type(prompts).__name__
        raise ConfigError(
            f"{source_name} has the type {kind}; give a list, a JSONL file, a datasets folder, or a function"
        )
    for index, entry in enumerate(prompts):
        yield f"{source_name}, prompt {index}", entry


def _read_path(path: Path) -> Iterator[tuple[str, Any]]:
    if path.is_dir():
        yield from _read_folder(path)
        return
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                location = f"{path}:{number}"
                try:
                    if line.strip():
                        yield location, json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ConfigError(
                        f"{location} is not valid JSON ({reason(error)}); each line must be a string, messages, or an "
                        "object with `prompt`"
                    ) from error
    except OSError as error:
        cause = "no such file or folder" if isinstance(error, FileNotFoundError) else reason(error)
        raise ConfigError(f"{path}: {cause}; give a JSONL file, a datasets folder, or the prompts as a list") from error


def _read_folder(path: Path) -> Iterator[tuple[str, Any]]:
    from datasets import Dataset, load_from_disk

    try:
        dataset = load_from_disk(str(path))
    except Exception as error:
        raise ConfigError(
            f"{path} is not a folder saved by the datasets library ({reason(error)}); create one with save_to_disk"
        ) from error
    if not isinstance(dataset, Dataset):
        splits = ", ".join(map(str, dataset))
        raise ConfigError(
            f"{path} has the splits {splits}; give the folder of one split, such as {path}/{next(iter(dataset))}"
        )
    for index, row in enumerate(dataset):
        yield f"{path}, row {index}", row


def _is_messages(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(map(_is_message, prompt))


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping):
        return False
    return isinstance(message.get("role"), str) and isinstance(message.get("content"), str | list)
