"""Checks a judge's consistency: whether the order of answers affects its scores, and whether its model has changed.

The judge scores some groups again in reverse order, and old groups again from time to time. These requests are sent
one at a time after the group's reply, and nothing waits for them. A later reply to the learner reports the findings and
the requests' usage (`unreported_tally`). Old groups are only in memory, so a new process or judge collects new ones."""

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
from oven_llm.providers.usage import CallTally, record_calls_in

log = logging.getLogger("oven.member")

MAX_OLD_GROUPS: Final = 16
"""Number of groups that are scored again. If all of them change, p is 2⁻¹⁶. Ten groups would
already reach ALPHA."""
SAMPLING_INTERVAL: Final = 4
"""One in this many scored groups is stored as an old group, because the groups of one batch are similar."""
MAX_PENDING: Final = 64
"""Maximum checks in the queue. Further checks are dropped."""
TIE_TOLERANCE: Final = 1e-9
"""Scores that differ by at most this are tied, and the order of a tied pair cannot flip."""
ALPHA: Final = 0.001
"""Probability of a false alarm per pass over the old groups. A run with 50 passes has at most 5 %."""
MIN_COMPARED: Final = 12
"""Minimum number of old groups with three sets of scores. With fewer than ten, p cannot fall below ALPHA."""
SCORE_UNIT: Final = 1000
"""Scores are compared in thousandths as integers, to avoid rounding errors in the sums."""

RequestScores = Callable[[ScoreRequest, Mapping[str, str], CallTally], Awaitable[dict[str, float]]]
"""Shows the judge a request's candidates in the order of the mapping, and returns their scores by id. Raises
ModelFailure."""


@dataclass(slots=True)
class _OldGroup:
    request: ScoreRequest
    candidates: dict[str, str]
    first_scores: list[float]
    second_scores: list[float] | None = None  # of the first pass, soon after the original scores
    new_scores: list[float] | None = None  # of the latest pass


@dataclass(slots=True)
class Findings:
    """The results of the checks so far."""

    pairs: int = 0
    flipped_pairs: int = 0
    p: float | None = None
    """P-value of the most recent pass over the old groups (`change_p_value`)."""
    changes: int = 0
    """Number of detected changes of the model."""

    @property
    def flips(self) -> float | None:
        """Share of pairs whose order flipped."""
        return self.flipped_pairs / self.pairs if self.pairs else None


