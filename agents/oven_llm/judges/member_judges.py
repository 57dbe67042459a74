"""Manages one committee member's judges: the configured judge and those named in requests.

Every request names the model that must score it. This also works during a swap, and after a restart, when this process
has forgotten earlier swaps. A model is connected on its first request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from oven_core.errors import OvenError
from oven_core.protocol.committee_requests import ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_llm.judges.judge import ConfiguredJudge, Judge
from oven_llm.judges.probe import ProbeResult, probe
from oven_llm.judges.verdict_cache import CachedJudge, VerdictCache
from oven_llm.providers.budget import Budget
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.genai_telemetry import OnCall
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, cost_usd
from oven_runs.home.judge_states import FOLDER
from oven_runs.home.model_spend import JUDGES, NAME, Cap
from oven_runs.settings.committee_settings import CommitteeSettings

log = logging.getLogger("oven.member")

MAX_CONNECTED: Final = 2
"""Maximum connected judges: the current one and its predecessor, which may still have active requests."""

LookUp: TypeAlias = Callable[[JudgeSpec], ConfiguredJudge]
"""Returns the member with another model. Raises OvenError if it cannot be configured."""
Key: TypeAlias = tuple[JudgeSpec | None, int]
"""A request's model (None: the configured model) and the number of the swap that chose it."""


@dataclass
class Connected:
    """A connected model."""

    configured: ConfiguredJudge
    endpoint: RemoteModel
    probe: ProbeResult | None = None
    """The result of its probe, if it was probed for a swap."""


@dataclass
class Seated:
    """A judge, its connection and its number of active requests."""

    model: Connected
    judge: Judge | CachedJudge
    users: int = 0


class MemberJudges:
    """Scores requests with the judge that each one names, and probes candidates for a swap."""

    def __init__(
        self,
        configured: ConfiguredJudge,
        look_up: LookUp,
        on_call: OnCall | None = None,
        record: Callable[[ProbeResult], None] = lambda _: None,
        accounts: Accounts | None = None,
    ) -> None:
        """`record` receives the probe of each model that judges after a swap. `accounts`: the judges' common budget and
        cache; None: neither. Raises ConfigError if the configured judge's SDK is not installed, or if its price is
        needed and unknown."""
        self._look_up, self._on_call, self._record = look_up, on_call, record
        self._accounts = accounts
        self.first = Connected(configured, self._connect(configured))
        """The configured judge's model."""
        self._seated: dict[Key, Seated] = {(None, 0): self._new(self.first, 0)}  # the most recently used is last
        self._probed: tuple[JudgeSpec, Connected] | None = None  # its endpoint has learnt which terms are accepted
        self._changing = asyncio.Lock()

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure."""
        seated = await self._judge_for((request.judge, request.swap))
        seated.users += 1
        tally.price = partial(cost_usd, seated.model.configured.model)
        try:
            return await seated.judge.score(request, tally)
        finally:
            seated.users -= 1
            await self._close_unused()

    async def probe(self, spec: JudgeSpec, timeout_s: float, tally: CallTally) -> str:
        """Ask another model one small question. Return which requested features it lacks, in sentences; empty if none.
        Raises ModelFailure if it cannot judge."""
        model = await self._connect_in_thread(spec)
        result = await probe(model.endpoint, model.configured.rubric, timeout_s, tally)
        if result.failure is not None:
            await model.endpoint.close()
            raise ModelFailure(result.failure, "; ".join(part for part in (result.detail, result.remedy) if part))
        model.probe = result
        async with self._changing:
            before, self._probed = self._probed, (spec, model)
        if before is not None:
            await before[1].endpoint.close()
        return "; ".join(result.lacks)

    def unreported(self) -> CallTally:
        """Usage and faults of the judges' checks that no reply has reported yet."""
        tally = CallTally()
        for seated in self._seated.values():
            tally.absorb(seated.judge.checks.aside)
        return tally

    async def close(self) -> None:
        """Close all connections."""
        for seated in self._seated.values():
            await seated.judge.close()
        if self._probed is not None:
            await self._probed[1].endpoint.close()

    async def _judge_for(self, key: Key) -> Seated:
        async with self._changing:
            seated = self._seated.pop(key, None)
            if seated is None:
                seated = self._new(await self._model(key[0]), key[1])
                for earlier in self._seated.values():  # their checks would cost money and change nothing
                    await earlier.judge.checks.close()
            self._seated[key] = seated
            return seated

    async def _model(self, spec: JudgeSpec | None) -> Connected:
        if spec is None:
            return Connected(self.first.configured, self._connect(self.first.configured))
        if self._probed is not None and self._probed[0] == spec:
            (_, model), self._probed = self._probed, None
            return model
        return await self._connect_in_thread(spec)

    def _new(self, model: Connected, swap: int) -> Seated:
        log.info("judges with %s from now on", model.configured.model.model)
        if model.probe is not None:
            model.endpoint.terms.log_lacks(model.probe.lacks)
            self._record(model.probe)
        judge = model.configured.judge(model.endpoint, swap, self._on_call)
        return Seated(model, judge if self._accounts is None else self._accounts.cached(model.configured, judge))

    def _connect(self, configured: ConfiguredJudge) -> RemoteModel:
        return configured.connect() if self._accounts is None else self._accounts.connect(configured)

    async def _connect_in_thread(self, spec: JudgeSpec) -> Connected:
        """The first import of an SDK takes a second or two, while requests are under way. Raises ModelFailure if the
        model cannot be configured."""

        def connect() -> Connected:
            configured = self._look_up(spec)
            return Connected(configured, self._connect(configured))

        try:
            return await asyncio.to_thread(connect)
        except OvenError as error:
            raise ModelFailure("not_configured", str(error)) from None

    async def _close_unused(self) -> None:
        idle = [key for key, seated in [*self._seated.items()][:-MAX_CONNECTED] if not seated.users]
        for seated in [self._seated.pop(key) for key in idle]:
            await seated.judge.close()


class Accounts:
    """A member's budget and cache, in the run's folder."""

    def __init__(self, name: str, committee: CommitteeSettings, run: Path) -> None:
        """`run`: the run's folder. Raises ConfigError if the record of spending cannot be used."""
        self._account = f"{JUDGES}/{name}"
        caps = (
            Cap(committee.budget, "committee.budget", JUDGES),
            Cap(committee.members[name].budget, f"committee.members.{name}.budget", self._account),
        )
        self._budget = Budget(caps, run / NAME, self._account)
        self._cache = VerdictCache(run / FOLDER / f"{name}.verdicts.sqlite") if committee.cache else None

    def connect(self, configured: ConfiguredJudge) -> RemoteModel:
        """Connect a judge's model, charged to the member. Raises ConfigError as `providers.connect` does."""
        return configured.connect(self._budget, self._account)

    def cached(self, configured: ConfiguredJudge, judge: Judge) -> Judge | CachedJudge:
        """Return the judge, wrapped in the cache if there is one."""
        if self._cache is None:
            return judge
        model, characters = configured.model, configured.watching.characters
        identity = [model.provider, model.wire, model.base_url, model.model, configured.top_logprobs, characters]
        return CachedJudge(judge, self._cache, json.dumps(identity))

    def close(self) -> None:
        self._budget.close()
        if self._cache is not None:
            self._cache.close()
