"""Anthropic's messages API: one sample per request, no log-probabilities, the system prompt apart from the turns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from oven_llm.providers.conversation import Completion, Conversation, Finish, Sample
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.sdk_client import (
    RETRIES,
    failure_of,
    model_name,
    parsed,
    silence_request_logs,
    token_count,
    watched_client,
)
from oven_llm.providers.terms import Terms
from oven_llm.providers.usage import Usage
from oven_runs.settings.judge_providers import ModelEndpoint
from oven_runs.traces.records import Message, ToolCall

if TYPE_CHECKING:
    from anthropic.types import Message as Response

FINISHES: Final[dict[str, Finish]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "other",
    "refusal": "refusal",
}
MAX_TEMPERATURE: Final = 1.0
"""The API refuses more; others accept up to 2."""
_FORBIDDEN_IN_IDS: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""Characters that the API refuses in a call's id. Traces of other models have ids with dots and colons."""


class AnthropicMessages:
    """A model behind this API."""

    returns_several = False

    def __init__(self, endpoint: ModelEndpoint, key: str) -> None:
        """`endpoint.base_url` comes without /v1."""
        import anthropic

        silence_request_logs()
        self._model, self._key, self._sdk = endpoint.model, key, anthropic
        self._client = anthropic.AsyncAnthropic(
            api_key=key,
            base_url=endpoint.base_url,
            max_retries=RETRIES,
            http_client=watched_client(anthropic),
            open_telemetry=False,  # whoever makes the call traces it, for both SDKs alike
        )

    async def complete(self, conversation: Conversation, samples: int, terms: Terms, attempt_s: float) -> Completion:
        """See `ModelApi.complete`; it returns one sample."""
        body = request_body(conversation, terms)
        try:
            # The SDK walks through arguments of its own in every call, which costs CPU time; it does not look into
            # extra_body.
            response: object = await self._client.messages.create(
                model=self._model, messages=[], max_tokens=conversation.max_tokens, timeout=attempt_s, extra_body=body
            )
        except Exception as error:
            raise failure_of(error, self._sdk) from None
        from anthropic.types import Message as Response

        return parsed(response, Response, self._completion)

    async def close(self) -> None:
        await self._client.close()

    def _completion(self, response: Response) -> Completion:
        return Completion((_sample(response),), _usage(response), model_name(response.model, self._key))


def request_body(conversation: Conversation, terms: Terms) -> dict[str, Any]:
    """The request without the model's name and max_tokens. Raises ModelFailure for a temperature above 1.

    Only a conversation that will be sent again is cached: writing to the cache costs a quarter more than plain input.
    """
    if conversation.temperature is not None and conversation.temperature > MAX_TEMPERATURE:
        raise ModelFailure("bad_request", f"the temperature is {conversation.temperature:g}; this API takes 0 to 1")
    turns = _turns([message for message in conversation.messages if message.role != "system"])
    body: dict[str, Any] = {"messages": turns}
    if system := conversation.text_of("system"):
        body["system"] = system
    if conversation.schema is not None and terms.schema == "strict":
        body["output_config"] = {"format": {"type": "json_schema", "schema": conversation.schema}}
    if conversation.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in conversation.tools
        ]
    if conversation.temperature is not None:
        body["temperature"] = conversation.temperature
    if conversation.stop:
        body["stop_sequences"] = list(conversation.stop)
    last = turns[-1]
    if conversation.reused:
        last["content"][-1]["cache_control"] = {"type": "ephemeral"}
    elif len(last["content"]) == 1:
        last["content"] = last["content"][0]["text"]  # a single question needs no blocks
    return body


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Merge neighbouring messages: turns alternate, and all results of a turn's calls stand in one turn."""
    return [
        {"role": role, "content": [block for message in group for block in _blocks(message)]}
        for role, group in groupby(messages, lambda message: "assistant" if message.role == "assistant" else "user")
    ]


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        call_id = _FORBIDDEN_IN_IDS.sub("_", message.call_id)
        return [{"type": "tool_result", "tool_use_id": call_id, "content": message.content}]
    blocks: list[dict[str, Any]] = []
    if message.content.strip() or not message.calls:  # the API refuses an empty text
        blocks.append({"type": "text", "text": message.content})
    return blocks + [
        {
            "type": "tool_use",
            "id": _FORBIDDEN_IN_IDS.sub("_", call.id),
            "name": call.name,
            "input": _input(call.arguments),
        }
        for call in message.calls
    ]


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object, which the API requires. Text that is not an object is wrapped in one."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _sample(response: Response) -> Sample:
    """Raises AttributeError, TypeError or ValueError for a malformed response."""
    texts, calls = [], []
    for block in response.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "tool_use":
            arguments = json.dumps(block.input, ensure_ascii=False)
            calls.append(ToolCall(id=str(block.id), name=str(block.name), arguments=arguments))
    reason = response.stop_reason if response.stop_reason in FINISHES else "other"
    return Sample("".join(texts), tuple(calls), FINISHES.get(reason, "other"), reason)


def _usage(response: Response) -> Usage | None:
    try:
        usage = response.usage
        cached = token_count(usage.cache_read_input_tokens or 0)
        written = token_count(usage.cache_creation_input_tokens or 0)
        # This API's `input_tokens` does not include tokens that went through the cache.
        fresh = token_count(usage.input_tokens)
        return Usage(fresh + cached + written, token_count(usage.output_tokens), cached, written)
    except (AttributeError, TypeError, ValueError):
        return None
