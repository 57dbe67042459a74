"""Settings of the reward committee: its members, their budget and the frontier calibrator."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from oven_runs.settings.language_models import Address, Variable

AggregationRule: TypeAlias = Literal["lower_quantile", "cautious"]
"""The rule that merges several members' scores into one reward (see oven_learner/rewards/aggregation.py)."""


class BudgetSettings(BaseModel):
    """Spending caps for language models in a run, across restarts and resumes. None means no cap."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="limit in US dollars; each model's price must be known"
    )
    tokens: int | None = Field(default=None, ge=1, description="limit of tokens, prompts and answers together")
    calls: int | None = Field(default=None, ge=1, description="limit of calls that were, or may have been, billed")

    @property
    def is_capped(self) -> bool:
        return self != BudgetSettings()


MemberKind: TypeAlias = Literal["llm", "rule", "verifier"]
Role: TypeAlias = Literal["critic", "adversary", "specialist", "style", "informativeness"]

MAX_LOGPROBS = 20
"""Maximum alternatives per token that any provider offers: the limit of OpenAI and DeepSeek."""


class MemberSettings(BaseModel):
    """A member of the reward committee in addition to the script's own rules: a judge, a rule, or the verifier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: MemberKind = Field(
        default="llm",
        description="llm: a judge in a separate process; rule: a function in the learner; verifier: the learner "
        "measures similarity to the local teacher's own answer",
    )
    provider: str = Field(
        default="",
        description="the API's provider: claude, openai, deepseek, grok, together, compatible (any server that speaks "
        "OpenAI's chat completions), or a provider that `committee.providers` adds",
    )
    model: str = Field(
        default="", description="the model's name at its provider; for a verifier: a folder, or empty for the default"
    )
    role: Role = Field(
        default="critic",
        description="critic: quality against the task; adversary: tricks and invented content; specialist: the "
        "domain's own standards; style: clarity, tone and form; informativeness: how specific a right answer is",
    )
    domain: str = Field(
        default="", max_length=200, description="a specialist's field; if empty, the domain of the ModelDescription"
    )
    rubric: str = Field(default="", description="a text file that replaces the role's instructions")
    rule: str = Field(default="", description="for a rule: an entry point of the group oven.rewards, or FILE:FUNCTION")
    base_url: Address = Field(default="", description="address of the API; if empty, the provider's own")
    key_env: Variable = Field(
        default="",
        description="environment variable with the key; if empty, the provider's usual one, or none with a base_url",
    )
    budget: BudgetSettings = Field(
        default=BudgetSettings(), description="spending limits of this member: {usd: …, tokens: …, calls: …}"
    )
    logprobs: bool = Field(default=False, description="request the tokens' log-probabilities, if the model offers them")
    top_logprobs: int = Field(
        default=5, ge=1, le=MAX_LOGPROBS, description="maximum alternatives per token with `logprobs`"
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        needed = {"llm": ("provider", "model"), "rule": ("rule",), "verifier": ()}[self.kind]
        allowed = {*needed, "kind", *_OPTIONAL[self.kind]}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in needed and not value:
                raise ValueError(f"a member of the kind {self.kind} needs `{name}`")
            if name not in allowed and value != field.default:
                raise ValueError(f"`{name}` has no meaning for a member of the kind {self.kind}; remove it")
        if self.domain and self.role != "specialist":
            raise ValueError(f"`domain` is only for the role specialist, but the role is {self.role}; remove it")
        return self


_OPTIONAL: dict[MemberKind, tuple[str, ...]] = {
    "llm": ("role", "domain", "rubric", "base_url", "key_env", "logprobs", "top_logprobs", "budget"),
    "rule": (),
    "verifier": ("model",),
}
"""Optional fields of each kind of member."""


class FrontierSettings(BaseModel):
    """The frontier calibrator. A frontier model answers fixed prompts once, and every few steps the policy is compared
    with its answers. The comparison never affects a reward or a loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str = Field(default="", description="provider of the API, as for a member")
    model: str = Field(default="", description="the model's name at its provider; if empty, no calibrator")
    base_url: Address = Field(default="", description="address of the API, as for a member")
    key_env: Variable = Field(default="", description="environment variable with the key, as for a member")
    prompts: str = Field(default="", description="file with one prompt per line, or .jsonl with `prompt`")
    top_logprobs: int = Field(default=MAX_LOGPROBS, ge=1, le=MAX_LOGPROBS, description="maximum alternatives per token")
    max_tokens: int = Field(default=256, ge=1, le=1024, description="token limit of an answer")
    every: int = Field(default=50, ge=1, description="steps between two comparisons")

    @field_validator("prompts")
    @classmethod
    def _make_absolute(cls, value: str) -> str:
        return str(Path(value).absolute()) if value else value  # a script may run in another folder

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        missing_settings = [name for name in ("provider", "model", "prompts") if not getattr(self, name)]
        if 0 < len(missing_settings) < 3:
            raise ValueError(
                f"the calibrator lacks {', '.join(missing_settings)}; set provider, model and prompts, or none of them"
            )
        return self

    @property
    def member(self) -> MemberSettings:
        """Return the model in the form of a member's settings. A model must be set."""
        return MemberSettings(
            provider=self.provider,
            model=self.model,
            base_url=self.base_url,
            key_env=self.key_env,
            logprobs=True,
            top_logprobs=self.top_logprobs,
        )


class CommitteeSettings(BaseModel):
    """Members that score completions in addition to the recipe's own rules, and the rule that combines their scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    members: dict[str, MemberSettings] = Field(
        default_factory=dict, description="members in addition to the script's own rules, by name"
    )
    providers: str = Field(
        default="", description="YAML file merged into the packaged catalogue of providers, by provider and model"
    )
    quorum: int | None = Field(
        default=None, ge=1, description="scores that a group needs; default: two, or one if only one member has weight"
    )
    deadline_s: float = Field(
        default=20.0, gt=0, le=600, description="seconds that remote members have for all groups of a step"
    )
    rule: AggregationRule = Field(
        default="lower_quantile", description="how the members' scores become one reward (docs/judging.md)"
    )
    caution: float = Field(
        default=0.5, ge=0, le=2, description="λ in weighted mean − λ × weighted deviation, for the rule cautious"
    )
    reliability: bool = Field(
        default=True, description="multiply remote members' weights by their agreement with the others so far"
    )
    reference: str = Field(
        default="",
        description="source of correct answers to test judges with: a rule of the committee, whose full marks prove an "
        "answer correct, or a column of the data set; if empty, judges are tested with known-bad answers only",
    )
    characters: int = Field(
        default=8000,
        ge=200,
        le=1_000_000,
        description="characters of a prompt or completion that a judge sees; longer ones are truncated in the middle",
    )
    reversed_share: float = Field(
        default=0.05, ge=0, le=1, description="share of groups that a judge scores a second time, in reverse order"
    )
    rescore_every: int = Field(
        default=160, ge=0, description="new groups after which a judge scores 16 old ones again; if 0, never"
    )
    hold_after: int = Field(
        default=10, ge=1, description="steps in a row without a scored group after which the run is held"
    )
    ahead: Literal[0, 1] = Field(
        default=0,
        description="1: generate the next completions while the judges score these, which are then trained on one "
        "optimizer step after the policy that wrote them",
    )
    frontier: FrontierSettings = FrontierSettings()
    budget: BudgetSettings = BudgetSettings()
    cache: bool = Field(default=True, description="reuse a judge's scores of a group that it has scored in this run")

    @model_validator(mode="after")
    def _check_caution(self) -> Self:
        if self.rule != "cautious" and self.caution != type(self).model_fields["caution"].default:
            raise ValueError(
                f"caution only affects the rule cautious, but rule is {self.rule}; set rule: cautious, or remove it"
            )
        return self

    @property
    def judges(self) -> dict[str, MemberSettings]:
        """The members that run as separate processes and are reached over the bus."""
        return {name: member for name, member in self.members.items() if member.kind == "llm"}
