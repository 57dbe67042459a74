"""Manages the judges of one committee member: the configured judge, and the judges that replace it in swaps.

Every request names the model that must score it, so this also works during a swap and after a restart. A model is
connected when the first request names it."""

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
from oven_llm.judges.judge_probe import ProbeResult, probe
from oven_llm.judges.verdict_cache import CachedJudge, VerdictCache
from oven_llm.providers.budget import Budget
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.genai_telemetry import OnCall
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, cost_usd
from oven_runs.home.endpoint_checks import FOLDER
from oven_runs.home.model_spend import JUDGES, NAME, Cap
from oven_runs.settings.committee_settings import CommitteeSettings

log = logging.getLogger("oven.member")

MAX_CONNECTED: Final = 2
"""Maximum judges that stay connected while they have no requests: the current judge and its predecessor."""

LookUp: TypeAlias = Callable[[JudgeSpec], ConfiguredJudge]
"""Returns the member's judge with another model. Raises OvenError if it cannot be configured."""
Key: TypeAlias = tuple[JudgeSpec | None, int]
"""A request's model (None: the configured model) and the number of the swap that chose it."""


@dataclass
class ConnectedModel:
    """A judge's configuration and the connection to its model."""

    configuration: ConfiguredJudge
    endpoint: RemoteModel
    probe: ProbeResult | None = None
    """The result of its probe, if it was probed for a swap."""


@dataclass
class ActiveJudge:
    """A judge, its connection and the number of its requests in progress."""

    model: ConnectedModel
    judge: Judge | CachedJudge
    requests: int = 0


