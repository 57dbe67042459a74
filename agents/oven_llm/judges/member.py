"""Answers score requests sent to a committee member. It replies within the deadline and counts failures."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from pydantic import ValidationError

from oven_core.protocol.committee_requests import ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_llm.judges.sanitize import visible
from oven_llm.providers.failures import Kind, ModelFailure
from oven_llm.providers.usage import CallTally, tallied

log = logging.getLogger("oven.member")

CONCURRENT: Final = 16
"""Maximum concurrent groups at the provider. Other groups wait while their deadlines run."""
MARGIN: Final = 0.05
"""Share of the deadline that is reserved for the reply: an abstention that arrives too late has no kind."""
MAX_MARGIN_S: Final = 0.5
"""Upper limit of the margin, in seconds."""
REASON_CHARACTERS: Final = 500
"""Length limit of a reason in a reply. The prompt asks for 25 words."""
SUMMARY_EVERY: Final = 2000
"""Groups between two lines of counts in the log."""


class Scorer(Protocol):
    """Scores completions for a member. `Judge` and `MemberJudges` implement it."""

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure."""


Probe: TypeAlias = Callable[[JudgeSpec, float, CallTally], Awaitable[str]]
"""Asks another model within the given seconds and returns what it lacks. Raises ModelFailure if it gives no verdict."""


class Member:
    """A member of the committee."""

    def __init__(self, name: str, judge: Scorer, probe: Probe | None = None, concurrent: int = CONCURRENT) -> None:
        """`probe` None: its model cannot be swapped."""
        self.name = name
        self.judge = judge
        self._probe = probe
        self.groups = 0
        self.abstained: Counter[Kind] = Counter()
        """Groups without scores, by the kind of the last failure."""
        self.faults: Counter[Kind] = Counter()
        """Failed attempts, including those followed by a successful one."""
        self._free = asyncio.Semaphore(concurrent)

    async def answer(self, data: bytes, context: str = "") -> ScoreReply:
        """Score a request. `context` is the trace that it arrived with. Raises only if it is cancelled."""
        tally = CallTally(context)
        request: ScoreRequest | None = None
        scores: dict[str, float] | None = None
        failure: ModelFailure | None = None
        try:
            request = _request(data)
            scores = await self._score(request, tally)
        except ModelFailure as error:
            failure = error
        except Exception as error:  # a bug; its text may contain the request
            failure = ModelFailure("internal", type(error).__name__)
        self._count(tally, failure)
        return ScoreReply(
            member=self.name,
            group=request.group if request else "",
            judge=request.judge.identity if request and request.judge else "",
            scores=scores,
            reasons=_reasons(request, tally) if request and scores is not None else {},
            failure=failure.kind if failure else "",
            detail=failure.detail if failure else "",
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            cost_usd=tally.cost_usd,
            health=tally.health,
        )

    async def probe(self, data: bytes) -> ProbeReply | None:
        """Test whether another model could judge. Returns None for anything but a ProbeRequest. Never raises."""
        try:
            request = ProbeRequest.model_validate_json(data)
        except ValidationError:
            log.warning("a message was dropped: it is not a ProbeRequest")
            return None
        identity, tally = request.judge.identity, CallTally()
        try:
            if self._probe is None:
                raise ModelFailure("not_configured", f"{self.name} cannot judge with another model")
            with tallied(tally):
                lacks = await self._probe(request.judge, _seconds(request.deadline_s), tally)
        except ModelFailure as failure:
            log.warning("%s was probed: %s", identity, failure)
            return ProbeReply(member=self.name, judge=identity, failure=failure.kind, detail=failure.detail[:500])
        except Exception as error:
            return ProbeReply(member=self.name, judge=identity, failure="internal", detail=type(error).__name__)
        log.info("%s was probed: it answers", identity)
        return ProbeReply(member=self.name, judge=identity, detail=lacks[:500])

    def summary(self) -> str:
        """Return one line of counts."""
        return f"{self.groups} groups; abstained: {_listed(self.abstained)}; faults on the way: {_listed(self.faults)}"

    async def _score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        seconds = _seconds(request.deadline_s)
        started = False
        try:
            async with asyncio.timeout(seconds), self._free:
                started = True
                with tallied(tally):
                    return await self.judge.score(request, tally)
        except TimeoutError:
            if not started:
                raise ModelFailure("busy", f"no turn within {seconds:.3g} s") from None
            # Time spent on waiting out a retry-after counts as that fault, not as slowness.
            raise ModelFailure(tally.last_fault or "timeout", f"no scores within {seconds:.3g} s") from None

    def _count(self, tally: CallTally, failure: ModelFailure | None) -> None:
        self.groups += 1
        self.faults.update(tally.faults)
        if failure is not None:
            if not self.abstained[failure.kind]:
                log.warning("abstains on a group: %s; further ones of this kind are counted only", failure)
            self.abstained[failure.kind] += 1
        if self.groups % SUMMARY_EVERY == 0:
            log.info("%s", self.summary())


def _reasons(request: ScoreRequest, tally: CallTally) -> dict[str, str]:
    """Return reasons for the requested completions only. Reasons for hidden controls would reveal them."""
    reasons = {completion.id: tally.reasons.get(completion.id, "") for completion in request.completions}
    return {key: visible(reason)[:REASON_CHARACTERS] for key, reason in reasons.items() if reason}


def _seconds(deadline_s: float) -> float:
    """Return the part of the deadline that the judge may use."""
    return deadline_s - min(MARGIN * deadline_s, MAX_MARGIN_S)


def _request(data: bytes) -> ScoreRequest:
    try:
        request = ScoreRequest.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"]) or "body"
        raise ModelFailure("malformed_request", f"{where} is not valid in a ScoreRequest") from None
    if len({completion.id for completion in request.completions}) != len(request.completions):
        raise ModelFailure("malformed_request", "an id appears twice")
    return request


def _listed(counts: Counter[Kind]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"
