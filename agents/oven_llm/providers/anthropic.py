"""Anthropic's messages API: one sample a request, no log-probabilities, structured output without ranges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from oven_llm.providers.anthropic_conversation import request_body, sample_of
from oven_llm.providers.conversation import Conversation, Draw
from oven_llm.providers.provider import Answer, Outcome, Question
from oven_llm.providers.sampling import Samples
from oven_llm.providers.sdk_client import RETRIES, count, failure_of, quieten, read, watched_client
from oven_llm.providers.terms import AgreedTerms, Terms
from oven_llm.providers.usage import Usage, cost_usd
from oven_runs.settings.judge_providers import ModelEndpoint

if TYPE_CHECKING:
    from anthropic.types import Message

_Read = TypeVar("_Read")
_STOPPED = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)
_OUTCOMES: dict[str, Outcome] = {
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "refusal": "refusal",
}


class Anthropic(Samples):
    draws_together = False

    def __init__(self, asked: ModelEndpoint, terms: AgreedTerms, key: str) -> None:
        """The address comes without /v1."""
        import anthropic

        quieten()
        self.asked, self.terms = asked, terms
        self.name, self.model = asked.known_as, asked.model
        self._key = key
        self._sdk = anthropic
        self._client = anthropic.AsyncAnthropic(
            api_key=key,
            base_url=asked.base_url,
            max_retries=RETRIES,
            http_client=watched_client(anthropic),
            open_telemetry=False,  # both SDKs are traced alike, by whoever listens to CallRecord
        )

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        return await self.terms.ask(partial(self._ask, question, timeout_s))

    async def _ask(self, question: Question, timeout_s: float, terms: Terms) -> Answer:
        body: dict[str, Any] = {
            "system": question.system,
            "messages": [{"role": "user", "content": question.user}],
        }
        if terms.schema == "strict":
            body["output_config"] = {"format": {"type": "json_schema", "schema": question.schema}}
        return await self._post(body, question.max_tokens, timeout_s, self._read)

    async def draw(self, conversation: Conversation, samples: int, attempt_s: float) -> Draw:
        return await self._post(request_body(conversation), conversation.max_tokens, attempt_s, self._read_draw)

    async def _post(
        self, body: dict[str, Any], max_tokens: int, timeout_s: float, reader: Callable[[Message], _Read]
    ) -> _Read:
        try:
            # What the SDK is given as arguments of their own it walks through in each call, which costs CPU time.
            answer: object = await self._client.messages.create(
                model=self.model, messages=[], max_tokens=max_tokens, timeout=timeout_s, extra_body=body
            )
        except Exception as error:
            raise failure_of(error, self._sdk) from None
        from anthropic.types import Message

        found: _Read = read(answer, Message, reader)
        return found

    def _read_draw(self, answer: Message) -> Draw:
        usage = _usage(answer)
        return Draw((sample_of(answer),), usage, cost_usd(self.asked, [usage]), self._called(answer))

    def _called(self, answer: Message) -> str:
        return "" if self._key in str(answer.model) else str(answer.model)[:100]

    async def close(self) -> None:
        await self._client.close()

    def _read(self, answer: Message) -> Answer:
        text = "".join(block.text for block in answer.content if block.type == "text")
        finish = answer.stop_reason if answer.stop_reason in _STOPPED else "other"
        return Answer(
            text=text,
            outcome=_OUTCOMES.get(finish, "complete"),
            finish_reason=finish,
            model=self._called(answer),
            usage=_usage(answer),
        )


def _usage(answer: Message) -> Usage | None:
    try:
        usage = answer.usage
        cached = count(usage.cache_read_input_tokens or 0)
        written = count(usage.cache_creation_input_tokens or 0)
        # Here `input_tokens` leaves out what went through the cache.
        return Usage(count(usage.input_tokens) + cached + written, count(usage.output_tokens), cached, written)
    except (AttributeError, TypeError, ValueError):
        return None
