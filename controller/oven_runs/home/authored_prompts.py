"""Prompts on their way from an author to the learner: two files of the run's folder, and what both sides check.

`topics.json` is the learner's: the topics that it trains on, with a few of their prompts, for the author to read.
`prompts.jsonl` is the author's: one `AuthoredPrompt` a line, appended, which the learner reads between two steps. The
text of a prompt stands in these files alone: the log has its hash. Neither side trusts the other, so each checks.
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
"""In the run's folder, readable by its owner only."""
TOPICS, PROMPTS = "topics.json", "prompts.jsonl"
CHARACTERS: Final = 4000
"""Of a prompt at most: about a thousand tokens, more than the prompts of the data sets that GRPO is used on have."""
LINE_BYTES: Final = 32_768
"""Of a line at most: a prompt whose characters are all escaped in JSON, and its provenance."""
READ_BYTES: Final = 262_144
"""Read at one step boundary at most: it takes a millisecond. What is beyond it waits for the next step."""
TOPIC_BYTES: Final = 1 << 20
"""Of `topics.json` at most."""

_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # controls, but for tab and line breaks
    "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)


class AuthoredPrompt(BaseModel):
    """One prompt, with who wrote it, by which model, and at which tick it was asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    topic: str = Field(min_length=1, max_length=200)
    prompt: str = Field(min_length=1, max_length=CHARACTERS)
    by: str = Field(min_length=1, max_length=64)
    model: str = Field(default="", max_length=100)
    tick: int = Field(default=0, ge=0)


class Topic(BaseModel):
    """A topic as the author is told of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=200)
    prompts: int = Field(ge=0, description="of the learner's own data")
    examples: tuple[str, ...] = Field(default=(), max_length=16)


class Topics(BaseModel):
    """What the learner trains on."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    topics: tuple[Topic, ...] = Field(min_length=1, max_length=1024)


@dataclass(frozen=True, slots=True)
class Batch:
    """What was read from the file at one step boundary."""

    prompts: tuple[AuthoredPrompt, ...]
    malformed: int
    """Lines that are not an AuthoredPrompt."""
    too_long: int
    """Lines beyond LINE_BYTES (one beyond READ_BYTES is passed over piece by piece, and counted by each), or prompts
    beyond CHARACTERS."""
    offset: int
    """Where the next read begins, in bytes."""


def fault(text: str) -> str:
    """Why a text cannot be a prompt: "empty", "too_long" or "control"; empty if it can."""
    if not text.strip():
        return "empty"
    if len(text) > CHARACTERS:
        return "too_long"
    return "control" if _INVISIBLE.search(text) else ""


def normalized(text: str) -> str:
    """The text by which two prompts count as one: NFKC, case-folded, with single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def write_topics(run_folder: Path, topics: Sequence[Topic]) -> None:
    """Raises OSError."""
    folder = _folder(run_folder)
    write_atomic(folder / TOPICS, Topics(topics=tuple(topics)).model_dump_json(), private=True)


def read_topics(run_folder: Path) -> tuple[Topic, ...]:
    """Raises ConfigError where there are none, or they cannot be read."""
    path = run_folder / FOLDER / TOPICS
    data = read_file(path, "the learner's topics", TOPIC_BYTES)
    try:
        return Topics.model_validate_json(data).topics
    except ValidationError as error:
        raise ConfigError(f"{path} does not hold topics ({error.error_count()} faults): remove it") from None


def append_prompts(run_folder: Path, prompts: Sequence[AuthoredPrompt]) -> None:
    """In one write, so that a reader sees whole lines. Raises OSError."""
    lines = b"".join(json.dumps(one.model_dump(), ensure_ascii=False).encode() + b"\n" for one in prompts)
    descriptor = os.open(_folder(run_folder) / PROMPTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "ab", buffering=0) as out:
        if out.tell() and not _ends_a_line(run_folder):
            lines = b"\n" + lines  # a write that was cut by a full disk spoils one prompt, not two
        out.write(lines)


def read_prompts(run_folder: Path, offset: int) -> Batch:
    """The whole lines from `offset` on, READ_BYTES at most. Raises ConfigError for what is not a regular file, OSError
    where there is none."""
    path = run_folder / FOLDER / PROMPTS
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe in its place must not block
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path} is not a regular file: remove it")
    with os.fdopen(descriptor, "rb") as file:
        if about.st_size <= offset:
            return Batch((), 0, 0, offset)
        file.seek(offset)
        data = file.read(READ_BYTES)
    whole = data.rfind(b"\n") + 1
    if not whole:  # one line fills all that is read: it is passed over, and its end with the next read
        return Batch((), 0, int(len(data) == READ_BYTES), offset + (READ_BYTES if len(data) == READ_BYTES else 0))
    return _parsed(data[:whole], offset + whole)


def _parsed(data: bytes, offset: int) -> Batch:
    prompts: list[AuthoredPrompt] = []
    malformed = too_long = 0
    for line in data.splitlines():
        if len(line) > LINE_BYTES:
            too_long += 1
        elif line.strip():
            try:
                prompts.append(AuthoredPrompt.model_validate_json(line))
            except ValidationError as error:
                long = any(one["type"] == "string_too_long" and one["loc"] == ("prompt",) for one in error.errors())
                too_long, malformed = too_long + long, malformed + (not long)
    return Batch(tuple(prompts), malformed, too_long, offset)


def _folder(run_folder: Path) -> Path:
    folder = run_folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _ends_a_line(run_folder: Path) -> bool:
    with (run_folder / FOLDER / PROMPTS).open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


__all__ = [
    "AuthoredPrompt",
    "Batch",
    "Topic",
    "append_prompts",
    "fault",
    "normalized",
    "read_prompts",
    "read_topics",
    "write_topics",
]
