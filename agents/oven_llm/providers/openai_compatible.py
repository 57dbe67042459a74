"""Any endpoint that speaks OpenAI's chat completions: OpenAI, DeepSeek, xAI, vLLM, llama.cpp, … by `base_url`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from oven_llm.providers.conversation import Conversation, Draw
from oven_llm.providers.openai_conversation import request_body, samples_of
from oven_llm.providers.provider import Answer, Logprobs, Outcome, Question, TokenLogprob
from oven_llm.providers.sampling import Samples
from oven_llm.providers.sdk_client import RETRIES, count, failure_of, quieten, read, watched_client
from oven_llm.providers.terms import AgreedTerms, Terms
from oven_llm.providers.usage import Usage, cost_usd
from oven_runs.settings.judge_providers import ModelEndpoint

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob

_Read = TypeVar("_Read")
OPENAI_HOST: Final = "api.openai.com"
_FINISHED = ("stop", "length", "tool_calls", "content_filter", "function_call")
_OUTCOMES: dict[str, Outcome] = {"length": "truncated", "content_filter": "refusal"}


class OpenAI(Samples):
    draws_together = True

    def __init__(self, asked: ModelEndpoint, terms: AgreedTerms, key: str) -> None:
        """The address ends in /v1, or in what the endpoint has there."""
        import openai

        quieten()
        self.asked, self.terms = asked, terms
        self.name, self.model = asked.known_as, asked.model
        self._key = key
        self._sdk = openai
        self._client = openai.AsyncOpenAI(
            api_key=key, base_url=asked.base_url, max_retries=RETRIES, http_client=watched_client(openai)
        )
        if urlsplit(asked.base_url).hostname != OPENAI_HOST:
            # The SDK takes them from OPENAI_ORG_ID and OPENAI_PROJECT_ID, whatever the address.
            self._client.organization = self._client.project = None

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        return await self.terms.ask(partial(self._ask, question, timeout_s))

    async def draw(self, conversation: Conversation, samples: int, attempt_s: float) -> Draw:
        return await self._post(request_body(conversation, samples, self.asked.limit_as), attempt_s, self._read_draw)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, question: Question, timeout_s: float, terms: Terms) -> Answer:
        # What the SDK is given as arguments of their own it walks through by its types, which takes a third of a call's
        # CPU time.
        body: dict[str, Any] = {
            "messages": [{"role": "system", "content": question.system}, {"role": "user", "content": question.user}],
            self.asked.limit_as: question.max_tokens,
        }
        if terms.schema == "strict":
            wanted = {"name": "verdicts", "schema": question.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        elif terms.schema == "json_object":
            body["response_format"] = {"type": "json_object"}
        if terms.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": terms.top_logprobs}
        return await self._post(body, timeout_s, self._read)

    async def _post(self, body: dict[str, Any], timeout_s: float, reader: Callable[[ChatCompletion], _Read]) -> _Read:
        try:
            answer: object = await self._client.chat.completions.create(
                model=self.model, messages=[], timeout=timeout_s, extra_body=body
            )
        except Exception as error:
            raise failure_of(error, self._sdk) from None
        from openai.types.chat import ChatCompletion

        found: _Read = read(answer, ChatCompletion, reader)
        return found

    def _read_draw(self, answer: ChatCompletion) -> Draw:
        usage = _usage(answer)
        return Draw(samples_of(answer), usage, cost_usd(self.asked, [usage]), self._called(answer))

    def _called(self, answer: ChatCompletion) -> str:
        return "" if self._key in str(answer.model) else str(answer.model)[:100]

    def _read(self, answer: ChatCompletion) -> Answer:
        choice = answer.choices[0]
        text, refused = choice.message.content, bool(choice.message.refusal)
        finish = choice.finish_reason if choice.finish_reason in _FINISHED else "other"
        return Answer(
            text=text if isinstance(text, str) else "",
            outcome="refusal" if refused else _OUTCOMES.get(finish, "complete"),
            finish_reason=finish,
            model=self._called(answer),
            usage=_usage(answer),
            logprobs=_logprobs(choice),
        )


def _logprobs(choice: Choice) -> Logprobs | None:
    """None where there are none, or they are not what the API promises: they never spoil a verdict."""
    try:
        if choice.logprobs is None or not choice.logprobs.content:
            return None
        return Logprobs(
            tuple(
                TokenLogprob(
                    token.token,
                    _data(token),
                    _finite(token.logprob),
                    tuple((other.token, _finite(other.logprob)) for other in token.top_logprobs or ()),
                    tuple(_data(other) for other in token.top_logprobs or ()),
                )
                for token in choice.logprobs.content
            )
        )
    except (AttributeError, TypeError, ValueError):
        return None


def _data(token: ChatCompletionTokenLogprob | TopLogprob) -> bytes:
    """Raises TypeError or ValueError. The API gives no bytes for marks; other servers give none at all."""
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def _finite(value: float) -> float:
    """Raises TypeError or ValueError. OpenAI writes −9999 for what it did not compute."""
    if not math.isfinite(value) or value > 1e-6:
        raise ValueError
    return float(value)


def _usage(answer: ChatCompletion) -> Usage | None:
    if answer.usage is None:
        return None
    try:
        details = getattr(answer.usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        return Usage(count(answer.usage.prompt_tokens), count(answer.usage.completion_tokens), count(cached))
    except (AttributeError, TypeError, ValueError):
        return None
