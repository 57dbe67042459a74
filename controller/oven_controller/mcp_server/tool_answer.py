"""Convert a Pydantic model to a tool's answer: structured content and JSON text, cleaned and limited in length."""

from __future__ import annotations

import json
from typing import Any, Final

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel

from oven_core.terminal_text import clean

MAX_CHARACTERS: Final = 60_000
"""Maximum characters of an answer: about 15,000 to 20,000 tokens. Common clients do not truncate such an answer."""
TEXT_LENGTHS: Final = (2000, 400, 120)
"""Maximum lengths of each string in an answer, tried in this order until the answer is short enough."""


def answer(model: BaseModel, remedy: str = "request less") -> CallToolResult:
    """Return the model as JSON, without control characters. Strings are truncated if the answer is too long. Raises
    ToolError with `remedy` if it is still too long."""
    fields = json.loads(model.model_dump_json())  # model_dump would keep NaN, which JSON does not support
    for max_length in TEXT_LENGTHS:
        shortened = _shorten(fields, max_length)
        text = json.dumps(shortened, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= MAX_CHARACTERS:
            return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=shortened)
    raise ToolError(f"the answer has {len(text):,} characters, more than the maximum of {MAX_CHARACTERS:,}: {remedy}")


def _shorten(value: Any, max_length: int) -> Any:
    """Return the value with every string in it cleaned and truncated."""
    if isinstance(value, str):
        text = clean(value)
        return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
    if isinstance(value, list):
        return [_shorten(item, max_length) for item in value]
    if isinstance(value, dict):
        return {clean(key): _shorten(item, max_length) for key, item in value.items()}
    return value
