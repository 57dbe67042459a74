"""Client for Anthropic's messages API. The API has a separate field for the system prompt and no log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oven_llm.providers import sdk_client
from oven_llm.providers.conversation import Conversation, Finish, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.optional_features import Terms
from oven_llm.providers.usage import USAGE_ADAPTER, Usage
from oven_runs.settings.judge_providers import ModelEndpoint

if TYPE_CHECKING:
    from anthropic.types import Message as Response

FINISH_BY_REASON: Final[dict[str, Finish]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
MAX_TEMPERATURE: Final = 1.0
"""Maximum temperature that this API accepts. Other APIs accept temperatures up to 2."""


class AnthropicMessages:
    """A client for one model of Anthropic's messages API."""

    def __init__(self, endpoint: ModelEndpoint, key: str) -> None:
        """`endpoint.base_url` does not include /v1."""
        import anthropic

        sdk_client.silence_request_logs()
        self._model, self._key, self._sdk = endpoint.model, key, anthropic
        self._client = anthropic.AsyncAnthropic(
            api_key=key,
            base_url=endpoint.base_url,
            max_retries=sdk_client.MAX_RETRIES,
            http_client=sdk_client.create_tallying_client(anthropic),
            open_telemetry=False,  # the caller traces the calls of both SDKs
        )

    async def complete(self, conversation: Conversation, terms: Terms, attempt_s: float) -> ModelReply:
        """See `ModelApi.complete`."""
        body = build_body(conversation, terms)
        try:
            # The SDK inspects its arguments on every call, which costs CPU time. It does not inspect extra_body.
            response: object = await self._client.messages.create(
                model=self._model, messages=[], max_tokens=conversation.max_tokens, timeout=attempt_s, extra_body=body
            )
        except Exception as error:
            raise sdk_client.convert_error(error, self._sdk) from None
        from anthropic.types import Message as Response

        return sdk_client.parse_response(response, Response, self._convert_response)

    async def close(self) -> None:
        await self._client.close()

    def _convert_response(self, response: Response) -> ModelReply:
        """Convert a response. Raises AttributeError, TypeError or ValueError if it is malformed."""
        text = "".join(block.text for block in response.content if block.type == "text")
        reason = response.stop_reason if response.stop_reason in FINISH_BY_REASON else "other"
        finish = FINISH_BY_REASON.get(reason, "other")
        name, usage = sdk_client.clean_model_name(response.model, self._key), _parse_usage(response)
        return ModelReply(text, finish, reason, model=name, usage=usage)


def build_body(conversation: Conversation, terms: Terms) -> dict[str, Any]:
    """Return the request without the model's name and max_tokens. Raises ModelFailure for a temperature above 1. Only
    multi-turn conversations are cached, because writing to the cache costs 25 % more than uncached input."""
    if conversation.temperature is not None and conversation.temperature > MAX_TEMPERATURE:
        raise ModelFailure("bad_request", f"the temperature is {conversation.temperature:g}; this API accepts 0 to 1")
    turns: list[dict[str, Any]] = [dict(message) for message in conversation.messages if message["role"] != "system"]
    body: dict[str, Any] = {"messages": turns}
    if system := conversation.text_of("system"):
        body["system"] = system
    if conversation.schema is not None and terms.schema == "strict":
        body["output_config"] = {"format": {"type": "json_schema", "schema": conversation.schema}}
    if conversation.temperature is not None:
        body["temperature"] = conversation.temperature
    if conversation.is_multi_turn:
        text = {"type": "text", "text": turns[-1]["content"], "cache_control": {"type": "ephemeral"}}
        turns[-1]["content"] = [text]
    return body


def _parse_usage(response: Response) -> Usage | None:
    try:
        usage = response.usage
        cached_tokens, written_tokens = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        # This API's `input_tokens` does not include tokens that were read from the cache or written to it.
        input_tokens = usage.input_tokens + cached_tokens + written_tokens
        counts = {"input_tokens": input_tokens, "output_tokens": usage.output_tokens}
        cache_counts = {"cached_tokens": cached_tokens, "written_tokens": written_tokens}
        return USAGE_ADAPTER.validate_python(counts | cache_counts)
    except (AttributeError, TypeError, ValueError):
        return None