class MemberJudges:
    """Scores each request with the judge that it names, and probes candidates for a swap."""

    def __init__(
        self,
        configuration: ConfiguredJudge,
        look_up: LookUp,
        on_call: OnCall | None = None,
        on_probe: Callable[[ProbeResult], None] = lambda _: None,
        accounts: Accounts | None = None,
    ) -> None:
        """Connect the configured judge. `on_probe` is called with the probe result of each model that judges after a
        swap. `accounts`: the judges' shared budget and cache; None: neither. Raises ConfigError if the configured
        judge's SDK is not installed, or if its price is needed and unknown."""
        self._look_up, self._on_call, self._on_probe = look_up, on_call, on_probe
        self._accounts = accounts
        self.configured_model = ConnectedModel(configuration, self._connect(configuration))
        """The configured judge's model."""
        self._judges: dict[Key, ActiveJudge] = {(None, 0): self._activate(self.configured_model, 0)}  # by last use
        self._probed_model: tuple[JudgeSpec, ConnectedModel] | None = None  # reused, as it knows the missing features
        self._lock = asyncio.Lock()

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure."""
        active_judge = await self._judge_for((request.judge, request.swap))
        active_judge.requests += 1
        tally.price = partial(cost_usd, active_judge.model.configuration.model)
        try:
            return await active_judge.judge.score(request, tally)
        finally:
            active_judge.requests -= 1
            await self._close_unused()

    async def probe(self, spec: JudgeSpec, timeout_s: float, tally: CallTally) -> str:
        """Ask another model one short question. Return sentences about the features that it lacks, or an empty string.
        Raises ModelFailure if the model cannot judge."""
        model = await self._connect_in_thread(spec)
        result = await probe(model.endpoint, model.configuration.rubric, timeout_s, tally)
        if result.failure is not None:
            await model.endpoint.close()
            raise ModelFailure(result.failure, "; ".join(filter(None, (result.detail, result.remedy))))
        model.probe = result
        async with self._lock:
            previous, self._probed_model = self._probed_model, (spec, model)
        if previous is not None:
            await previous[1].endpoint.close()
        return "; ".join(result.missing_features)

    def collect_unreported_tally(self) -> CallTally:
        """Return the usage and failures of the judges' checks that no reply has reported yet."""
        tally = CallTally()
        for active_judge in self._judges.values():
            tally.absorb(active_judge.judge.checks.unreported_tally)
        return tally

    async def close(self) -> None:
        """Close all connections."""
        for active_judge in self._judges.values():
            await active_judge.judge.close()
        if self._probed_model is not None:
            await self._probed_model[1].endpoint.close()

    async def _judge_for(self, key: Key) -> ActiveJudge:
        """Return the judge that a request names. A new judge ends the checks of the earlier ones."""
        async with self._lock:
            active_judge = self._judges.pop(key, None)
            if active_judge is None:
                active_judge = self._activate(await self._connected_model(key[0]), key[1])
                for previous_judge in self._judges.values():  # their checks would cost money for nothing
                    await previous_judge.judge.checks.close()
            self._judges[key] = active_judge
            return active_judge

    async def _connected_model(self, spec: JudgeSpec | None) -> ConnectedModel:
        if spec is None:
            return ConnectedModel(
                self.configured_model.configuration, self._connect(self.configured_model.configuration)
            )
        if self._probed_model is not None and self._probed_model[0] == spec:
            (_, model), self._probed_model = self._probed_model, None
            return model
        return await self._connect_in_thread(spec)

    def _activate(self, model: ConnectedModel, swap: int) -> ActiveJudge:
        log.info("judging with %s from now on", model.configuration.model.model)
        if model.probe is not None:
            model.endpoint.terms.log_missing_features(model.probe.missing_features)
            self._on_probe(model.probe)
        judge = model.configuration.judge(model.endpoint, swap, self._on_call)
        return ActiveJudge(model, judge if self._accounts is None else self._accounts.wrap(model.configuration, judge))

    def _connect(self, configuration: ConfiguredJudge) -> RemoteModel:
        return configuration.connect() if self._accounts is None else self._accounts.connect(configuration)

    async def _connect_in_thread(self, spec: JudgeSpec) -> ConnectedModel:
        """Connect a model in a thread, because the first import of an SDK takes one or two seconds. Raises ModelFailure
        if the model cannot be configured."""

        def connect() -> ConnectedModel:
            configuration = self._look_up(spec)
            return ConnectedModel(configuration, self._connect(configuration))

        try:
            return await asyncio.to_thread(connect)
        except OvenError as error:
            raise ModelFailure("not_configured", str(error)) from None

    async def _close_unused(self) -> None:
        oldest = list(self._judges.items())[:-MAX_CONNECTED]
        unused_keys = [key for key, active_judge in oldest if not active_judge.requests]
        for active_judge in [self._judges.pop(key) for key in unused_keys]:
            await active_judge.judge.close()


class Accounts:
    """A member's budget and cache, in the run's folder."""

    def __init__(self, name: str, committee: CommitteeSettings, run: Path) -> None:
        """Open the budget and the cache in the folder `run`. Raises ConfigError if the budget's ledger is unusable."""
        self._account = f"{JUDGES}/{name}"
        caps = (
            Cap(committee.budget, "committee.budget", JUDGES),
            Cap(committee.members[name].budget, f"committee.members.{name}.budget", self._account),
        )
        self._budget = Budget(caps, run / NAME, self._account)
        self._cache = VerdictCache(run / FOLDER / f"{name}.verdicts.sqlite") if committee.cache else None

    def connect(self, configuration: ConfiguredJudge) -> RemoteModel:
        """Connect a judge's model and charge its calls to the member. Raises ConfigError like `providers.connect`."""
        return configuration.connect(self._budget, self._account)

    def wrap(self, configuration: ConfiguredJudge, judge: Judge) -> Judge | CachedJudge:
        """Return the judge, wrapped in the cache if there is one."""
        if self._cache is None:
            return judge
        model, characters = configuration.model, configuration.checks.characters
        identity = [model.provider, model.wire, model.base_url, model.model, configuration.top_logprobs, characters]
        return CachedJudge(judge, self._cache, json.dumps(identity))

    def close(self) -> None:
        self._budget.close()
        if self._cache is not None:
            self._cache.close()
