"""Checks a judge's consistency: whether the order of answers affects its scores, and whether its model has changed.

The judge scores some groups a second time in reverse order. It also rescores a set of old groups at regular intervals.
These requests are sent one at a time after the reply to the learner, and nothing waits for them. A later reply reports
the findings and the requests' usage (`unreported_tally`). Each new process or judge collects its own old groups."""

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
"""Number of groups that are stored to be rescored. If the scores of all 16 change, p is 2⁻¹⁶, far below ALPHA."""
SAMPLING_INTERVAL: Final = 4
"""One in this many scored groups is stored as an old group, because the groups of one batch are similar."""
MAX_PENDING: Final = 64
"""Maximum checks in the queue. Further checks are dropped."""
TIE_TOLERANCE: Final = 1e-9
"""Scores that differ by at most this are tied, and the order of a tied pair cannot flip."""
ALPHA: Final = 0.001
"""Probability of a false alarm per pass over the old groups. In a run with 50 passes, it is at most 5 % in total."""
MIN_COMPARED: Final = 12
"""Minimum number of old groups that can be compared. With fewer than ten, p cannot fall below ALPHA."""
SCORE_UNIT: Final = 1000
"""Differences between scores are rounded to integer thousandths, so that their sums are exact."""

RequestScores = Callable[[ScoreRequest, Mapping[str, str], CallTally], Awaitable[dict[str, float]]]
"""Shows a request's candidates to the judge in this order, and returns their scores by id. Raises ModelFailure."""


@dataclass(slots=True)
class _OldGroup:
    request: ScoreRequest
    candidates: dict[str, str]
    first_scores: list[float]
    second_scores: list[float] | None = None  # from the first pass, soon after the first scores
    new_scores: list[float] | None = None  # from the latest pass


@dataclass(slots=True)
class Findings:
    """The results of the checks so far."""

    pair_count: int = 0
    """Number of pairs of candidates that were scored in both orders."""
    flipped_pair_count: int = 0
    """Number of these pairs in which another candidate scored higher in the reverse order."""
    change_p: float | None = None
    """P-value of the most recent pass over the old groups (`change_p_value`)."""
    change_count: int = 0
    """Number of detected changes of the model."""

    @property
    def flipped_share(self) -> float | None:
        return self.flipped_pair_count / self.pair_count if self.pair_count else None


