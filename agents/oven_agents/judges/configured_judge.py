"""A judge as the settings have it: its provider, its key, its rubric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from oven_agents.judges import providers
from oven_agents.judges.adversarial_controls import Controls
from oven_agents.judges.judge import Judge
from oven_agents.judges.prompts import Rubric
from oven_agents.judges.providers.provider import EndpointProvider
from oven_agents.judges.usage import OnCall
from oven_controller.settings.committee import read_rubric
from oven_controller.settings.judge_providers import Catalogue, ModelEndpoint, endpoint_of, key_of
from oven_controller.settings.model import MemberSettings


@dataclass(frozen=True)
class ConfiguredJudge:
    """What is known of a judge before anything is asked of it."""

    name: str
    asked: ModelEndpoint
    key: str
    rubric: Rubric
    top_logprobs: int
    """Alternatives a token that are wanted; 0: none."""

    @classmethod
    def look_up(
        cls, name: str, member: MemberSettings, known: Catalogue, environ: Mapping[str, str] = os.environ
    ) -> ConfiguredJudge:
        """Raises ConfigError for a provider that there is not, and for a missing address, key or rubric."""
        asked = endpoint_of(name, member, known)
        own = read_rubric(name, member.rubric) if member.rubric else ""
        rubric = Rubric(member.role, member.domain, own)
        return cls(name, asked, key_of(name, asked, environ), rubric, member.top_logprobs if member.logprobs else 0)

    def connect(self) -> EndpointProvider:
        """Imports the SDK, and asks nothing yet. Raises ConfigError when that is not installed."""
        return providers.connect(self.name, self.asked, self.key, self.top_logprobs)

    def judge(self, provider: EndpointProvider, controls: Controls | None, on_call: OnCall | None = None) -> Judge:
        return Judge(self.rubric, provider, controls, on_call)

    def __repr__(self) -> str:
        return f"ConfiguredJudge({self.name!r}, {self.asked!r})"  # without the key
