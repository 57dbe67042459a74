"""Several answers of one model, whether its API draws them in one request or has to be asked again and again."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from oven_llm.providers.conversation import Answer, Conversation, ConversationFailure, Draw, Message, Tool
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Ledger, Usage, current, opened

ATTEMPT_SHARE = 2 / 3
"""Of a request's time for one HTTP attempt: an answer that got lost leaves a third for another."""
AROUND_TOKENS = 512
"""Tokens that an API may put around the texts of a question: roles, separators, its words for the schema."""
AROUND_MESSAGE = 16
"""The same around each message, tool or call."""


class Samples(ABC):
    """`converse` of a provider (`conversation.Conversing`), over its single requests."""

    draws_together: bool
    """The API draws several samples in one request, as far as is known."""

    @abstractmethod
    async def draw(self, conversation: Conversation, samples: int, attempt_s: float) -> Draw:
        """One request; `attempt_s` is for each HTTP attempt. It may bring fewer samples. Raises ModelFailure."""

    async def converse(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        samples: int = 1,
        max_tokens: int,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        timeout_s: float,
    ) -> list[Answer]:
        """As `Conversing.converse`."""
        if samples < 1:
            raise ValueError(f"samples is {samples}; give 1 or more")
        reused = samples > 1 or any(message.role == "assistant" for message in messages)
        asked = Conversation(tuple(messages), max_tokens, tuple(tools), temperature, tuple(stop), reused)
        found: list[Answer] = []
        try:
            while left := samples - len(found):
                if left > 1 and self.draws_together:
                    found += (await self._together(asked, left, timeout_s))[:left]
                elif not found:
                    found += await self._drawn(asked, 1, timeout_s)
                else:
                    await self._apart(asked, left, timeout_s, found)
        except ModelFailure as failure:
            raise ConversationFailure(failure, found) from None
        return found

    async def _together(self, asked: Conversation, samples: int, timeout_s: float) -> list[Answer]:
        """At least one. Some APIs refuse a request for several, others give one all the same."""
        try:
            found = await self._drawn(asked, samples, timeout_s)
        except ModelFailure as failure:
            if failure.kind != "bad_request":
                raise
            found = await self._drawn(asked, 1, timeout_s)  # which is refused as well, if that was not the reason
        if len(found) < samples:
            self.draws_together = False
        return found

    async def _apart(self, asked: Conversation, samples: int, timeout_s: float, found: list[Answer]) -> None:
        """Adds one each of `samples` requests. Raises the first failure when all have ended."""
        ended = await asyncio.gather(
            *(self._drawn(asked, 1, timeout_s) for _ in range(samples)), return_exceptions=True
        )
        failed: list[BaseException] = []
        for one in ended:
            if isinstance(one, BaseException):
                failed.append(one)
            else:
                found += one
        if failed:
            raise failed[0]

    async def _drawn(self, asked: Conversation, samples: int, timeout_s: float) -> list[Answer]:
        outer, attempts, started = current(), Ledger(), time.perf_counter()
        try:
            with opened(attempts):
                async with asyncio.timeout(timeout_s):
                    draw = await self.draw(asked, samples, ATTEMPT_SHARE * timeout_s)
        except TimeoutError:
            raise ModelFailure(attempts.last or "timeout", f"no answer within {timeout_s:g} s") from None
        finally:
            if outer is not None:
                outer.absorb_attempts(attempts)
        return _shared(draw, asked, time.perf_counter() - started)


def greatest(asked: Conversation, samples: int) -> Usage:
    """The most that one request can take: a token holds at least one byte of UTF-8."""
    texts = [message.content for message in asked.messages]
    calls = [call for message in asked.messages for call in message.calls]
    texts += [part for call in calls for part in (call.id, call.name, call.arguments)]
    texts += [part for tool in asked.tools for part in (tool.name, tool.description, repr(tool.parameters))]
    parts = len(asked.messages) + len(calls) + len(asked.tools)
    size = sum(len(text.encode(errors="replace")) for text in texts) + AROUND_TOKENS + AROUND_MESSAGE * parts
    return Usage(size, samples * asked.max_tokens, written_tokens=size)


def _shared(draw: Draw, asked: Conversation, seconds: float) -> list[Answer]:
    usage = draw.usage or greatest(asked, len(draw.samples))
    count = len(draw.samples)
    tokens_in, cached, out = (
        _shares(tokens, count) for tokens in (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
    )
    return [
        Answer(
            text=sample.text,
            calls=sample.calls,
            tokens_in=tokens_in[number],
            tokens_cached=cached[number],
            tokens_out=out[number],
            usd=None if draw.usd is None else draw.usd / count,
            seconds=seconds,
            model=draw.model,
            finish=sample.finish,
            counted=draw.usage is not None,
        )
        for number, sample in enumerate(draw.samples)
    ]


def _shares(tokens: int, count: int) -> list[int]:
    """Whole numbers that add up to `tokens`."""
    each, more = divmod(tokens, count)
    return [each + (number < more) for number in range(count)]
