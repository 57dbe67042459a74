"""A member's side of the request: bytes in, a ScoreReply out, within the deadline, and counts of what went wrong."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from pydantic import ValidationError

from oven_agents.judges.failures import JudgeFailure, Kind
from oven_agents.judges.usage import Ledger, Usage, opened
from oven_controller.protocol.requests import ScoreReply, ScoreRequest

log = logging.getLogger("oven.member")

CONCURRENT = 16
"""Groups that are with the provider at a time; the others wait, and their deadlines run."""
MARGIN = 0.05
"""Share of the deadline that is left for the way back: an abstention that comes too late has no kind."""
MARGIN_S = 0.5
"""Seconds that are left for it at most."""
EVERY = 2000
"""Groups between two lines of counts in the log."""

Price = Callable[[Sequence[Usage | None]], float | None]


class Scorer(Protocol):
    """A judge, or one behind its cache."""

    async def score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        """id → 0..1, for each completion of the request. Raises JudgeFailure."""
        ...


class Member:
    def __init__(self, name: str, judge: Scorer, price: Price, concurrent: int = CONCURRENT) -> None:
        self.name = name
        self.judge = judge
        self.groups = 0
        self.abstained: Counter[Kind] = Counter()
        """Groups without scores, by what was in the way last."""
        self.faults: Counter[Kind] = Counter()
        """Attempts that failed, also where another then succeeded."""
        self._price = price
        self._free = asyncio.Semaphore(concurrent)

    async def answer(self, data: bytes, context: str = "") -> ScoreReply:
        """`context` is the trace that the request came with. Never raises, but when it is cancelled."""
        ledger = Ledger(context)
        try:
            request = _request(data)
        except JudgeFailure as failure:
            return self._reply("", ledger, failure)
        try:
            scores = await self._score(request, ledger)
        except JudgeFailure as failure:
            return self._reply(request.group, ledger, failure)
        except Exception as error:  # a fault of ours; its text may hold the request
            return self._reply(request.group, ledger, JudgeFailure("internal", type(error).__name__))
        return self._reply(request.group, ledger, scores)

    async def _score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        seconds = request.deadline_s - min(MARGIN * request.deadline_s, MARGIN_S)
        asked = False
        try:
            async with asyncio.timeout(seconds), self._free:
                asked = True
                with opened(ledger):
                    return await self.judge.score(request, ledger)
        except TimeoutError:
            if not asked:
                raise JudgeFailure("busy", f"no turn within {seconds:.3g} s") from None
            # Waiting out an endpoint's retry-after is that fault, not slowness.
            raise JudgeFailure(ledger.last or "timeout", f"no scores within {seconds:.3g} s") from None

    def _reply(self, group: str, ledger: Ledger, result: dict[str, float] | JudgeFailure) -> ScoreReply:
        self.groups += 1
        self.faults.update(ledger.faults)
        failed = result if isinstance(result, JudgeFailure) else None
        if failed is not None:
            if not self.abstained[failed.kind]:
                log.warning("abstains on a group: %s; further ones of this kind are only counted", failed)
            self.abstained[failed.kind] += 1
        if self.groups % EVERY == 0:
            log.info("%s", self.summary())
        return ScoreReply(
            member=self.name,
            group=group,
            scores=None if isinstance(result, JudgeFailure) else result,
            failure=failed.kind if failed is not None else "",
            detail=failed.detail if failed is not None else "",
            input_tokens=ledger.input_tokens,
            output_tokens=ledger.output_tokens,
            cost_usd=self._price(ledger.usages),
        )

    def summary(self) -> str:
        """One line of counts."""
        return f"{self.groups} groups; abstained: {_listed(self.abstained)}; faults on the way: {_listed(self.faults)}"


def _request(data: bytes) -> ScoreRequest:
    try:
        request = ScoreRequest.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"]) or "body"
        raise JudgeFailure("malformed_request", f"{where} is not as a ScoreRequest has it") from None
    if len({completion.id for completion in request.completions}) != len(request.completions):
        raise JudgeFailure("malformed_request", "an id stands twice")
    return request


def _listed(counts: Counter[Kind]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"
