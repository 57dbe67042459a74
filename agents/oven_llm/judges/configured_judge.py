"""A judge as the settings have it: its provider, its key, its rubric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from oven_llm import providers
from oven_llm.judges.adversarial_controls import Controls
from oven_llm.judges.judge import Judge
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.judges.watching import CONTROLS_ONLY, Watching
from oven_llm.providers.provider import EndpointProvider
from oven_llm.providers.usage import OnCall
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import Catalogue, ModelEndpoint, endpoint_of, key_of
from oven_runs.settings.member_checks import read_rubric


@dataclass(frozen=True)
class ConfiguredJudge:
    """What is known of a judge before anything is asked of it."""

    name: str
    asked: ModelEndpoint
    key: str
    rubric: Rubric
    top_logprobs: int
    """Alternatives a token that are wanted; 0: none."""
    watching: Watching = CONTROLS_ONLY

    @classmethod
    def look_up(
        cls,
        name: str,
        member: MemberSettings,
        known: Catalogue,
        environ: Mapping[str, str] = os.environ,
        watching: Watching = CONTROLS_ONLY,
    ) -> ConfiguredJudge:
        """Raises ConfigError for a provider that there is not, and for a missing address, key or rubric."""
        asked = endpoint_of(name, member, known)
        own = read_rubric(name, member.rubric) if member.rubric else ""
        rubric = Rubric(member.role, member.domain, own)
        wanted = member.top_logprobs if member.logprobs else 0
        return cls(name, asked, key_of(name, asked, environ), rubric, wanted, watching)

    def connect(self) -> EndpointProvider:
        """Imports the SDK, and asks nothing yet. Raises ConfigError when that is not installed."""
        return providers.connect(self.name, self.asked, self.key, self.top_logprobs)

    def judge(self, provider: EndpointProvider, swap: int = 0, on_call: OnCall | None = None) -> Judge:
        """A judge that asks `provider`, with all that watches it. `swap` counts the member's swaps."""
        return Judge(self.rubric, provider, self._controls(swap), on_call, watching=self.watching)

    def _controls(self, swap: int) -> Controls:
        who = f"{self.asked.provider} {self.asked.base_url} {self.asked.model} {self.rubric.role}"
        # A rubric of the user's may score something else than what an answer says, as style's does.
        return self.watching.controls(who, swap, of_content=self.rubric.role != "style" and not self.rubric.own)

    def __repr__(self) -> str:
        return f"ConfiguredJudge({self.name!r}, {self.asked!r})"  # without the key
