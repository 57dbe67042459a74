"""Exchange prompts between the agent `author` and the learner through two files in the run's folder.

The learner writes `topics.json`: the topics that it trains on, with a few of their prompts. The author appends to
`prompts.jsonl`, one `AuthoredPrompt` per line, and the learner reads it between two steps. The text of a prompt is only
in these files; the log contains its hash. Neither side trusts the other, so each validates what it reads.
"""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError
from oven_core.files import read_file, write_atomic

FOLDER: Final = "authored"
"""Folder inside the run's folder. Only its owner may read it."""
TOPICS_FILE, PROMPTS_FILE = "topics.json", "prompts.jsonl"
MAX_CHARACTERS: Final = 4000
"""Maximum number of characters of a prompt: about a thousand tokens, longer than prompts in typical GRPO datasets."""
MAX_LINE_BYTES: Final = 32_768
"""Maximum bytes of a line: enough for the longest prompt with every character escaped in JSON, and its provenance."""
MAX_READ_BYTES: Final = 262_144
"""Maximum bytes read between two steps, which takes about 1 ms. The rest is read after the next step."""
MAX_TOPICS_BYTES: Final = 1 << 20
"""Maximum bytes of `topics.json`."""

_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # control characters except tab and line breaks
    "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)


class AuthoredPrompt(BaseModel):
    """One prompt, with its author, the author's model, and the tick of the request."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    topic: str = Field(min_length=1, max_length=200)
    prompt: str = Field(min_length=1, max_length=MAX_CHARACTERS)
    by: str = Field(min_length=1, max_length=64)
    model: str = Field(default="", max_length=100)
    tick: int = Field(default=0, ge=0)


class Topic(BaseModel):
    """A training topic, with the information for the author."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=200)
    prompts: int = Field(ge=0, description="number of the learner's own prompts")
    examples: tuple[str, ...] = Field(default=(), max_length=16)


class Topics(BaseModel):
    """The topics that the learner trains on."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    topics: tuple[Topic, ...] = Field(min_length=1, max_length=1024)


@dataclass(frozen=True, slots=True)
class Batch:
    """The prompts of one read between two steps."""

    prompts: tuple[AuthoredPrompt, ...]
    malformed: int
    """Number of lines that are not an AuthoredPrompt."""
    too_long: int
    """Number of lines and prompts that are too long. A line over MAX_READ_BYTES is read in parts, and each counts."""
    offset: int
    """Byte offset of the next read."""


def prompt_fault(text: str) -> str:
    """Return why a prompt is invalid ("empty", "too_long" or "control"), or an empty string if it is valid."""
    if not text.strip():
        return "empty"
    if len(text) > MAX_CHARACTERS:
        return "too_long"
    return "control" if _INVISIBLE.search(text) else ""


def normalized(text: str) -> str:
    """Normalize a prompt (NFKC, case-folded, single spaces), so that duplicates are equal."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def write_topics(run_folder: Path, topics: Sequence[Topic]) -> None:
    """Write `topics.json`. Raises OSError."""
    folder = _ensure_folder(run_folder)
    write_atomic(folder / TOPICS_FILE, Topics(topics=tuple(topics)).model_dump_json(), private=True)


def read_topics(run_folder: Path) -> tuple[Topic, ...]:
    """Read `topics.json`. Raises ConfigError if it is missing or cannot be read."""
    path = run_folder / FOLDER / TOPICS_FILE
    data = read_file(path, "the learner's topics", MAX_TOPICS_BYTES)
    try:
        return Topics.model_validate_json(data).topics
    except ValidationError as error:
        raise ConfigError(f"{path} does not contain topics ({error.error_count()} errors): remove it") from None


def append_prompts(run_folder: Path, prompts: Sequence[AuthoredPrompt]) -> None:
    """Append the prompts in one write, so that a reader sees whole lines. Raises OSError."""
    lines = b"".join(json.dumps(prompt.model_dump(), ensure_ascii=False).encode() + b"\n" for prompt in prompts)
    path = _ensure_folder(run_folder) / PROMPTS_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "ab", buffering=0) as out:
        if (size := out.tell()) and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines  # if a full disk truncated an earlier write, only that prompt is lost
        out.write(lines)


def read_prompts(run_folder: Path, offset: int) -> Batch:
    """Read the complete lines after `offset`, at most MAX_READ_BYTES. Raises OSError if the file is missing, and
    ConfigError if it is not a regular file."""
    path = run_folder / FOLDER / PROMPTS_FILE
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe in its place must not block
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path} is not a regular file: remove it")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size <= offset:
            return Batch((), 0, 0, offset)
        file.seek(offset)
        data = file.read(MAX_READ_BYTES)
    complete_bytes = data.rfind(b"\n") + 1
    if complete_bytes:
        return _parse_lines(data[:complete_bytes], offset + complete_bytes)
    if len(data) == MAX_READ_BYTES:  # one line fills the whole read: skip this part of it
        return Batch((), 0, 1, offset + MAX_READ_BYTES)
    return Batch((), 0, 0, offset)


def _parse_lines(data: bytes, offset: int) -> Batch:
    prompts: list[AuthoredPrompt] = []
    malformed = too_long = 0
    for line in data.splitlines():
        if len(line) > MAX_LINE_BYTES:
            too_long += 1
        elif line.strip():
            try:
                prompts.append(AuthoredPrompt.model_validate_json(line))
            except ValidationError as error:
                is_long = any(e["type"] == "string_too_long" and e["loc"] == ("prompt",) for e in error.errors())
                too_long += is_long
                malformed += not is_long
    return Batch(tuple(prompts), malformed, too_long, offset)


def _ensure_folder(run_folder: Path) -> Path:
    folder = run_folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
