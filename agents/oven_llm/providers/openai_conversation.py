"""Conversations in the form of OpenAI's chat completions. Pure, but for ids that an endpoint left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oven_llm.providers.conversation import Conversation, Finish, Message, Sample, Tool, ToolCall

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage
    from openai.types.chat.chat_completion import Choice

_FINISHED: Final[dict[str, Finish]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
}


def request_body(asked: Conversation, samples: int, limit_as: str) -> dict[str, Any]:
    """What is posted, but for the model's name. `limit_as`: what the endpoint calls the most tokens of an answer."""
    body: dict[str, Any] = {"messages": [_message(one) for one in asked.messages], limit_as: asked.max_tokens}
    if samples > 1:
        body["n"] = samples
    if asked.tools:
        body["tools"] = [_tool(one) for one in asked.tools]
    if asked.temperature is not None:
        body["temperature"] = asked.temperature
    if asked.stop:
        body["stop"] = list(asked.stop)
    return body


def samples_of(answer: ChatCompletion) -> tuple[Sample, ...]:
    """One a choice. Raises AttributeError, LookupError, TypeError or ValueError for what is not the API's."""
    if not answer.choices:
        raise ValueError
    return tuple(_sample(choice) for choice in answer.choices)


def _sample(choice: Choice) -> Sample:
    said = choice.message
    if said.refusal:
        return Sample(str(said.refusal), (), "refusal")
    text = said.content or ""
    if not isinstance(text, str):
        raise TypeError
    return Sample(text, _calls(said), _FINISHED.get(choice.finish_reason, "other"))


def _calls(said: ChatCompletionMessage) -> tuple[ToolCall, ...]:
    found = []
    for number, call in enumerate(said.tool_calls or ()):
        if call.type != "function":
            raise ValueError
        name, arguments = call.function.name, call.function.arguments
        if not (isinstance(name, str) and isinstance(arguments, str)):
            raise TypeError
        found.append(ToolCall(str(call.id or f"call_{number}"), name, arguments))
    return tuple(found)


def _message(one: Message) -> dict[str, Any]:
    if one.role == "tool":
        return {"role": "tool", "tool_call_id": one.call_id, "content": one.content}
    if not one.calls:
        return {"role": one.role, "content": one.content}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in one.calls
    ]
    return {"role": one.role, "content": one.content or None, "tool_calls": calls}


def _tool(one: Tool) -> dict[str, Any]:
    function = {"name": one.name, "description": one.description, "parameters": one.parameters}
    return {"type": "function", "function": function}
