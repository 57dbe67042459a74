"""Passes questions from an agent to its companion coroutine, so that votes never wait for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from oven_llm.providers.failures import ModelFailure

Question = TypeVar("Question")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Settled(Generic[Question, Result]):
    """A question with its result, or the reason for a missing result."""

    question: Question
    tick: int
    """The newest tick when the question was asked."""
    result: Result | ModelFailure


class Desk(Generic[Question, Result]):
    """A queue with one slot: the agent posts questions and collects answers from its companion."""

    def __init__(self) -> None:
        self.posted_tick = -1
        """Tick of the newest question; −1: there was none."""
        self._posted: tuple[Question, int] | None = None
        self._settled: Settled[Question, Result] | None = None
        self.ready = asyncio.Event()
        """Set while a result waits to be collected."""
        self._news = asyncio.Event()

    @property
    def free(self) -> bool:
        """Whether a question may be posted."""
        return self._posted is None and self._settled is None

    def is_due(self, tick: int, every: int) -> bool:
        """Return whether a question may be posted, `every` ticks or more after the newest one."""
        return self.free and (self.posted_tick < 0 or tick >= self.posted_tick + every)

    def post(self, question: Question, tick: int) -> None:
        self._posted, self.posted_tick = (question, tick), tick
        self._news.set()

    def collect(self) -> Settled[Question, Result] | None:
        """Return the result once, or None without a result."""
        settled, self._settled = self._settled, None
        self.ready.clear()
        return settled

    async def next_question(self) -> Question:
        """Wait for the next question."""
        await self._news.wait()
        self._news.clear()
        assert self._posted is not None
        return self._posted[0]

    def settle(self, result: Result | ModelFailure) -> None:
        assert self._posted is not None
        (question, tick), self._posted = self._posted, None
        self._settled = Settled(question, tick, result)
        self.ready.set()

    async def serve(self, answer: Callable[[Question], Awaitable[Result]]) -> None:
        """Answer one question after another, until cancelled."""
        while True:
            question = await self.next_question()
            try:
                self.settle(await answer(question))
            except ModelFailure as failure:
                self.settle(failure)
            except Exception as error:  # a bug; its text may contain a prompt
                self.settle(ModelFailure("internal", type(error).__name__))


def counted(counts: Mapping[str, int]) -> str:
    """Counts as text, such as "auth 2, timeout 1"; "none" if there are none."""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()) if count) or "none"
