"""Chat messages as OpenAI's API and Hugging Face's templates have them, to and from ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oven_runs.traces.records import Message, Tool, ToolCall, TraceStep

ROLES = {"developer": "system", "function": "tool"}
"""Other names of roles."""


class NotReadable(ValueError):
    """A row has not the form that it should have; the message says where."""


def to_chat(message: Message) -> dict[str, Any]:
    """An OpenAI chat message."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.call_id:
        made["tool_call_id"] = message.call_id
    if message.name:
        made["name"] = message.name
    return made


def to_template(message: Message) -> dict[str, Any]:
    """As Hugging Face's chat templates take it: without ids, and with a call's arguments as the object that they are.
    Arguments that are not JSON stay text."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.calls:
        made["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": _parsed(call.arguments)}}
            for call in message.calls
        ]
    if message.role == "tool" and message.name:
        made["name"] = message.name
    return made


def from_chat(said: object, lost: Counter[str]) -> Message:
    """Ours. `lost` counts what a message of ours has no place for, by kind. Raises NotReadable."""
    if not isinstance(said, Mapping):
        raise NotReadable(f"a message is a {type(said).__name__}, and must be an object")
    role = said.get("role")
    role = ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ("system", "user", "assistant", "tool"):
        raise NotReadable(f"a message has the role {role!r}, which chat does not have")
    calls = said.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise NotReadable("tool_calls must be a list")
    return Message(
        role=role,
        content=text_of(said.get("content"), lost),
        reasoning=_text(said, "reasoning_content") or _text(said, "reasoning"),
        calls=tuple(from_call(call) for call in calls),
        call_id=_text(said, "tool_call_id"),
        name=_text(said, "name") if role == "tool" else "",
    )


def from_call(said: object) -> ToolCall:
    """A call in OpenAI's form or in a flat one ({id, name, arguments}); arguments that are an object are written as
    JSON. Raises NotReadable."""
    inner = said.get("function", said) if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise NotReadable("a tool call has no name")
    arguments = inner.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=_text(said, "id"), name=inner["name"], arguments=arguments)


def text_of(content: object, lost: Counter[str]) -> str:
    """The text of a message's content: parts that are text are joined, others counted. Raises NotReadable."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise NotReadable(f"a message's content is a {type(content).__name__}")
    texts: list[str] = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            texts.append(text)
        else:
            lost[f"a part of type {kind}"] += 1
    return "\n".join(texts)


def to_tool(tool: Tool) -> dict[str, Any]:
    """OpenAI's form of a tool."""
    described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": described}


def from_tool(said: object) -> Tool:
    """From OpenAI's form, a flat one, or MCP's (`inputSchema`). Raises NotReadable."""
    inner = said.get("function", said) if isinstance(said, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise NotReadable("a tool has no name")
    schema = inner.get("parameters", inner.get("inputSchema")) or {}
    if not isinstance(schema, dict):
        raise NotReadable(f"the parameters of the tool {inner['name']!r} must be an object")
    return Tool(name=inner["name"], description=_text(inner, "description"), parameters=schema)


def from_list(said: object, what: str) -> Sequence[Any]:
    """`said`, which must be a list. Raises NotReadable."""
    if not isinstance(said, list):
        raise NotReadable(f"{what} {'is missing' if said is None else 'must be a list'}")
    return said


def split(messages: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[TraceStep, ...]]:
    """The messages before the first of an assistant, and a step for each of those, with what follows it as its
    result. An assistant's message that was given as an example is taken for a step: a plain list does not tell."""
    prompt: list[Message] = []
    steps: list[tuple[Message, list[Message]]] = []
    for message in messages:
        if message.role == "assistant":
            steps.append((message, []))
        else:
            (steps[-1][1] if steps else prompt).append(message)
    made = tuple(
        TraceStep(action=action, result=tuple(result) if result or not action.calls else None)
        for action, result in steps
    )
    return tuple(prompt), made


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _text(said: Mapping[str, Any], name: str) -> str:
    found = said.get(name)
    return found if isinstance(found, str) else ""
