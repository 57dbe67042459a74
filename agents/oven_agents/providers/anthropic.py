"""Anthropic's messages API: no temperature argument, no log-probabilities, structured output without ranges."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from oven_agents.providers.provider import Answer, Outcome, Question
from oven_agents.providers.sdk_client import RETRIES, count, failure_of, quieten, read, watched_client
from oven_agents.providers.terms import AgreedTerms, Terms
from oven_agents.providers.usage import Usage
from oven_controller.settings.judge_providers import ModelEndpoint

if TYPE_CHECKING:
    from anthropic.types import Message

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


class Anthropic:
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
        options: dict[str, Any] = {}
        if terms.schema == "strict":
            # As an argument of its own the SDK would walk through it in each call, which costs CPU time.
            options["extra_body"] = {"output_config": {"format": {"type": "json_schema", "schema": question.schema}}}
        try:
            answer: object = await self._client.messages.create(
                model=self.model,
                system=question.system,
                messages=[{"role": "user", "content": question.user}],
                max_tokens=question.max_tokens,
                timeout=timeout_s,
                **options,
            )
        except Exception as error:
            raise failure_of(error, self._sdk) from None
        from anthropic.types import Message

        found: Answer = read(answer, Message, self._read)
        return found

    async def close(self) -> None:
        await self._client.close()

    def _read(self, answer: Message) -> Answer:
        text = "".join(block.text for block in answer.content if block.type == "text")
        finish = answer.stop_reason if answer.stop_reason in _STOPPED else "other"
        return Answer(
            text=text,
            outcome=_OUTCOMES.get(finish, "complete"),
            finish_reason=finish,
            model="" if self._key in str(answer.model) else str(answer.model)[:100],
            usage=_usage(answer),
        )


def _usage(answer: Message) -> Usage | None:
    try:
        usage = answer.usage
        cached = count(usage.cache_read_input_tokens or 0)
        written = count(usage.cache_creation_input_tokens or 0)
        # Here `input_tokens` leaves out what went through the cache.
        return Usage(count(usage.input_tokens) + cached + written, count(usage.output_tokens), cached)
    except (AttributeError, TypeError, ValueError):
        return None
