"""Converts prompts and completions to plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_text(value: Any) -> str:
    """Return a prompt or a completion as text that JSON can encode."""
    return make_encodable(join_messages(value))


def join_messages(value: Any) -> str:
    """Return a prompt or a completion as text. Join the messages of a conversation."""
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0].get("content", "")
    elif isinstance(value, list | tuple):
        messages = [part if isinstance(part, Mapping) else {"content": part} for part in value]
        value = "\n\n".join(f"{part.get('role', '')}: {part.get('content', '')}" for part in messages)
    return str(value)


def make_encodable(text: str) -> str:
    """Replace each lone surrogate, which JSON cannot encode, with a question mark."""
    return text.encode(errors="replace").decode()
