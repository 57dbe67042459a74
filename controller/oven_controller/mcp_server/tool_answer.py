"""What a tool answers with: one model, as structured content and as the same JSON in text, clean and bounded."""

from __future__ import annotations

import json
from typing import Any, Final

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel

from oven_core.terminal_text import clean

MOST: Final = 60_000
"""Characters of an answer: some 15,000 to 20,000 tokens, which the common clients take without cutting them."""
LENGTHS: Final = (2000, 400, 120)
"""To how many characters each text in an answer is cut, one after another, until the answer is short enough."""


def answer(model: BaseModel, remedy: str = "ask for less") -> CallToolResult:
    """The model's JSON. Texts of others lose their control characters, and where the whole is too long, their ends.
    Raises ToolError with the remedy where it stays too long."""
    plain = json.loads(model.model_dump_json())  # model_dump leaves NaN as it is, which is no JSON
    for length in LENGTHS:
        told = _told(plain, length)
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= MOST:
            return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=told)
    raise ToolError(f"the answer has {len(text):,} characters, and {MOST:,} are the most: {remedy}")


def _told(value: Any, length: int) -> Any:
    """The value with every text in it cleaned and cut."""
    if isinstance(value, str):
        text = clean(value)
        return text if len(text) <= length else f"{text[: length - 1]}…"
    if isinstance(value, list):
        return [_told(one, length) for one in value]
    if isinstance(value, dict):
        return {clean(key): _told(one, length) for key, one in value.items()}
    return value
