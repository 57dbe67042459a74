"""The judges of one member: the one that it was configured with, and those that requests name in its place.

A request says which model has to score it, so that no model scores for another: not while one is swapped, and not
after this process was started again, which knows nothing of earlier swaps. A model that only was named is connected to
when it is first asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from oven_core.errors import OvenError
from oven_core.protocol.committee_requests import ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_llm.judges.accounts import Accounts
from oven_llm.judges.cached_judge import CachedJudge
from oven_llm.judges.configured_judge import ConfiguredJudge
from oven_llm.judges.judge import Judge
from oven_llm.judges.probe import ProbeResult, probe
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.provider import EndpointProvider
from oven_llm.providers.usage import Ledger, OnCall, cost_usd

log = logging.getLogger("oven.member")

KEPT = 2
"""Judges that stay connected: the one that is asked now and the one before it, whose requests may still be out."""

LookUp = Callable[[JudgeSpec], ConfiguredJudge]
"""The member with another model. Raises OvenError with what is to be mended."""
Key = tuple[JudgeSpec | None, int]
"""What a request names: a model, and which swap of the member's that was."""


@dataclass
class Connected:
    """A model that can be asked."""

    configured: ConfiguredJudge
    provider: EndpointProvider
    found: ProbeResult | None = None
    """What a probe of it found, if it was probed for a swap."""


@dataclass
class Seated:
    """A judge with its connection, and how many requests are with it."""

    model: Connected
    judge: Judge | CachedJudge
    users: int = 0


class Seat:
    """Use `score` as a Judge's. `close` lets all connections go."""

    def __init__(
        self,
        configured: ConfiguredJudge,
        look_up: LookUp,
        on_call: OnCall | None = None,
        record: Callable[[ProbeResult], None] = lambda _: None,
        accounts: Accounts | None = None,
    ) -> None:
        """`record` is told of each model that judges after a swap what its probe found. `accounts`: what all of them
        book into and answer from; None: nothing is kept. Raises ConfigError when the SDK of the configured one is not
        installed, or its price is not known and has to be."""
        self._look_up, self._on_call, self._record = look_up, on_call, record
        self._accounts = accounts
        self.first = Connected(configured, self._connect(configured))
        """The configured one."""
        self._seated: dict[Key, Seated] = {(None, 0): self._on_seat(self.first, 0)}
        self._probed: tuple[JudgeSpec, Connected] | None = None  # it knows by now what the endpoint takes
        self._changing = asyncio.Lock()

    async def score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        """As `Judge.score`, by the model that the request names. Raises ModelFailure."""
        seated = await self._of((request.judge, request.swap))
        seated.users += 1
        ledger.price = partial(cost_usd, seated.model.configured.asked)
        try:
            return await seated.judge.score(request, ledger)
        finally:
            seated.users -= 1
            await self._let_go()

    async def probe(self, spec: JudgeSpec, seconds: float, ledger: Ledger) -> str:
        """One small question to another model, within the time. What it lacks, in sentences; empty if nothing. Raises
        ModelFailure where it cannot judge."""
        model = await self._connected(spec)
        found = await probe(model.provider, model.configured.rubric, seconds, ledger)
        if found.failure is not None:
            await model.provider.close()
            raise ModelFailure(found.failure, "; ".join(part for part in (found.detail, found.remedy) if part))
        model.found = found
        async with self._changing:
            before, self._probed = self._probed, (spec, model)
        if before is not None:
            await before[1].provider.close()
        return "; ".join(found.lacks)

    def unreported(self) -> Ledger:
        """What the judges' checks used and met since the last answer, which reports it otherwise."""
        left = Ledger()
        for seated in self._seated.values():
            left.absorb(seated.judge.checks.aside)
        return left

    async def close(self) -> None:
        """Let all connections go."""
        for seated in self._seated.values():
            await seated.judge.close()
        if self._probed is not None:
            await self._probed[1].provider.close()

    async def _of(self, key: Key) -> Seated:
        async with self._changing:
            found = self._seated.pop(key, None)
            if found is None:
                found = self._on_seat(await self._taken(key[0]), key[1])
                for before in self._seated.values():  # what it is still tested on would be paid for, and change nothing
                    await before.judge.checks.close()
            self._seated[key] = found  # the newest stands last
            return found

    async def _taken(self, spec: JudgeSpec | None) -> Connected:
        if spec is None:
            return Connected(self.first.configured, self._connect(self.first.configured))
        if self._probed is not None and self._probed[0] == spec:
            (_, model), self._probed = self._probed, None
            return model
        return await self._connected(spec)

    def _on_seat(self, model: Connected, swap: int) -> Seated:
        log.info("judges with %s from now on", model.configured.asked.model)
        if model.found is not None:
            model.provider.terms.tell(model.found.lacks)
            self._record(model.found)
        judge = model.configured.judge(model.provider, swap, self._on_call)
        return Seated(model, judge if self._accounts is None else self._accounts.cached(model.configured, judge))

    def _connect(self, configured: ConfiguredJudge) -> EndpointProvider:
        return configured.connect() if self._accounts is None else self._accounts.connect(configured)

    async def _connected(self, spec: JudgeSpec) -> Connected:
        """In a thread: to import an SDK for the first time takes a second or two, and requests are out meanwhile.
        Raises ModelFailure with what is to be mended."""

        def connect() -> Connected:
            configured = self._look_up(spec)
            return Connected(configured, self._connect(configured))

        try:
            return await asyncio.to_thread(connect)
        except OvenError as error:
            raise ModelFailure("not_configured", str(error)) from None

    async def _let_go(self) -> None:
        idle = [key for key, seated in [*self._seated.items()][:-KEPT] if not seated.users]
        for seated in [self._seated.pop(key) for key in idle]:
            await seated.judge.close()
