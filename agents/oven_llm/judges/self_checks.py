"""Checks a judge's consistency: whether the order of answers affects its scores, and whether its model has changed.

The judge scores some groups again in reverse order, and old groups again from time to time. These questions follow the
group's reply, one at a time, and nothing waits for them. Findings are reported with a later reply. The usage is billed
like any other (`aside`). Old groups are kept in memory only, so that a new process or another judge collects them
again.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Final

from oven_core.protocol.committee_requests import ScoreRequest
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import CallTally, tallied

log = logging.getLogger("oven.member")

OLD_GROUPS: Final = 16
"""Groups that are scored again. If a change moves all of them, p is 2⁻¹⁶; ten moved groups are enough."""
APART: Final = 4
"""Scored groups between two stored ones, because groups of one batch would be alike."""
MAX_WAITING: Final = 64
"""Maximum questions in the queue. Further questions are dropped."""
TIE: Final = 1e-9
"""Scores that differ by less are a tie, whose order cannot flip."""
ALPHA: Final = 0.001
"""Probability of a false alarm per pass over the old groups: at most 5 % in a run with 50 passes."""
MIN_ANSWERED: Final = 12
"""Old groups that must have a reply: with fewer than ten, no p is below ALPHA."""
SCORE_UNIT: Final = 1000
"""Scores are compared in whole thousandths, so that equal sums are equal."""

Ask = Callable[[ScoreRequest, Mapping[str, str], CallTally], Awaitable[dict[str, float]]]
"""Scores the candidates of a request, shown in this order, by id. Raises ModelFailure."""


@dataclass(slots=True)
class _OldGroup:
    request: ScoreRequest
    candidates: dict[str, str]
    first: list[float]
    second: list[float] | None = None
    now: list[float] | None = None


@dataclass(slots=True)
class Findings:
    """The results of the checks so far."""

    pairs: int = 0
    flipped: int = 0
    p: float | None = None
    """P-value of the newest pass over the old groups (`change_p_value`)."""
    changes: int = 0

    @property
    def flips(self) -> float | None:
        """Share of pairs whose order flipped."""
        return self.flipped / self.pairs if self.pairs else None


@dataclass
class SelfChecks:
    """The checks of one judge."""

    ask: Ask
    swapped: float = 0.05
    """Share of groups that are scored again in reverse order."""
    every: int = 160
    """Scored groups between two passes over the old ones; 0: no passes."""
    aside: CallTally = field(default_factory=CallTally)
    """Usage and faults of the checks, until a reply reports them."""
    findings: Findings = field(default_factory=Findings)
    _old: list[_OldGroup] = field(default_factory=list)
    _groups: int = 0
    _since: int = 0
    _waiting: deque[Callable[[], Awaitable[None]]] = field(default_factory=deque)
    _worker: asyncio.Task[None] | None = None
    _closed: bool = False

    def saw(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        """Record a scored group. `candidates` are in the order shown, without controls."""
        self._groups += 1
        if self._closed or len(candidates) < 2:
            return
        if _fraction(request.group) < self.swapped:
            self._enqueue(partial(self._swap, request, candidates, dict(scores)))
        if self.every:
            self._keep(request, candidates, scores)

    async def idle(self) -> None:
        """Wait until the queue is empty."""
        if self._worker is not None:
            await self._worker

    async def close(self) -> None:
        """Drop the queue, because another judge replaces this one or the process ends."""
        self._closed = True
        self._waiting.clear()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def _keep(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        if len(self._old) < OLD_GROUPS:
            if self._groups % APART == 0:
                self._old.append(_OldGroup(request, dict(candidates), [scores[key] for key in candidates]))
                if len(self._old) == OLD_GROUPS:
                    self._since = 0
                    for old in self._old:
                        self._enqueue(partial(self._ask_again, old))
            return
        self._since += 1
        if self._since >= self.every:
            self._since = 0
            for old in self._old:
                old.now = None
                self._enqueue(partial(self._ask_again, old))
            self._enqueue(self._compare)

    def _enqueue(self, question: Callable[[], Awaitable[None]]) -> None:
        if len(self._waiting) >= MAX_WAITING:
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
                continue  # the tally counts it; a check without a reply has no finding
            except Exception as error:  # its text may contain the request
                log.error("a check of the judge raised %s", type(error).__name__)

    async def _swap(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        swapped = await self._ask(request, dict(reversed([*candidates.items()])))
        for first, second in itertools.combinations(candidates, 2):
            before, after = scores[first] - scores[second], swapped[first] - swapped[second]
            self.findings.pairs += 1
            self.findings.flipped += min(abs(before), abs(after)) > TIE and (before > 0) != (after > 0)

    async def _ask_again(self, old: _OldGroup) -> None:
        scores = await self._ask(old.request, old.candidates)
        ordered = [scores[key] for key in old.candidates]
        if old.second is None:
            old.second = ordered
        else:
            old.now = ordered

    async def _compare(self) -> None:
        answered = [old for old in self._old if old.second is not None and old.now is not None]
        if len(answered) < MIN_ANSWERED:
            return
        self.findings.p = change_p_value(
            [old.first for old in answered],
            [old.second or [] for old in answered],
            [old.now or [] for old in answered],
        )
        if self.findings.p <= ALPHA:
            self.findings.changes += 1
            log.warning("the judge scores old groups differently than before (p = %.2g)", self.findings.p)
            self._old.clear()  # the changed judge needs new groups to be compared with

    async def _ask(self, request: ScoreRequest, candidates: Mapping[str, str]) -> dict[str, float]:
        try:
            async with asyncio.timeout(request.deadline_s):
                with tallied(self.aside):
                    return await self.ask(request, candidates, self.aside)
        except TimeoutError:
            raise ModelFailure("timeout", "a check was not answered in time") from None


def _fraction(group: str) -> float:
    """Return a number from 0 to 1 derived from the group's name, so that identical runs check the same groups."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4]) / 2**32


def change_p_value(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], now: Sequence[Sequence[float]]
) -> float:
    """Return the probability that an unchanged judge's scores would differ at least this much from its first scores.

    Each argument has the scores of the same groups in the same order. An unchanged judge is as far from its first
    scores now as it was the second time, apart from noise. So the two distances are exchangeable, and each group's
    difference is equally likely to have either sign. The sum of the differences has an exact distribution over all
    signs (Fisher's randomization test), for any noise of the judge.
    """
    differences = [_distance(a, c) - _distance(a, b) for a, b, c in zip(first, second, now, strict=True)]
    sums = Counter({0: 1})  # sum → number of sign combinations that reach it
    for size in map(abs, differences):
        if size:
            both: Counter[int] = Counter()
            for value, ways in sums.items():
                both[value + size] += ways
                both[value - size] += ways
            sums = both
    total = sums.total()
    return float(Fraction(sum(ways for value, ways in sums.items() if value >= sum(differences)), total))


def _distance(a: Sequence[float], b: Sequence[float]) -> int:
    return sum(round(SCORE_UNIT * abs(x - y)) for x, y in zip(a, b, strict=True))
