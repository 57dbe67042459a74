"""Settings of the reward committee: its members, what they may spend, the calibrator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from oven_core.errors import UnknownNameError
from oven_runs.settings.variable_name import Variable

AggregationRule: TypeAlias = Literal["lower_quantile", "cautious", "trimmed", "median", "min"]
"""How several members' scores become one reward; oven_learner/rewards/aggregation/rules.py has what each does."""


def _known_rule(value: Any) -> Any:
    if isinstance(value, str) and value not in (known := get_args(AggregationRule)):
        raise ValueError(str(UnknownNameError("rule", value, known)))
    return value


class BudgetSettings(BaseModel):
    """What may be spent on remote judges in a run, over all its incarnations. No cap where nothing is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="US dollars; the price of each model must be known"
    )
    tokens: int | None = Field(default=None, ge=1, description="tokens, of prompts and answers together")
    calls: int | None = Field(default=None, ge=1, description="calls that were, or may have been, billed")

    @property
    def capped(self) -> bool:
        """Whether anything is."""
        return self != BudgetSettings()


def _one_of(kind: str, known: tuple[str, ...]) -> BeforeValidator:
    """Refuses another word with the nearest ones."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and value not in known:
            raise ValueError(str(UnknownNameError(kind, value, known)))
        return value

    return BeforeValidator(check)


