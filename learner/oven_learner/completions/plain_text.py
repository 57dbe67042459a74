"""Prompts and completions as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_text(said: Any) -> str:
    """A prompt or a completion as text; a conversation's messages one after another."""
    return encodable(joined(said))


def joined(said: Any) -> str:
    """The same as it stands, halves of characters included."""
    if isinstance(said, list | tuple) and len(said) == 1 and isinstance(said[0], Mapping):
        said = said[0].get("content", "")
    elif isinstance(said, list | tuple):
        messages = [part if isinstance(part, Mapping) else {"content": part} for part in said]
        said = "\n\n".join(f"{part.get('role', '')}: {part.get('content', '')}" for part in messages)
    return str(said)


def encodable(text: str) -> str:
    """With a question mark for each half of a character: JSON has no lone surrogates."""
    return text.encode(errors="replace").decode()
