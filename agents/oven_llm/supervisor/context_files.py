"""The context of a question from files: text, JSON, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_llm.supervisor.repl import Context


def read_context(paths: Sequence[str]) -> Context:
    """Return the content of one file, or a dict of several by name. `-` is standard input, as text. FILE.json gives its
    value, FILE.jsonl a list of its lines' values, any other file its text. Raises ConfigError for a file that is
    missing or not UTF-8, and for JSON that is incomplete, or not a text, list or object."""
    if not paths:
        raise ConfigError("there is no context: name a file, or - for standard input")
    if len(paths) == 1:
        return _read(paths[0])
    if duplicates := {path for path in paths if paths.count(path) > 1}:
        raise ConfigError(f"{min(duplicates)} is named twice; name each file once")
    return {path: _read(path) for path in paths}


def _read(path: str) -> Context:
    data = _bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or name a text") from None
    suffix = Path(path).suffix.lower()
    if suffix == ".jsonl":
        lines = enumerate(text.split("\n"), 1)
        return [_value(line, f"{path}, line {number},") for number, line in lines if line.strip()]
    if suffix != ".json":
        return text
    value = _value(text, path)
    if not isinstance(value, str | list | dict):
        raise ConfigError(f"{path} holds {text.strip()[:40]}; a context is a text, a list or an object")
    return value


def _bytes(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the context {path} cannot be read: {error.strerror or reason(error)}") from None


def _value(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not whole JSON ({reason(error)}): is the file cut?") from None
