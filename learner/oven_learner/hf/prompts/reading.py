"""Prompts as they are read: one row each, checked, with the place that an error names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from oven_core.errors import ConfigError, reason

Row: TypeAlias = dict[str, Any]
"""One prompt, with the columns that a reward function is given beside it."""
Prompts: TypeAlias = Iterable[Any] | str | Path | Callable[[], Iterable[Any]]
"""A list of prompts, a JSONL file, a folder of the `datasets` library, or a function that returns prompts."""

PROMPT, TOPIC = "prompt", "topic"
MOST_ROWS = 5_000_000
"""In one source: a function that yields more most likely never ends."""


def read(prompts: Prompts, called: str) -> Iterator[tuple[str, Row]]:
    """(place, row) of each prompt, in order. `called`: how errors name the source. Raises ConfigError for what is not
    there, cannot be read, or is not a prompt."""
    for count, (place, one) in enumerate(_entries(prompts, called), start=1):
        if count > MOST_ROWS:
            raise ConfigError(f"{called} has more than {MOST_ROWS:,} prompts; give fewer, or a function that ends")
        yield place, checked(one, place)


def checked(one: Any, place: str) -> Row:
    """A prompt as a row: text, messages, or a mapping with one of them as `prompt` and other columns.

    Raises ConfigError where it is none of these.
    """
    row = dict(one) if isinstance(one, Mapping) else {PROMPT: one}
    if PROMPT not in row:
        has = ", ".join(map(str, row)) or "nothing"
        raise ConfigError(f"{place} has no prompt; it has {has}: give the text, or the messages, as `prompt`")
    if unnamed := [name for name in row if not isinstance(name, str)]:
        raise ConfigError(f"{place} has the column {unnamed[0]!r}; give columns names of text")
    prompt = row[PROMPT]
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError(f"{place} is an empty text; leave it out, or say what is asked")
    elif not _is_messages(prompt):
        shown = type(prompt).__name__
        raise ConfigError(
            f'{place} is {shown}, where text or messages are needed: a string, or a list of {{"role": …, "content": …}}'
        )
    return row


def is_text(row: Row) -> bool:
    """Whether the prompt is text; else it is messages."""
    return isinstance(row[PROMPT], str)


def digest(prompt: Any) -> str:
    """BLAKE2b of the prompt's JSON, 16 bytes in hexadecimal."""
    data = json.dumps(prompt, sort_keys=True, ensure_ascii=False, default=str).encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _entries(prompts: Prompts, called: str) -> Iterator[tuple[str, Any]]:
    if isinstance(prompts, str | Path):
        yield from _stored(Path(prompts))
        return
    if callable(prompts):
        prompts = prompts()
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | Mapping):
        kind = type(prompts).__name__
        raise ConfigError(f"{called} is {kind}; give a list, a JSONL file, a datasets folder, or a function of a list")
    for index, one in enumerate(prompts):
        yield f"{called}, prompt {index}", one


def _stored(path: Path) -> Iterator[tuple[str, Any]]:
    if path.is_dir():
        yield from _folder(path)
        return
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _parsed(line, f"{path}:{number}")
    except OSError as error:
        why = "no such file or folder" if isinstance(error, FileNotFoundError) else reason(error)
        raise ConfigError(f"{path}: {why}; give a JSONL file, a datasets folder, or the prompts as a list") from error


def _parsed(line: bytes, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{place} is not JSON ({reason(error)}); each line is one prompt: a string, messages, or an object with "
            "`prompt`"
        ) from error


def _folder(path: Path) -> Iterator[tuple[str, Any]]:
    from datasets import Dataset, load_from_disk

    try:
        found = load_from_disk(str(path))
    except Exception as error:
        raise ConfigError(
            f"{path} is not a folder of the datasets library ({reason(error)}); save_to_disk makes one"
        ) from error
    if not isinstance(found, Dataset):
        splits = ", ".join(map(str, found))
        raise ConfigError(f"{path} has the splits {splits}; give the folder of one, as {path}/{next(iter(found))}")
    for index, row in enumerate(found):
        yield f"{path}, row {index}", row


def _is_messages(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(
            isinstance(message, Mapping)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str | list)
            for message in prompt
        )
    )
