"""A member's side of the request: bytes in, a ScoreReply out, within the deadline, and counts of what went wrong."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from pydantic import ValidationError

from oven_core.protocol.committee_requests import ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_llm.judges.sanitize import visible
from oven_llm.providers.failures import Kind, ModelFailure
from oven_llm.providers.usage import Ledger, opened

log = logging.getLogger("oven.member")

CONCURRENT = 16
"""Groups that are with the provider at a time; the others wait, and their deadlines run."""
MARGIN = 0.05
"""Share of the deadline that is left for the way back: an abstention that comes too late has no kind."""
MARGIN_S = 0.5
"""Seconds that are left for it at most."""
REASON_CHARACTERS = 500
"""Of a reason that is passed on; a judge is told to give 25 words."""
EVERY = 2000
"""Groups between two lines of counts in the log."""


class Scores(Protocol):
    """What a member asks: a Judge, or the `Seat` of several."""

    async def score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        """id → 0..1. Raises ModelFailure."""


Probe = Callable[[JudgeSpec, float, Ledger], Awaitable[str]]
"""Asks another model within seconds: what it lacks, in words. Raises ModelFailure where it gives no verdict."""


class Member:
    """`probe` None: its model cannot be swapped."""

    def __init__(self, name: str, judge: Scores, probe: Probe | None = None, concurrent: int = CONCURRENT) -> None:
        self.name = name
        self.judge = judge
        self._probe = probe
        self.groups = 0
        self.abstained: Counter[Kind] = Counter()
        """Groups without scores, by what was in the way last."""
        self.faults: Counter[Kind] = Counter()
        """Attempts that failed, also where another then succeeded."""
        self._free = asyncio.Semaphore(concurrent)

    async def answer(self, data: bytes, context: str = "") -> ScoreReply:
        """`context` is the trace that the request came with. Never raises, but when it is cancelled."""
        ledger = Ledger(context)
        try:
            request = _request(data)
        except ModelFailure as failure:
            return self._reply(None, ledger, failure)
        try:
            scores = await self._score(request, ledger)
        except ModelFailure as failure:
            return self._reply(request, ledger, failure)
        except Exception as error:  # a fault of ours; its text may hold the request
            return self._reply(request, ledger, ModelFailure("internal", type(error).__name__))
        return self._reply(request, ledger, scores)

    async def probe(self, data: bytes) -> ProbeReply | None:
        """Whether another model could judge; None for anything but a ProbeRequest. Never raises."""
        try:
            request = ProbeRequest.model_validate_json(data)
        except ValidationError:
            log.warning("a message was dropped: it is not a ProbeRequest")
            return None
        identity, ledger = request.judge.identity, Ledger()
        try:
            if self._probe is None:
                raise ModelFailure("not_configured", f"{self.name} cannot judge with another model")
            with opened(ledger):
                lacks = await self._probe(request.judge, _seconds(request.deadline_s), ledger)
        except ModelFailure as failure:
            log.warning("%s was probed: %s", identity, failure)
            return ProbeReply(member=self.name, judge=identity, failure=failure.kind, detail=failure.detail[:500])
        except Exception as error:
            return ProbeReply(member=self.name, judge=identity, failure="internal", detail=type(error).__name__)
        log.info("%s was probed: it answers", identity)
        return ProbeReply(member=self.name, judge=identity, detail=lacks[:500])

    async def _score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        seconds = _seconds(request.deadline_s)
        asked = False
        try:
            async with asyncio.timeout(seconds), self._free:
                asked = True
                with opened(ledger):
                    return await self.judge.score(request, ledger)
        except TimeoutError:
            if not asked:
                raise ModelFailure("busy", f"no turn within {seconds:.3g} s") from None
            # Waiting out an endpoint's retry-after is that fault, not slowness.
            raise ModelFailure(ledger.last or "timeout", f"no scores within {seconds:.3g} s") from None

    def _reply(
        self, request: ScoreRequest | None, ledger: Ledger, result: dict[str, float] | ModelFailure
    ) -> ScoreReply:
        self.groups += 1
        self.faults.update(ledger.faults)
        failed = result if isinstance(result, ModelFailure) else None
        if failed is not None:
            if not self.abstained[failed.kind]:
                log.warning("abstains on a group: %s; further ones of this kind are only counted", failed)
            self.abstained[failed.kind] += 1
        if self.groups % EVERY == 0:
            log.info("%s", self.summary())
        return ScoreReply(
            member=self.name,
            group=request.group if request is not None else "",
            judge=request.judge.identity if request is not None and request.judge is not None else "",
            scores=None if isinstance(result, ModelFailure) else result,
            reasons=_reasons(request, ledger) if request is not None and failed is None else {},
            failure=failed.kind if failed is not None else "",
            detail=failed.detail if failed is not None else "",
            input_tokens=ledger.input_tokens,
            output_tokens=ledger.output_tokens,
            cost_usd=ledger.cost_usd,
            health=ledger.health,
        )

    def summary(self) -> str:
        """One line of counts."""
        return f"{self.groups} groups; abstained: {_listed(self.abstained)}; faults on the way: {_listed(self.faults)}"


def _reasons(request: ScoreRequest, ledger: Ledger) -> dict[str, str]:
    """Of the completions that were asked for; those of known answers would tell them apart."""
    said = {completion.id: ledger.reasons.get(completion.id, "") for completion in request.completions}
    return {key: visible(reason)[:REASON_CHARACTERS] for key, reason in said.items() if reason}


def _seconds(deadline_s: float) -> float:
    """What is left of the asker's time for the judge."""
    return deadline_s - min(MARGIN * deadline_s, MARGIN_S)


def _request(data: bytes) -> ScoreRequest:
    try:
        request = ScoreRequest.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"]) or "body"
        raise ModelFailure("malformed_request", f"{where} is not as a ScoreRequest has it") from None
    if len({completion.id for completion in request.completions}) != len(request.completions):
        raise ModelFailure("malformed_request", "an id stands twice")
    return request


def _listed(counts: Counter[Kind]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"
