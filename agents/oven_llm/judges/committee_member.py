"""Answers the score requests to one committee member within their deadlines, and counts failures."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from pydantic import ValidationError

from oven_core.protocol.committee_requests import ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_llm.judges.sanitize import visible_text
from oven_llm.providers.failures import FailureKind, ModelFailure, format_counts
from oven_llm.providers.usage import CallTally, record_calls_in

log = logging.getLogger("oven.member")

MAX_CONCURRENT: Final = 16
"""Maximum concurrent groups at the provider. Other groups wait, and their deadlines keep running."""
MARGIN_SHARE: Final = 0.05
"""Share of the deadline reserved for sending the reply. If an abstention arrives too late, its reason is lost."""
MAX_MARGIN_S: Final = 0.5
"""Maximum seconds reserved for sending the reply."""
MAX_REASON_CHARACTERS: Final = 500
"""Maximum characters of a reason or a detail in a reply. The prompt asks judges for at most 25 words."""
SUMMARY_INTERVAL: Final = 2000
"""Groups between two log lines with counts."""


class Scorer(Protocol):
    """Scores completions for a member. `Judge` and `MemberJudges` implement it."""

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id, and record calls in `tally`. Raises ModelFailure."""


Probe: TypeAlias = Callable[[JudgeSpec, float, CallTally], Awaitable[str]]
"""Tests another model within this many seconds and returns its missing features. Raises ModelFailure."""


class Member:
    """A member of the reward committee, which answers score and probe requests."""

    def __init__(
        self, name: str, judge: Scorer, probe: Probe | None = None, max_concurrent: int = MAX_CONCURRENT
    ) -> None:
        """Create a member. If `probe` is None, the member's model cannot be swapped."""
        self.name = name
        self.judge = judge
        self._probe = probe
        self.group_count = 0
        self.abstentions: Counter[FailureKind] = Counter()
        """Number of groups without scores, by the kind of the last failure."""
        self.failed_attempts: Counter[FailureKind] = Counter()
        """Number of failed HTTP attempts by kind, including those followed by a successful one."""
        self._slots = asyncio.Semaphore(max_concurrent)

    async def answer(self, data: bytes, context: str = "") -> ScoreReply:
        """Reply to the score request in `data`, which belongs to the trace `context`. Raises only if cancelled."""
        tally = CallTally(context)
        request: ScoreRequest | None = None
        scores: dict[str, float] | None = None
        failure: ModelFailure | None = None
        try:
            request = _parse_request(data)
            scores = await self._score(request, tally)
        except ModelFailure as error:
            failure = error
        except Exception as error:  # a bug; the message may quote the request
            failure = ModelFailure("internal", type(error).__name__)
        self._count(tally, failure)
        return ScoreReply(
            member=self.name,
            group=request.group if request else "",
            judge=request.judge.identity if request and request.judge else "",
            scores=scores,
            reasons=_select_reasons(request, tally) if request and scores is not None else {},
            failure=failure.kind if failure else "",
            detail=failure.detail if failure else "",
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            cost_usd=tally.cost_usd,
            health=tally.health,
        )

    async def probe(self, data: bytes) -> ProbeReply | None:
        """Test whether another model can judge. Return None if `data` is not a ProbeRequest. Never raises."""
        try:
            request = ProbeRequest.model_validate_json(data)
        except ValidationError:
            log.warning("dropped a message that is not a ProbeRequest")
            return None
        identity, tally = request.judge.identity, CallTally()
        try:
            if self._probe is None:
                raise ModelFailure("not_configured", f"the model of {self.name} cannot be replaced")
            with record_calls_in(tally):
                missing_features = await self._probe(request.judge, _usable_seconds(request.deadline_s), tally)
        except ModelFailure as failure:
            log.warning("the probe of %s failed: %s", identity, failure)
            detail = failure.detail[:MAX_REASON_CHARACTERS]
            return ProbeReply(member=self.name, judge=identity, failure=failure.kind, detail=detail)
        except Exception as error:
            return ProbeReply(member=self.name, judge=identity, failure="internal", detail=type(error).__name__)
        log.info("the probe of %s succeeded", identity)
        return ProbeReply(member=self.name, judge=identity, detail=missing_features[:MAX_REASON_CHARACTERS])

    def summary(self) -> str:
        """Return one line with counts."""
        abstentions, failed_attempts = format_counts(self.abstentions), format_counts(self.failed_attempts)
        return f"{self.group_count} groups; abstained: {abstentions}; failed attempts: {failed_attempts}"

    async def _score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        seconds = _usable_seconds(request.deadline_s)
        has_started = False
        try:
            async with asyncio.timeout(seconds), self._slots:
                has_started = True
                with record_calls_in(tally):
                    return await self.judge.score(request, tally)
        except TimeoutError:
            if not has_started:
                raise ModelFailure(
                    "busy", f"too many concurrent groups: this one did not start within {seconds:.3g} s"
                ) from None
            # If the judge was waiting for a retry, the failure that caused the retry is reported, not the timeout.
            raise ModelFailure(
                tally.last_failure or "timeout", f"the judge did not finish within {seconds:.3g} s"
            ) from None

    def _count(self, tally: CallTally, failure: ModelFailure | None) -> None:
        self.group_count += 1
        self.failed_attempts.update(tally.failed_attempts)
        if failure is not None:
            if not self.abstentions[failure.kind]:
                log.warning(
                    "abstaining on a group: %s; further failures of this kind are counted but not logged", failure
                )
            self.abstentions[failure.kind] += 1
        if self.group_count % SUMMARY_INTERVAL == 0:
            log.info("%s", self.summary())


def _select_reasons(request: ScoreRequest, tally: CallTally) -> dict[str, str]:
    """Return the reasons for the requested completions. Reasons for a control's texts would reveal the control."""
    reasons = {completion.id: tally.reasons.get(completion.id, "") for completion in request.completions}
    return {id_: visible_text(reason)[:MAX_REASON_CHARACTERS] for id_, reason in reasons.items() if reason}


def _usable_seconds(deadline_s: float) -> float:
    """Return how many seconds of the deadline the judge may use."""
    return deadline_s - min(MARGIN_SHARE * deadline_s, MAX_MARGIN_S)


def _parse_request(data: bytes) -> ScoreRequest:
    try:
        request = ScoreRequest.model_validate_json(data)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"]) or "body"
        raise ModelFailure("malformed_request", f"the field {field} of the ScoreRequest is not valid") from None
    if len({completion.id for completion in request.completions}) != len(request.completions):
        raise ModelFailure("malformed_request", "two completions have the same id")
    return request