@dataclass
class SelfChecks:
    """The checks of one judge."""

    request_scores: RequestScores
    reversed_share: float = 0.05
    """Share of groups that are scored again in reverse order."""
    rescore_interval: int = 160
    """Number of scored groups after which the old groups are rescored. If it is 0, they never are."""
    unreported_tally: CallTally = field(default_factory=CallTally)
    """Usage and failures of the checks that no reply has reported yet."""
    findings: Findings = field(default_factory=Findings)
    _old_groups: list[_OldGroup] = field(default_factory=list)
    _group_count: int = 0
    _groups_since_pass: int = 0
    _pending: deque[Callable[[], Awaitable[None]]] = field(default_factory=deque)
    _worker: asyncio.Task[None] | None = None
    _is_closed: bool = False

    def record_scores(self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]) -> None:
        """Record a scored group and queue its checks. The candidates are in the order in which the judge saw them."""
        self._group_count += 1
        if self._is_closed or len(candidates) < 2:
            return
        if _hash_fraction(request.group) < self.reversed_share:
            self._enqueue(partial(self._check_order, request, candidates, dict(scores)))
        if self.rescore_interval:
            self._add_or_rescore(request, candidates, scores)

    async def wait_idle(self) -> None:
        """Wait until the queue is empty."""
        if self._worker is not None:
            await self._worker

    async def close(self) -> None:
        """Drop all queued checks, because another judge replaces this one or the process is about to exit."""
        self._is_closed = True
        self._pending.clear()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def _add_or_rescore(
        self, request: ScoreRequest, candidates: Mapping[str, str], scores: Mapping[str, float]
    ) -> None:
        """Store the group while there are too few old groups. Otherwise rescore the old groups if a pass is due."""
        if len(self._old_groups) < MAX_OLD_GROUPS:
            if self._group_count % SAMPLING_INTERVAL == 0:
                self._old_groups.append(_OldGroup(request, dict(candidates), [scores[id_] for id_ in candidates]))
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
            self._enqueue(self._compare_old_groups)

    def _enqueue_pass(self) -> None:
        for group in self._old_groups:
            self._enqueue(partial(self._rescore, group))

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
        """Score the candidates in reverse order, and count the pairs whose ranking flips."""
        reverse_scores = await self._send(request, dict(reversed(list(candidates.items()))))
        for first, second in itertools.combinations(candidates, 2):
            difference = scores[first] - scores[second]
            reverse_difference = reverse_scores[first] - reverse_scores[second]
            is_tied = min(abs(difference), abs(reverse_difference)) <= TIE_TOLERANCE
            self.findings.pair_count += 1
            if not is_tied and (difference > 0) != (reverse_difference > 0):
                self.findings.flipped_pair_count += 1

    async def _rescore(self, group: _OldGroup) -> None:
        scores_by_id = await self._send(group.request, group.candidates)
        scores = [scores_by_id[id_] for id_ in group.candidates]
        if group.second_scores is None:
            group.second_scores = scores
        else:
            group.new_scores = scores

    async def _compare_old_groups(self) -> None:
        first, second, new = [], [], []
        for group in self._old_groups:
            if group.second_scores is not None and group.new_scores is not None:
                first.append(group.first_scores)
                second.append(group.second_scores)
                new.append(group.new_scores)
        if len(new) < MIN_COMPARED:
            return
        self.findings.change_p = change_p_value(first, second, new)
        if self.findings.change_p <= ALPHA:
            self.findings.change_count += 1
            log.warning("the judge now scores old groups differently (p = %.2g)", self.findings.change_p)
            self._old_groups.clear()  # later comparisons need groups that the changed judge has scored

    async def _send(self, request: ScoreRequest, candidates: Mapping[str, str]) -> dict[str, float]:
        try:
            async with asyncio.timeout(request.deadline_s):
                with record_calls_in(self.unreported_tally):
                    return await self.request_scores(request, candidates, self.unreported_tally)
        except TimeoutError:
            raise ModelFailure("timeout", "no reply to a check within the deadline") from None


def _hash_fraction(group: str) -> float:
    """Return a number from 0 to 1 that depends only on the group's name, so identical runs check the same groups."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4]) / 2**32


def change_p_value(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], new: Sequence[Sequence[float]]
) -> float:
    """Return the probability that an unchanged judge's new scores differ at least this much from its first scores. All
    arguments contain scores of the same groups in the same order.

    If the judge has not changed, its second and its new scores are equally far from its first scores, apart from noise.
    Each group's difference between the two distances is then equally likely to be positive or negative. Fisher's
    randomization test computes the exact distribution of the sum of the differences over all combinations of signs."""
    differences = [
        _compute_distance(first_scores, new_scores) - _compute_distance(first_scores, second_scores)
        for first_scores, second_scores, new_scores in zip(first, second, new, strict=True)
    ]
    counts_by_sum = Counter({0: 1})  # number of sign combinations that have this sum
    for difference in differences:
        if difference:
            next_counts: Counter[int] = Counter()
            for total, count in counts_by_sum.items():
                next_counts[total + difference] += count
                next_counts[total - difference] += count
            counts_by_sum = next_counts
    count_at_least = sum(count for total, count in counts_by_sum.items() if total >= sum(differences))
    return float(Fraction(count_at_least, counts_by_sum.total()))


def _compute_distance(a: Sequence[float], b: Sequence[float]) -> int:
    return sum(round(SCORE_UNIT * abs(x - y)) for x, y in zip(a, b, strict=True))
