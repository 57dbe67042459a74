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
        messages = [item if isinstance(item, Mapping) else {"content": item} for item in value]
        value = "\n\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in messages)
    return str(value)


def make_encodable(text: str) -> str:
    """Replace each lone surrogate, which JSON cannot encode, with a question mark."""
    return text.encode(errors="replace").decode()