@dataclass
class SelfChecks:
    """The checks of one judge."""

    request_scores: RequestScores
    swap_share: float = 0.05
    """Share of groups that are scored again in reverse order."""
    rescore_interval: int = 160
    """Scored groups between two passes over the old groups; 0: no passes."""
    unreported_tally: CallTally = field(default_factory=CallTally)
    """Usage and failures of the checks that no reply has reported yet."""
    findings: Findings = field(default_factory=Findings)
    _old_groups: list[_OldGroup] = field(default_factory=list)
    _group_count: int = 0
    _groups_since_pass: int = 0
    _pending: deque[Callable[[], Awaitable[None]]] = field(default_factory=deque)
    _worker: asyncio.Task[None] | None = None
    _closed: bool = False

    def record_scores(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        """Record a scored group and queue its checks. `candidates` is in the order in which the judge saw them, and
        contains no control answers."""
        self._group_count += 1
        if self._closed or len(candidates) < 2:
            return
        if _fraction(request.group) < self.swap_share:
            self._enqueue(partial(self._check_order, request, candidates, dict(scores)))
        if self.rescore_interval:
            self._check_change(request, candidates, scores)

    async def idle(self) -> None:
        """Wait until the queue is empty."""
        if self._worker is not None:
            await self._worker

    async def close(self) -> None:
        """Drop the queue, because another judge replaces this one or the process is about to exit."""
        self._closed = True
        self._pending.clear()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def _check_change(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        """Store the group while there are too few old groups. Otherwise score the old groups again if it is time."""
        if len(self._old_groups) < MAX_OLD_GROUPS:
            if self._group_count % SAMPLING_INTERVAL == 0:
                self._old_groups.append(_OldGroup(request, dict(candidates), [scores[key] for key in candidates]))
                if len(self._old_groups) == MAX_OLD_GROUPS:
                    self._groups_since_pass = 0
                    self._enqueue_pass()
            return
        self._groups_since_pass += 1
        if self._groups_since_pass >= self.rescore_interval:
            self._groups_since_pass = 0
            for group in self._old_groups:
                group.new_scores = None
            self._enqueue_pass()
            self._enqueue(self._compare)

    def _enqueue_pass(self) -> None:
        for group in self._old_groups:
            self._enqueue(partial(self._score_again, group))

    def _enqueue(self, check: Callable[[], Awaitable[None]]) -> None:
        if len(self._pending) >= MAX_PENDING:
            return
        self._pending.append(check)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._run_checks())

    async def _run_checks(self) -> None:
        while self._pending:
            check = self._pending.popleft()
            try:
                await check()
            except ModelFailure:
                continue  # the tally counts the failure; a check without a reply has no result
            except Exception as error:  # the message may quote the request
                log.error("a check of the judge raised %s", type(error).__name__)

    async def _check_order(
        self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]
    ) -> None:
        reverse_scores = await self._send(request, dict(reversed([*candidates.items()])))
        for a, b in itertools.combinations(candidates, 2):
            before, after = scores[a] - scores[b], reverse_scores[a] - reverse_scores[b]
            is_tied = min(abs(before), abs(after)) <= TIE_TOLERANCE
            self.findings.pairs += 1
            self.findings.flipped_pairs += not is_tied and (before > 0) != (after > 0)

    async def _score_again(self, group: _OldGroup) -> None:
        scores_by_id = await self._send(group.request, group.candidates)
        scores = [scores_by_id[key] for key in group.candidates]
        if group.second_scores is None:
            group.second_scores = scores
        else:
            group.new_scores = scores

    async def _compare(self) -> None:
        first, second, new = [], [], []
        for group in self._old_groups:
            if group.second_scores is not None and group.new_scores is not None:
                first.append(group.first_scores)
                second.append(group.second_scores)
                new.append(group.new_scores)
        if len(new) < MIN_COMPARED:
            return
        self.findings.p = change_p_value(first, second, new)
        if self.findings.p <= ALPHA:
            self.findings.changes += 1
            log.warning("the judge now scores old groups differently (p = %.2g)", self.findings.p)
            self._old_groups.clear()  # later comparisons need groups that the changed judge has scored

    async def _send(self, request: ScoreRequest, candidates: Mapping[str, str]) -> dict[str, float]:
        try:
            async with asyncio.timeout(request.deadline_s):
                with record_calls_in(self.unreported_tally):
                    return await self.request_scores(request, candidates, self.unreported_tally)
        except TimeoutError:
            raise ModelFailure("timeout", "no reply to a check within the deadline") from None


def _fraction(group: str) -> float:
    """Return a number from 0 to 1 that depends only on the group's name, so identical runs check the same groups."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4]) / 2**32


def change_p_value(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], new: Sequence[Sequence[float]]
) -> float:
    """Return the probability that an unchanged judge's new scores differ at least this much from its first scores. All
    arguments contain scores of the same groups in the same order. If the judge has not changed, its second and its new
    scores differ from its first scores by the same amount, apart from noise. The two distances are then exchangeable,
    and each group's difference is equally likely to be positive or negative. The sum of the differences has an exact
    distribution over all signs (Fisher's randomization test), whatever the noise."""
    differences = [_distance(a, c) - _distance(a, b) for a, b, c in zip(first, second, new, strict=True)]
    combinations = Counter({0: 1})  # number of sign combinations by their sum
    for difference in differences:
        if difference:
            next_combinations: Counter[int] = Counter()
            for value, count in combinations.items():
                next_combinations[value + difference] += count
                next_combinations[value - difference] += count
            combinations = next_combinations
    count_at_least = sum(count for value, count in combinations.items() if value >= sum(differences))
    return float(Fraction(count_at_least, combinations.total()))


def _distance(a: Sequence[float], b: Sequence[float]) -> int:
    return sum(round(SCORE_UNIT * abs(x - y)) for x, y in zip(a, b, strict=True))
