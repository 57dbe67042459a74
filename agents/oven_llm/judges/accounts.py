"""Resources that the successive judges of one member share: the budget that they spend, and the cache of their
verdicts."""

from __future__ import annotations

import json
from pathlib import Path

from oven_llm.judges.configured_judge import ConfiguredJudge
from oven_llm.judges.judge import Judge
from oven_llm.judges.verdict_cache import CachedJudge, VerdictCache
from oven_llm.providers.budget import Budget
from oven_llm.providers.remote_model import RemoteModel
from oven_runs.home.judge_states import FOLDER
from oven_runs.home.model_spend import JUDGES, NAME, Cap
from oven_runs.settings.committee_settings import CommitteeSettings


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
        """The judge behind the cache, if there is one."""
        if self._cache is None:
            return judge
        model, characters = configured.model, configured.watching.characters
        identity = [model.provider, model.wire, model.base_url, model.model, configured.top_logprobs, characters]
        return CachedJudge(judge, self._cache, json.dumps(identity))

    def close(self) -> None:
        self._budget.close()
        if self._cache is not None:
            self._cache.close()
