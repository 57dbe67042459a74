"""What the judges of one member have in common over their lives: what they spent, and what they said of which group."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from oven_llm.judges.cached_judge import CachedJudge
from oven_llm.judges.configured_judge import ConfiguredJudge
from oven_llm.judges.judge import Judge
from oven_llm.judges.verdict_cache import VerdictCache
from oven_llm.providers.metered import Meter, MeteredEndpoint, check_priced
from oven_llm.providers.usage import cost_usd
from oven_runs.home.judge_states import FOLDER
from oven_runs.home.model_spend import Cap, ModelSpend, judges_file
from oven_runs.settings.committee_settings import CommitteeSettings


class Accounts:
    """A member's books and its cache, in the run's folder."""

    def __init__(self, name: str, committee: CommitteeSettings, run: Path) -> None:
        """`run`: the run's folder. Raises ConfigError where the books cannot be used."""
        member = committee.members[name]
        self._capped_usd = committee.budget.usd is not None or member.budget.usd is not None
        caps = (
            Cap(committee.budget, "committee.budget"),
            Cap(member.budget, f"committee.members.{name}.budget", whole=False),
        )
        self._spend = ModelSpend(judges_file(run), name, caps)
        self._cache = VerdictCache(run / FOLDER / f"{name}.verdicts.sqlite") if committee.cache else None

    def connect(self, configured: ConfiguredJudge) -> MeteredEndpoint:
        """As `configured.connect`, behind the meter. Raises ConfigError, also where US dollars are capped and the
        model's price is not known."""
        price = partial(cost_usd, configured.asked)
        if self._capped_usd:
            check_priced(f"committee member {configured.name!r}", configured.asked.model, price)
        return MeteredEndpoint(configured.connect(), Meter(self._spend, price))

    def cached(self, configured: ConfiguredJudge, judge: Judge) -> Judge | CachedJudge:
        """The judge behind the cache, if there is one."""
        if self._cache is None:
            return judge
        asked = configured.asked
        shown = configured.watching.characters
        identity = json.dumps([asked.provider, asked.wire, asked.base_url, asked.model, configured.top_logprobs, shown])
        return CachedJudge(judge, self._cache, identity)

    def close(self) -> None:
        self._spend.close()
        if self._cache is not None:
            self._cache.close()
