"""Where a synchronous agent leaves a question for its companion, and finds the answer at a later tick."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from oven_llm.providers.failures import ModelFailure

Asked = TypeVar("Asked")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Answered(Generic[Asked, Found]):
    """A question and its answer, or why there is none."""

    asked: Asked
    tick: int
    """The newest tick that the question knew."""
    found: Found | ModelFailure


class Desk(Generic[Asked, Found]):
    """One question is out at a time. `put` and `take` wait for nothing; `wanted` and `answer` are the companion's."""

    def __init__(self) -> None:
        self.asked_tick = -1
        """Of the newest question; −1: none was put."""
        self._out: tuple[Asked, int] | None = None
        self._back: Answered[Asked, Found] | None = None
        self.answered = asyncio.Event()
        """Set while an answer lies there."""
        self._news = asyncio.Event()

    @property
    def free(self) -> bool:
        """Whether a question may be put."""
        return self._out is None and self._back is None

    def put(self, asked: Asked, tick: int) -> None:
        self._out, self.asked_tick = (asked, tick), tick
        self._news.set()

    def take(self) -> Answered[Asked, Found] | None:
        """The answer, once."""
        back, self._back = self._back, None
        self.answered.clear()
        return back

    async def wanted(self) -> Asked:
        """The next question, once it is there."""
        await self._news.wait()
        self._news.clear()
        assert self._out is not None
        return self._out[0]

    def answer(self, found: Found | ModelFailure) -> None:
        assert self._out is not None
        (asked, tick), self._out = self._out, None
        self._back = Answered(asked, tick, found)
        self.answered.set()


def counted(counts: Mapping[str, int]) -> str:
    """ "auth 2, timeout 1"; "none"."""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()) if count) or "none"
