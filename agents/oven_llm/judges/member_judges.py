"""Manages the judges of one committee member: the configured judge, and the judges that replace it in swaps.

Every request names the model that must score it, so scoring also works during a swap and after a restart."""

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
from oven_llm.judges.judge import Judge, JudgeConfiguration
from oven_llm.judges.judge_probe import ProbeResult, probe
from oven_llm.judges.verdict_cache import CachedJudge, VerdictCache
from oven_llm.providers.budget import Budget
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.genai_telemetry import OnCall
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, cost_usd
from oven_runs.home import endpoint_checks
from oven_runs.home.model_spend import JUDGES, SPEND_FILE, Cap
from oven_runs.settings.committee_settings import CommitteeSettings

log = logging.getLogger("oven.member")

MAX_CONNECTED: Final = 2
"""Maximum judges that stay connected while they have no requests: the current judge and its predecessor."""

LookUp: TypeAlias = Callable[[JudgeSpec], JudgeConfiguration]
"""Returns the configuration of the member's judge with another model. Raises OvenError if there is none."""
JudgeKey: TypeAlias = tuple[JudgeSpec | None, int]
"""The model that a request names, or None for the configured model, and the number of swaps before the request."""


@dataclass
class ConnectedModel:
    """A judge's configuration and the connection to its model."""

    configuration: JudgeConfiguration
    model: RemoteModel
    spec: JudgeSpec | None = None
    """The model as requests name it; None for the configured model."""
    probe_result: ProbeResult | None = None
    """The result of its probe; None if it was not probed for a swap."""


@dataclass
class ActiveJudge:
    """A judge, its connected model and the number of its requests in progress."""

    connected: ConnectedModel
    judge: Judge | CachedJudge
    request_count: int = 0


