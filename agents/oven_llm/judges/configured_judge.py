"""A judge as the settings describe it: its model, its key and its rubric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from oven_llm import providers
from oven_llm.judges.judge import CONTROLS_ONLY, Judge, Watching
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.providers.budget import Budget
from oven_llm.providers.genai_telemetry import OnCall
from oven_llm.providers.remote_model import RemoteModel
from oven_runs.settings.committee_members import read_rubric
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import Catalogue, ModelEndpoint, endpoint_of, key_of


@dataclass(frozen=True)
class ConfiguredJudge:
    """Everything that is known about a judge before it is asked."""

    name: str
    model: ModelEndpoint
    key: str
    rubric: Rubric
    top_logprobs: int
    """Alternatives per token to request; 0: none."""
    watching: Watching = CONTROLS_ONLY

    @classmethod
    def look_up(
        cls,
        name: str,
        member: MemberSettings,
        catalogue: Catalogue,
        environ: Mapping[str, str] = os.environ,
        watching: Watching = CONTROLS_ONLY,
    ) -> ConfiguredJudge:
        """Raises ConfigError for an unknown provider and for a missing address, key or rubric."""
        model = endpoint_of(name, member, catalogue)
        text = read_rubric(name, member.rubric) if member.rubric else ""
        rubric = Rubric(member.role, member.domain, text)
        top_logprobs = member.top_logprobs if member.logprobs else 0
        return cls(name, model, key_of(name, model, environ), rubric, top_logprobs, watching)

    def connect(self, budget: Budget | None = None, account: str = "") -> RemoteModel:
        """Import the SDK without sending a request. Raises ConfigError as `providers.connect` does."""
        return providers.connect(self.name, self.model, self.key, self.top_logprobs, budget, account)

    def judge(self, endpoint: RemoteModel, swap: int = 0, on_call: OnCall | None = None) -> Judge:
        """A judge that asks `endpoint`, with all its checks. `swap` counts the member's swaps."""
        judge = f"{self.model.provider} {self.model.base_url} {self.model.model} {self.rubric.role}"
        # A user's rubric may score something other than the content, as the role style does.
        of_content = self.rubric.role != "style" and not self.rubric.text
        controls = self.watching.controls(judge, swap, of_content=of_content)
        return Judge(self.rubric, endpoint, controls, on_call, watching=self.watching)

    def __repr__(self) -> str:
        return f"ConfiguredJudge({self.name!r}, {self.model!r})"  # without the key