def _without_secrets(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^@?#\s]+", value):
        raise ValueError("it should be an address, http:// or https://, without a user, a password or a query")
    return value


Address: TypeAlias = Annotated[str, AfterValidator(_without_secrets)]
MemberKind: TypeAlias = Literal["llm", "rule", "verifier"]
Role: TypeAlias = Literal["critic", "adversary", "specialist", "style", "informativeness"]

MOST_LOGPROBS = 20
"""Alternatives a token that any of the providers gives: OpenAI's and DeepSeek's limit."""


class MemberSettings(BaseModel):
    """A member of the reward committee beside the script's own rules: a judge (which model, whose, in which role), a
    rule, or the verifier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Annotated[MemberKind, _one_of("kind of member", get_args(MemberKind))] = Field(
        default="llm",
        description="llm: a judge, as a separate process; rule: a function, in the learner; verifier: nearness to "
        "the local teacher's own answer, in the learner",
    )
    provider: str = Field(
        default="",
        description="whose API: claude, openai, deepseek, grok, together, compatible (any server that speaks OpenAI's "
        "chat completions), or one that `committee.providers` adds",
    )
    model: str = Field(
        default="", description="the model's name at its provider; of a verifier: a folder, or empty for the usual one"
    )
    role: Annotated[Role, _one_of("role", get_args(Role))] = Field(
        default="critic",
        description="critic: quality against the task; adversary: tricks, and what is made up; specialist: the "
        "domain's own standards; style: clarity, tone and form; informativeness: how much a right answer tells",
    )
    domain: str = Field(
        default="", max_length=200, description="a specialist's field; empty: that of the ModelDescription"
    )
    rubric: str = Field(default="", description="a text file that takes the place of the role's instructions")
    rule: str = Field(default="", description="of a rule: an entry point of the group oven.rewards, or FILE:FUNCTION")
    base_url: Address = Field(default="", description="empty: the provider's own")
    key_env: Variable = Field(
        default="",
        description="environment variable with the key; empty: the provider's usual one, or no key with a base_url",
    )
    budget: BudgetSettings = Field(
        default=BudgetSettings(), description="what this member may spend: {usd: …, tokens: …, calls: …}"
    )
    logprobs: bool = Field(
        default=False, description="ask for log-probabilities of the tokens, where the model has them"
    )
    top_logprobs: int = Field(
        default=5,
        ge=1,
        le=MOST_LOGPROBS,
        description="alternatives a token, with `logprobs`; fewer where fewer are given",
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        needed = {"llm": ("provider", "model"), "rule": ("rule",), "verifier": ()}[self.kind]
        taken = {*needed, "kind", *_OF_KIND[self.kind]}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in needed and not value:
                raise ValueError(f"a member of the kind {self.kind} needs `{name}`")
            if name not in taken and value != field.default:
                raise ValueError(f"`{name}` has no meaning for a member of the kind {self.kind}; leave it out")
        if self.domain and self.role != "specialist":
            raise ValueError(f"`domain` is for the role specialist, and this one is {self.role}; leave it out")
        return self


_OF_KIND: dict[MemberKind, tuple[str, ...]] = {
    "llm": ("role", "domain", "rubric", "base_url", "key_env", "logprobs", "top_logprobs", "budget"),
    "rule": (),
    "verifier": ("model",),
}
"""What may be said of a kind beside what must be."""


class FrontierSettings(BaseModel):
    """The frontier calibrator: a fixed set of prompts that a frontier model answers once, and that the policy is held
    against every few steps. It never enters a reward or a loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str = Field(default="", description="whose API, as for a member")
    model: str = Field(default="", description="the model's name at its provider; empty: no calibrator")
    base_url: str = Field(default="", pattern="^$|^https?://[^@]*$", description="as for a member")
    key_env: str = Field(default="", pattern="^$|^[A-Za-z_][A-Za-z0-9_]*$", description="as for a member")
    prompts: str = Field(default="", description="file of the prompts, one per line, or .jsonl with `prompt`")
    top_logprobs: int = Field(
        default=MOST_LOGPROBS,
        ge=1,
        le=MOST_LOGPROBS,
        description="alternatives to each token; fewer where fewer are given",
    )
    max_tokens: int = Field(default=256, ge=1, le=1024, description="tokens of an answer at most")
    every: int = Field(default=50, ge=1, description="steps between two readings")

    @field_validator("prompts")
    @classmethod
    def _absolute(cls, value: str) -> str:
        return str(Path(value).absolute()) if value else value  # a script may run in another folder

    @model_validator(mode="after")
    def _whole(self) -> Self:
        missing = [name for name in ("provider", "model", "prompts") if not getattr(self, name)]
        if 0 < len(missing) < 3:
            raise ValueError(f"the calibrator lacks {', '.join(missing)}; give provider, model and prompts, or none")
        return self

    @property
    def member(self) -> MemberSettings:
        """The same as a member's model is found and asked. Only where there is a model."""
        return MemberSettings(
            provider=self.provider,
            model=self.model,
            base_url=self.base_url,
            key_env=self.key_env,
            logprobs=True,
            top_logprobs=self.top_logprobs,
        )


class CommitteeSettings(BaseModel):
    """Who scores completions beside the recipe's own rules, and what becomes of their scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    members: dict[str, MemberSettings] = Field(
        default_factory=dict, description="members beside the script's own rules, by name"
    )
    providers: str = Field(
        default="", description="YAML file laid over the packaged catalogue of providers, by provider and model"
    )
    quorum: int | None = Field(
        default=None, ge=1, description="scores that a group needs; none: two, or one where one member has weight"
    )
    deadline_s: float = Field(
        default=20.0, gt=0, le=600, description="seconds that remote members have for all groups of a step"
    )
    rule: Annotated[AggregationRule, BeforeValidator(_known_rule)] = Field(
        default="lower_quantile", description="how the members' scores become one reward (docs/judging.md)"
    )
    caution: float = Field(
        default=0.5, ge=0, le=2, description="λ in weighted mean − λ × weighted deviation, where the rule is cautious"
    )
    reliability: bool = Field(
        default=True, description="remote members' weights are multiplied by how far they agreed with the others so far"
    )
    reference: str = Field(
        default="",
        description="where an answer known to be right comes from, to test judges with: a rule of the committee, whose "
        "full marks prove one right, or a column of the data set; empty: judges are tested with known-bad ones only",
    )
    characters: int = Field(
        default=8000,
        ge=200,
        le=1_000_000,
        description="characters of a prompt or completion that a judge is shown; of a longer one the two ends",
    )
    swapped: float = Field(
        default=0.05, ge=0, le=1, description="share of groups that a judge is asked for again in reverse order"
    )
    asked_again_every: int = Field(
        default=160, ge=0, description="groups until a judge is asked again for 16 old ones; 0: never"
    )
    hold_after: int = Field(default=10, ge=1, description="steps in a row without a scored group until the run holds")
    ahead: Literal[0, 1] = Field(
        default=0,
        description="1: the next completions are made while these are with the judges; they are then trained on one "
        "optimizer step after the policy that wrote them",
    )
    frontier: FrontierSettings = FrontierSettings()
    budget: BudgetSettings = BudgetSettings()
    cache: bool = Field(
        default=True, description="a group that a judge has scored in this run is not asked for, and paid, again"
    )

    @model_validator(mode="after")
    def _caution_is_read(self) -> Self:
        if self.rule != "cautious" and self.caution != type(self).model_fields["caution"].default:
            raise ValueError(
                f"caution is read by the rule cautious alone; set rule: cautious, or leave it out: rule is {self.rule}"
            )
        return self

    @property
    def judges(self) -> dict[str, MemberSettings]:
        """The members that are processes of their own, and are asked over the bus."""
        return {name: member for name, member in self.members.items() if member.kind == "llm"}
