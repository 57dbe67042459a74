"""Conversations in the form of Anthropic's messages: a system text aside, tools' results in the user's turn. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from oven_llm.providers.conversation import Conversation, Finish, Message, Sample, ToolCall
from oven_llm.providers.failures import ModelFailure

if TYPE_CHECKING:
    from anthropic.types import Message as Response

_FINISHED: Final[dict[str, Finish]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
}
_NOT_IN_IDS: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""What the API refuses in a call's id; traces of other models have ids with dots and colons."""
MOST_TEMPERATURE: Final = 1.0
"""The API refuses a higher one, which others take up to 2."""
_WARM: Final = {"type": "ephemeral"}


def request_body(asked: Conversation) -> dict[str, Any]:
    """What is posted, but for the model's name and max_tokens.

    What will be sent again is to be kept in the API's cache. Writing there costs a quarter more than no cache, so
    single questions are not kept. Raises ModelFailure for a temperature above 1, which the API does not take.
    """
    if asked.temperature is not None and asked.temperature > MOST_TEMPERATURE:
        raise ModelFailure("bad_request", f"the temperature is {asked.temperature:g}; this API takes 0 to 1")
    system = [message.content for message in asked.messages if message.role == "system"]
    turns = _turns([message for message in asked.messages if message.role != "system"])
    body: dict[str, Any] = {"messages": turns}
    if system:
        body["system"] = "\n\n".join(system)
    if asked.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in asked.tools
        ]
    if asked.temperature is not None:
        body["temperature"] = asked.temperature
    if asked.stop:
        body["stop_sequences"] = list(asked.stop)
    if asked.reused:
        turns[-1]["content"][-1]["cache_control"] = _WARM
    return body


def sample_of(answer: Response) -> Sample:
    """Raises AttributeError, TypeError or ValueError for what is not the API's."""
    texts, calls = [], []
    for block in answer.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "tool_use":
            calls.append(ToolCall(str(block.id), str(block.name), json.dumps(block.input, ensure_ascii=False)))
    return Sample("".join(texts), tuple(calls), _FINISHED.get(str(answer.stop_reason), "other"))


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Turns alternate, and all results of an assistant's calls stand in one: neighbours are put together."""
    return [
        {"role": role, "content": [block for message in those for block in _blocks(message)]}
        for role, those in groupby(messages, lambda one: "assistant" if one.role == "assistant" else "user")
    ]


def _blocks(one: Message) -> list[dict[str, Any]]:
    if one.role == "tool":
        return [{"type": "tool_result", "tool_use_id": _NOT_IN_IDS.sub("_", one.call_id), "content": one.content}]
    blocks: list[dict[str, Any]] = []
    if one.content.strip() or not one.calls:  # the API refuses an empty text
        blocks.append({"type": "text", "text": one.content})
    return blocks + [
        {"type": "tool_use", "id": _NOT_IN_IDS.sub("_", call.id), "name": call.name, "input": _input(call.arguments)}
        for call in one.calls
    ]


def _input(arguments: str) -> dict[str, Any]:
    """An object, as the API insists on; other text of a model is kept in it, whole."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
