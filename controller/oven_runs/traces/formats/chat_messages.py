"""Convert chat messages between the project's records, OpenAI's API and Hugging Face's chat templates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oven_runs.traces.trace_records import Message, Tool, ToolCall, Trace, TraceStep

ROLE_ALIASES = {"developer": "system", "function": "tool"}
"""Standard role of each alias."""


class NotReadable(ValueError):
    """Raised when a row does not have the expected form. The message names the field."""


def to_chat(message: Message) -> dict[str, Any]:
    """Return the message in OpenAI's form."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        chat["reasoning_content"] = message.reasoning
    if message.calls:
        chat["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.call_id:
        chat["tool_call_id"] = message.call_id
    if message.name:
        chat["name"] = message.name
    return chat


def from_chat(chat: Any, lost: Counter[str]) -> Message:
    """Return the record of a chat message. `lost` counts content that a record cannot store, by kind. Raises
    NotReadable and ValidationError."""
    if not isinstance(chat, Mapping):
        raise NotReadable(f"a message is a {type(chat).__name__} instead of an object")
    role = str(chat.get("role"))
    return Message.model_validate(
        {
            "role": ROLE_ALIASES.get(role, role),
            "content": text_of(chat.get("content"), lost),
            "reasoning": _string_field(chat, "reasoning_content") or _string_field(chat, "reasoning"),
            "calls": tuple(map(_from_call, chat.get("tool_calls") or ())),
            "call_id": _string_field(chat, "tool_call_id"),
            "name": _string_field(chat, "name") if role == "tool" else "",
        }
    )


def _from_call(call: Mapping[str, Any]) -> ToolCall:
    """Return the record of a call in OpenAI's form or a flat form (id, name, arguments). Raises ValidationError."""
    function = call.get("function", call)
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=_string_field(call, "id"), name=function.get("name"), arguments=arguments)


def text_of(content: object, lost: Counter[str]) -> str:
    """Join the text parts of a message's content. `lost` counts the other parts. Raises NotReadable."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise NotReadable(f"a message's content is a {type(content).__name__}")
    texts: list[str] = []
    for part in content:
        part_type = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            texts.append(text)
        else:
            lost[f"a part of type {part_type}"] += 1
    return "\n".join(texts)


def to_tool(tool: Tool) -> dict[str, Any]:
    """Return the tool in OpenAI's form."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def from_tool(tool: Mapping[str, Any]) -> Tool:
    """Return the record of a tool in OpenAI's form, a flat form, or MCP's (`inputSchema`). Raises ValidationError."""
    function = tool.get("function", tool)
    schema = function.get("parameters", function.get("inputSchema")) or {}
    return Tool(name=function.get("name"), description=_string_field(function, "description"), parameters=schema)


def expect_list(value: object, name: str) -> Sequence[Any]:
    """Return `value`. Raises NotReadable if it is not a list."""
    if not isinstance(value, list):
        raise NotReadable(f"{name} {'is missing' if value is None else 'must be a list'}")
    return value


def split_into_steps(messages: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[TraceStep, ...]]:
    """Return the messages before the first assistant message, and one step per assistant message. The messages after an
    assistant message are the result of its step. Assistant messages in a few-shot prompt also become steps, because
    nothing in a list of messages distinguishes them."""
    prompt: list[Message] = []
    steps: list[tuple[Message, list[Message]]] = []
    for message in messages:
        if message.role == "assistant":
            steps.append((message, []))
        elif steps:
            _, result = steps[-1]
            result.append(message)
        else:
            prompt.append(message)
    return tuple(prompt), tuple(
        TraceStep(action=action, result=tuple(result) if result or not action.calls else None)
        for action, result in steps
    )


def last_conversation(trace: Trace) -> list[dict[str, Any]]:
    """Return the last step's state, action and result as chat messages, for formats that store one list."""
    messages = list(trace.state(len(trace.steps) - 1) if trace.steps else trace.prompt)
    for step in trace.steps[-1:]:
        messages += (step.action, *(step.result or ()))
    return [to_chat(message) for message in messages]


def _string_field(chat: Mapping[str, Any], name: str) -> str:
    """Return a field of a JSON object, or an empty string if the field is not a string."""
    value = chat.get(name)
    return value if isinstance(value, str) else ""
