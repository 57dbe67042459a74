"""Passes questions from an agent to its companion coroutine, so that votes never wait for a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from oven_llm.providers.failures import ModelFailure

Question = TypeVar("Question")
Result = TypeVar("Result")


@dataclass(frozen=True)
class AnsweredQuestion(Generic[Question, Result]):
    """A question with its result or its failure."""

    question: Question
    tick: int
    """The tick at which the question was posted."""
    result: Result | ModelFailure


class QuestionSlot(Generic[Question, Result]):
    """A slot for one question. The agent posts a question and later collects the result from its companion."""

    def __init__(self) -> None:
        self.posted_tick = -1
        """Tick of the latest question; −1 before the first."""
        self.ready = asyncio.Event()
        """Set while a result is waiting to be collected."""
        self._pending: tuple[Question, int] | None = None  # a question and its tick
        self._answer: AnsweredQuestion[Question, Result] | None = None
        self._question_posted = asyncio.Event()

    @property
    def is_free(self) -> bool:
        """Whether the agent may post a question."""
        return self._pending is None and self._answer is None

    def is_due(self, tick: int, interval: int) -> bool:
        """Return whether the slot is free and the latest question was posted at least `interval` ticks ago."""
        return self.is_free and (self.posted_tick < 0 or tick >= self.posted_tick + interval)

    def post(self, question: Question, tick: int) -> None:
        self._pending = (question, tick)
        self.posted_tick = tick
        self._question_posted.set()

    def collect(self) -> AnsweredQuestion[Question, Result] | None:
        """Return the answered question and free the slot. Return None if there is no result yet."""
        answer, self._answer = self._answer, None
        self.ready.clear()
        return answer

    async def next_question(self) -> Question:
        """Wait for the next question and return it."""
        await self._question_posted.wait()
        self._question_posted.clear()
        assert self._pending is not None
        question, _ = self._pending
        return question

    def set_result(self, result: Result | ModelFailure) -> None:
        assert self._pending is not None
        question, tick = self._pending
        self._answer = AnsweredQuestion(question, tick, result)
        self._pending = None
        self.ready.set()

    async def serve(self, answer: Callable[[Question], Awaitable[Result]]) -> None:
        """Answer each posted question with `answer`, until cancelled."""
        while True:
            question = await self.next_question()
            try:
                self.set_result(await answer(question))
            except ModelFailure as failure:
                self.set_result(failure)
            except Exception as error:  # a bug; the message may quote a prompt
                self.set_result(ModelFailure("internal", type(error).__name__))
