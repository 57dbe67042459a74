"""Any endpoint that speaks OpenAI's chat completions: OpenAI, DeepSeek, xAI, vLLM, llama.cpp, … by `base_url`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oven_agents.judges.failures import JudgeFailure
from oven_agents.judges.providers.provider import Answer, Outcome, Question
from oven_agents.judges.providers.sdk_client import RETRIES, count, failure_of, quieten, read, watched_client
from oven_agents.judges.usage import Usage

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

_FINISHED = ("stop", "length", "tool_calls", "content_filter", "function_call")
_OUTCOMES: dict[str, Outcome] = {"length": "truncated", "content_filter": "refusal"}


class OpenAI:
    """Asks with a strict JSON Schema, and without one from then on if the endpoint refuses that but takes the rest."""

    name = "openai"

    def __init__(self, model: str, base_url: str, key: str) -> None:
        """`base_url` ends in /v1 (or what the endpoint has there); empty: OpenAI's own, or OPENAI_BASE_URL."""
        import openai

        quieten()
        self.model = model
        self._key = key
        self._sdk = openai
        self._client = openai.AsyncOpenAI(
            api_key=key, base_url=base_url or None, max_retries=RETRIES, http_client=watched_client(openai)
        )
        self._takes_schema: bool | None = None  # unknown until a call went well

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        if self._takes_schema is False:
            return await self._ask(question, timeout_s, schema=False)
        try:
            answer = await self._ask(question, timeout_s, schema=True)
        except JudgeFailure as failure:
            if failure.kind != "bad_request" or self._takes_schema:
                raise
            answer = await self._ask(question, timeout_s, schema=False)
            self._takes_schema = False
        else:
            self._takes_schema = True
        return answer

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, question: Question, timeout_s: float, *, schema: bool) -> Answer:
        # What the SDK is given as arguments of their own it walks through by its types, which takes a third of a call's
        # CPU time.
        body: dict[str, Any] = {
            "messages": [{"role": "system", "content": question.system}, {"role": "user", "content": question.user}]
        }
        if schema:
            wanted = {"name": "verdicts", "schema": question.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        try:
            answer: object = await self._client.chat.completions.create(
                model=self.model,
                messages=[],
                max_completion_tokens=question.max_tokens,
                timeout=timeout_s,
                extra_body=body,
            )
        except Exception as error:
            raise failure_of(error, self._sdk) from None
        from openai.types.chat import ChatCompletion

        found: Answer = read(answer, ChatCompletion, self._read)
        return found

    def _read(self, answer: ChatCompletion) -> Answer:
        choice = answer.choices[0]
        text, refused = choice.message.content, bool(choice.message.refusal)
        finish = choice.finish_reason if choice.finish_reason in _FINISHED else "other"
        return Answer(
            text=text if isinstance(text, str) else "",
            outcome="refusal" if refused else _OUTCOMES.get(finish, "complete"),
            finish_reason=finish,
            model="" if self._key in str(answer.model) else str(answer.model)[:100],
            usage=_usage(answer),
        )


def _usage(answer: ChatCompletion) -> Usage | None:
    if answer.usage is None:
        return None
    try:
        details = getattr(answer.usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        return Usage(count(answer.usage.prompt_tokens), count(answer.usage.completion_tokens), count(cached))
    except (AttributeError, TypeError, ValueError):
        return None
