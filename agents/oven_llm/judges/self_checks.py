"""A judge held against itself: a share of its groups is asked for again in reverse order, and old ones are asked for
again from time to time.

The questions are put after the group was answered, one at a time, and nothing waits for them: what is seen goes out
with a later answer. What they used is billed like any other (`aside`). Old groups are kept in memory only: a new
process, or another judge, collects them anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from oven_core.protocol.committee_requests import ScoreRequest
from oven_llm.judges import change_test
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Ledger, opened

log = logging.getLogger("oven.member")

OLD: Final = 16
"""Groups that are asked again: if a change moves them all, p is 2⁻¹⁶, and ten of them that move are enough."""
APART: Final = 4
"""Scored groups between two that are kept: of one batch they would be alike."""
WAITING: Final = 64
"""Questions that wait their turn at most; more are left out."""
TURNED: Final = 1e-9
"""Scores nearer than this are a tie, which has no order to turn."""

Ask = Callable[[ScoreRequest, Mapping[str, str], Ledger], Awaitable[dict[str, float]]]
"""(request, candidates in the order to show, ledger) → id → score. Raises ModelFailure."""


@dataclass(slots=True)
class _OldGroup:
    request: ScoreRequest
    candidates: dict[str, str]
    first: list[float]
    second: list[float] | None = None
    now: list[float] | None = None

    def of(self, scores: Mapping[str, float]) -> list[float]:
        return [scores[key] for key in self.candidates]


@dataclass(slots=True)
class Findings:
    """So far."""

    pairs: int = 0
    turned: int = 0
    p: float | None = None
    """Of the newest pass over the old groups."""
    changes: int = 0

    @property
    def flips(self) -> float | None:
        """Share of pairs that turned round."""
        return self.turned / self.pairs if self.pairs else None


@dataclass
class SelfChecks:
    """`swapped` is the share of groups that are asked for in reverse, and `every` how many scored groups lie between
    two passes over the old ones; 0: none."""

    ask: Ask
    swapped: float = 0.05
    every: int = 160
    aside: Ledger = field(default_factory=Ledger)
    """What the questions used and met; who reports it takes it out."""
    found: Findings = field(default_factory=Findings)
    _old: list[_OldGroup] = field(default_factory=list)
    _groups: int = 0
    _since: int = 0
    _waiting: deque[Callable[[], Awaitable[None]]] = field(default_factory=deque)
    _worker: asyncio.Task[None] | None = None
    _closed: bool = False

    def saw(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        """A group that was scored; `candidates` in the order in which they were shown, and no control among them."""
        self._groups += 1
        if self._closed or len(candidates) < 2:
            return
        if _drawn(request.group) < self.swapped:
            self._later(lambda: self._swap(request, candidates, dict(scores)))
        if self.every:
            self._keep(request, candidates, scores)

    async def idle(self) -> None:
        """Until no question waits."""
        if self._worker is not None:
            await self._worker

    async def close(self) -> None:
        """Nothing more is asked: another judge has the place, or the process ends."""
        self._closed = True
        self._waiting.clear()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def _keep(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        if len(self._old) < OLD:
            if self._groups % APART == 0:
                group = _OldGroup(request, dict(candidates), [])
                group.first = group.of(scores)
                self._old.append(group)
                if len(self._old) == OLD:
                    self._since = 0
                    for old in self._old:
                        self._later(lambda old=old: self._ask_again(old))  # type: ignore[misc]
            return
        self._since += 1
        if self._since >= self.every:
            self._since = 0
            for old in self._old:
                old.now = None
                self._later(lambda old=old: self._ask_again(old))  # type: ignore[misc]
            self._later(self._compare)

    def _later(self, question: Callable[[], Awaitable[None]]) -> None:
        if len(self._waiting) >= WAITING:
            return
        self._waiting.append(question)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            question = self._waiting.popleft()
            try:
                await question()
            except ModelFailure:
                continue  # it is in the ledger; a check that was not answered finds nothing
            except Exception as error:  # its text may hold the request
                log.error("a check of the judge raised %s", type(error).__name__)

    async def _swap(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        back = dict(reversed([*candidates.items()]))
        again = await self._asked(request, back)
        keys = list(candidates)
        for n, one in enumerate(keys):
            for other in keys[n + 1 :]:
                before, after = scores[one] - scores[other], again[one] - again[other]
                self.found.pairs += 1
                self.found.turned += min(abs(before), abs(after)) > TURNED and (before > 0) != (after > 0)

    async def _ask_again(self, old: _OldGroup) -> None:
        scores = old.of(await self._asked(old.request, old.candidates))
        if old.second is None:
            old.second = scores
        else:
            old.now = scores

    async def _compare(self) -> None:
        answered = [old for old in self._old if old.second is not None and old.now is not None]
        if len(answered) < change_test.LEAST:
            return
        self.found.p = change_test.p_value(
            [old.first for old in answered],
            [old.second or [] for old in answered],
            [old.now or [] for old in answered],
        )
        if self.found.p <= change_test.ALPHA:
            self.found.changes += 1
            log.warning("the judge scores old groups otherwise than before (p = %.2g)", self.found.p)
            self._old.clear()  # it is another judge: what the old one said is nothing to compare with

    async def _asked(self, request: ScoreRequest, candidates: Mapping[str, str]) -> dict[str, float]:
        try:
            async with asyncio.timeout(request.deadline_s):
                with opened(self.aside):
                    return await self.ask(request, candidates, self.aside)
        except TimeoutError:
            raise ModelFailure("timeout", "a check was not answered in time") from None


def _drawn(group: str) -> float:
    """0..1, by the group's name: the share of groups is drawn, and a run in lockstep draws the same ones."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4]) / 2**32
