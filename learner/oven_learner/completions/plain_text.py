"""Convert prompts and completions to plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_text(value: Any) -> str:
    """Return a prompt or a completion as text. The messages of a conversation are joined."""
    return encodable(joined(value))


def joined(value: Any) -> str:
    """Return the text as it is, with lone surrogates."""
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0].get("content", "")
    elif isinstance(value, list | tuple):
        messages = [part if isinstance(part, Mapping) else {"content": part} for part in value]
        value = "\n\n".join(f"{part.get('role', '')}: {part.get('content', '')}" for part in messages)
    return str(value)


def encodable(text: str) -> str:
    """Replace each lone surrogate with a question mark, because JSON has none."""
    return text.encode(errors="replace").decode()