class MemberJudges:
    """Scores each request with the judge that it names, and probes candidates for a swap."""

    def __init__(
        self,
        configuration: JudgeConfiguration,
        look_up: LookUp,
        on_call: OnCall | None = None,
        on_probe: Callable[[ProbeResult], None] = lambda _: None,
        budget_and_cache: BudgetAndCache | None = None,
    ) -> None:
        """Connect the configured judge. `on_probe` is called with the probe result of each model that judges after a
        swap. All judges share the budget and the cache, if there are any. Raises ConfigError if the configured judge's
        SDK is not installed, or if its price is needed and unknown."""
        self._look_up, self._on_call, self._on_probe = look_up, on_call, on_probe
        self._budget_and_cache = budget_and_cache
        self.configured_model = ConnectedModel(configuration, self._connect(configuration))
        """The configured judge's model."""
        self._judges: dict[JudgeKey, ActiveJudge] = {}  # in the order of their last use
        self._judges[None, 0] = self._activate(self.configured_model, 0)
        self._probed_model: ConnectedModel | None = None  # kept for the swap that may follow
        self._lock = asyncio.Lock()

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure."""
        active_judge = await self._get_judge((request.judge, request.swap))
        active_judge.request_count += 1
        tally.price = partial(cost_usd, active_judge.connected.configuration.endpoint)
        try:
            return await active_judge.judge.score(request, tally)
        finally:
            active_judge.request_count -= 1
            await self._close_unused()

    async def probe(self, spec: JudgeSpec, timeout_s: float, tally: CallTally) -> str:
        """Probe another model. Return sentences about its missing features. Raises ModelFailure if it cannot judge."""
        connected = await self._connect_in_thread(spec)
        result = await probe(connected.model, connected.configuration.rubric, timeout_s, tally)
        if result.failure is not None:
            await connected.model.close()
            raise ModelFailure(result.failure, "; ".join(filter(None, (result.detail, result.remedy))))
        connected.probe_result = result
        async with self._lock:
            previous, self._probed_model = self._probed_model, connected
        if previous is not None:
            await previous.model.close()
        return "; ".join(result.missing_features)

    def collect_unreported_tally(self) -> CallTally:
        """Return the usage and failures of the judges' checks that no reply has reported yet."""
        tally = CallTally()
        for active_judge in self._judges.values():
            tally.absorb(active_judge.judge.checks.unreported_tally)
        return tally

    async def close(self) -> None:
        for active_judge in self._judges.values():
            await active_judge.judge.close()
        if self._probed_model is not None:
            await self._probed_model.model.close()

    async def _get_judge(self, key: JudgeKey) -> ActiveJudge:
        """Return the judge that a request names. A new judge ends the checks of the earlier ones."""
        spec, swap_count = key
        async with self._lock:
            active_judge = self._judges.pop(key, None)
            if active_judge is None:
                active_judge = self._activate(await self._get_connected_model(spec), swap_count)
                for previous_judge in self._judges.values():
                    await previous_judge.judge.checks.close()  # checks of a replaced judge would waste money
            self._judges[key] = active_judge
            return active_judge

    async def _get_connected_model(self, spec: JudgeSpec | None) -> ConnectedModel:
        if spec is None:
            configuration = self.configured_model.configuration  # its first connection may be closed by now
            return ConnectedModel(configuration, self._connect(configuration))
        if self._probed_model is not None and self._probed_model.spec == spec:
            connected, self._probed_model = self._probed_model, None
            return connected
        return await self._connect_in_thread(spec)

    def _activate(self, connected: ConnectedModel, swap_count: int) -> ActiveJudge:
        configuration, model = connected.configuration, connected.model
        log.info("judging with %s from now on", model.model)
        if connected.probe_result is not None:
            model.terms.log_missing_features(connected.probe_result.missing_features)
            self._on_probe(connected.probe_result)
        judge = configuration.create_judge(model, swap_count, self._on_call)
        if self._budget_and_cache is None:
            return ActiveJudge(connected, judge)
        return ActiveJudge(connected, self._budget_and_cache.wrap(configuration, judge))

    def _connect(self, configuration: JudgeConfiguration) -> RemoteModel:
        if self._budget_and_cache is None:
            return configuration.connect()
        return self._budget_and_cache.connect(configuration)

    async def _connect_in_thread(self, spec: JudgeSpec) -> ConnectedModel:
        """Connect a model in a thread, because importing an SDK takes a second or two. Raises ModelFailure."""

        def connect() -> ConnectedModel:
            configuration = self._look_up(spec)
            return ConnectedModel(configuration, self._connect(configuration), spec)

        try:
            return await asyncio.to_thread(connect)
        except OvenError as error:
            raise ModelFailure("not_configured", str(error)) from None

    async def _close_unused(self) -> None:
        """Close judges without requests, except the most recently used ones."""
        least_recent = list(self._judges.items())[:-MAX_CONNECTED]
        unused_keys = [key for key, active_judge in least_recent if not active_judge.request_count]
        unused_judges = [self._judges.pop(key) for key in unused_keys]
        for active_judge in unused_judges:
            await active_judge.judge.close()


class BudgetAndCache:
    """A member's budget and verdict cache, in the run's folder."""

    def __init__(self, name: str, committee: CommitteeSettings, run_folder: Path) -> None:
        """Open the budget and the cache in `run_folder`. Raises ConfigError if the budget's ledger is unusable."""
        self._account = f"{JUDGES}/{name}"
        caps = (
            Cap(committee.budget, "committee.budget", JUDGES),
            Cap(committee.members[name].budget, f"committee.members.{name}.budget", self._account),
        )
        self._budget = Budget(caps, run_folder / SPEND_FILE, self._account)
        self._cache = (
            VerdictCache(run_folder / endpoint_checks.FOLDER / f"{name}.verdicts.sqlite") if committee.cache else None
        )

    def connect(self, configuration: JudgeConfiguration) -> RemoteModel:
        """Connect a judge's model and charge its calls to the member. Raises ConfigError like `providers.connect`."""
        return configuration.connect(self._budget, self._account)

    def wrap(self, configuration: JudgeConfiguration, judge: Judge) -> Judge | CachedJudge:
        """Return the judge, wrapped in the cache if there is one."""
        if self._cache is None:
            return judge
        endpoint = configuration.endpoint
        options = configuration.top_logprobs, configuration.check_settings.max_characters
        identity = [endpoint.provider, endpoint.wire, endpoint.base_url, endpoint.model, *options]
        return CachedJudge(judge, self._cache, json.dumps(identity))

    def close(self) -> None:
        self._budget.close()
        if self._cache is not None:
            self._cache.close()
