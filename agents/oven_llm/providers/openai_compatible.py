"""Client for OpenAI's chat completions API, which DeepSeek, xAI, vLLM, llama.cpp and others also implement."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from oven_llm.providers import sdk_client
from oven_llm.providers.conversation import Conversation, Finish, ModelReply, TokenLogprob
from oven_llm.providers.optional_features import Terms
from oven_llm.providers.usage import USAGE_ADAPTER, Usage
from oven_runs.settings.judge_providers import ModelEndpoint

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob

OPENAI_HOST: Final = "api.openai.com"
FINISH_BY_REASON: Final[dict[str, Finish]] = {"stop": "stop", "length": "length", "content_filter": "refusal"}


class ChatCompletions:
    """A client for one model of a chat completions API."""

    def __init__(self, endpoint: ModelEndpoint, key: str) -> None:
        """`endpoint.base_url` ends in /v1 or the server's equivalent."""
        import openai

        sdk_client.silence_request_logs()
        self._endpoint, self._key, self._sdk = endpoint, key, openai
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=endpoint.base_url,
            max_retries=sdk_client.MAX_RETRIES,
            http_client=sdk_client.create_tallying_client(openai),
        )
        if urlsplit(endpoint.base_url).hostname != OPENAI_HOST:
            # Otherwise the SDK would send OPENAI_ORG_ID and OPENAI_PROJECT_ID to the other address.
            self._client.organization = self._client.project = None

    async def complete(self, conversation: Conversation, terms: Terms, attempt_s: float) -> ModelReply:
        """See `ModelApi.complete`."""
        body = build_body(conversation, terms, self._endpoint.token_limit_field)
        try:
            # The SDK spends a third of its CPU time on inspecting its arguments. It does not inspect extra_body.
            response: object = await self._client.chat.completions.create(
                model=self._endpoint.model, messages=[], timeout=attempt_s, extra_body=body
            )
        except Exception as error:
            raise sdk_client.convert_error(error, self._sdk) from None
        from openai.types.chat import ChatCompletion

        return sdk_client.parse_response(response, ChatCompletion, self._convert_response)

    async def close(self) -> None:
        await self._client.close()

    def _convert_response(self, response: ChatCompletion) -> ModelReply:
        """Convert a response. Raises AttributeError, LookupError, TypeError or ValueError if it is malformed."""
        choice = response.choices[0]
        reason = choice.finish_reason if choice.finish_reason in FINISH_BY_REASON else "other"
        refusal, text = choice.message.refusal, choice.message.content or ""
        if not isinstance(text, str):
            raise TypeError
        return ModelReply(
            text=str(refusal or text),
            finish="refusal" if refusal else FINISH_BY_REASON.get(reason, "other"),
            finish_reason=reason,
            logprobs=None if refusal else _parse_logprobs(choice),
            model=sdk_client.clean_model_name(response.model, self._key),
            usage=_parse_usage(response),
        )


def build_body(conversation: Conversation, terms: Terms, token_limit_field: str) -> dict[str, Any]:
    """Return the request without the model's name. The endpoint expects the token limit in `token_limit_field`."""
    body: dict[str, Any] = {
        "messages": [dict(message) for message in conversation.messages],
        token_limit_field: conversation.max_tokens,
    }
    if conversation.schema is not None and terms.schema == "strict":
        schema = {"name": "verdicts", "schema": conversation.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif conversation.schema is not None and terms.schema == "json_object":
        body["response_format"] = {"type": "json_object"}
    if terms.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": terms.top_logprobs}
    if conversation.temperature is not None:
        body["temperature"] = conversation.temperature
    return body


def _parse_logprobs(choice: Choice) -> tuple[TokenLogprob, ...] | None:
    """Return the log-probabilities; None if they are missing or malformed, which does not invalidate the reply."""
    try:
        if choice.logprobs is None or not choice.logprobs.content:
            return None
        logprobs = []
        for token in choice.logprobs.content:
            alternatives = token.top_logprobs or ()
            top = tuple((alternative.token, _check_logprob(alternative.logprob)) for alternative in alternatives)
            top_data = tuple(_get_token_bytes(alternative) for alternative in alternatives)
            data, logprob = _get_token_bytes(token), _check_logprob(token.logprob)
            logprobs.append(TokenLogprob(token.token, data, logprob, top, top_data))
        return tuple(logprobs)
    except (AttributeError, TypeError, ValueError):
        return None


def _get_token_bytes(token: ChatCompletionTokenLogprob | TopLogprob) -> bytes:
    """Return a token's bytes. OpenAI omits them for special tokens, and some servers for all tokens. Raises TypeError
    or ValueError if they are malformed."""
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def _check_logprob(value: float) -> float:
    """Return a log-probability; OpenAI sends −9999 if it was not computed. Raises TypeError or ValueError."""
    if not math.isfinite(value) or value > 1e-6:  # it may exceed 0 by a rounding error
        raise ValueError
    return float(value)


def _parse_usage(response: ChatCompletion) -> Usage | None:
    if response.usage is None:
        return None
    try:
        details = getattr(response.usage, "prompt_tokens_details", None)
        cached_tokens = getattr(details, "cached_tokens", None) or 0
        counts = {"input_tokens": response.usage.prompt_tokens, "output_tokens": response.usage.completion_tokens}
        return USAGE_ADAPTER.validate_python(counts | {"cached_tokens": cached_tokens})
    except (AttributeError, ValueError):
        return None
