"""Settings of the agents that call a language model: tuner, author and supervisor."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _check_variable_name(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("it should be the name of an environment variable, not the key itself")
    return value


def _check_address(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^@?#\s]+", value):
        raise ValueError("it should be an address, http:// or https://, without a user, a password or a query")
    return value


Variable: TypeAlias = Annotated[str, AfterValidator(_check_variable_name)]
"""The name of an environment variable with a secret; empty for none."""
Address: TypeAlias = Annotated[str, AfterValidator(_check_address)]
"""The address of an API; empty for the provider's default."""


class ModelSettings(BaseModel):
    """The language model of an agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str = Field(min_length=1, description="provider of the API, as for a committee member")
    model: str = Field(min_length=1, description="the model's name at its provider")
    base_url: Address = Field(default="", description="address of the API; if empty, the provider's own")
    key_env: Variable = Field(
        default="",
        description="environment variable with the key; if empty, the provider's usual one, or none with a base_url",
    )


class TunerSettings(BaseModel):
    """The `tuner` agent, which asks a language model for a vote now and then. Nothing waits for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    llm: ModelSettings | None = Field(default=None, description="the model; if none, the agent is off")
    actuators: tuple[str, ...] = Field(
        default=("optimizer.lr_scale", "optimizer.weight_decay", "grad.clip", "grpo.beta"),
        min_length=1,
        max_length=16,
        description="scalars that it may propose to change, if the run has them",
    )
    shadow: bool = Field(default=True, description="log and score its votes without counting them")
    every: int = Field(default=20, ge=1, description="minimum ticks between two questions")
    expires: int = Field(default=10, ge=1, description="ticks after which an answer is too old for a vote")
    calls: int = Field(default=50, ge=1, le=10_000, description="maximum billed calls per run, including its resumes")
    deadline_s: float = Field(default=60.0, gt=0, le=600, description="seconds that an answer may take")


class AuthorSettings(BaseModel):
    """The `author` agent, whose language model writes prompts for topics in which training lags."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    llm: ModelSettings | None = Field(default=None, description="the model; if none, the agent is off")
    every: int = Field(default=100, ge=1, description="minimum ticks between two requests")
    prompts: int = Field(default=10, ge=1, le=50, description="maximum prompts per request; others are dropped")
    total: int = Field(default=500, ge=1, le=10_000, description="maximum prompts that the learner accepts in a run")
    share: float = Field(
        default=0.25, gt=0, le=1, description="maximum of data.authored_share, a share of a topic's draws"
    )
    examples: int = Field(
        default=2, ge=0, le=8, description="training prompts that the model sees per topic; if 0, only the names"
    )
    calls: int = Field(default=50, ge=1, le=10_000, description="maximum billed calls per run, including its resumes")
    deadline_s: float = Field(default=60.0, gt=0, le=600, description="seconds that an answer may take")


class SupervisorSettings(BaseModel):
    """The `supervisor` agent, whose language model writes programs that analyse the run's log. Nothing waits for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSettings | None = Field(
        default=None, description="the model that writes programs; if none, the agent is off"
    )
    worker: ModelSettings | None = Field(
        default=None, description="the model that its programs may ask; if none, the same model"
    )
    actuators: tuple[str, ...] = Field(
        default=("optimizer.lr_scale", "optimizer.weight_decay", "grad.clip", "grpo.beta"),
        min_length=1,
        max_length=16,
        description="settings that it may propose to change, if the run has them",
    )
    shadow: bool = Field(default=True, description="log and score its votes without counting them")
    every: int = Field(default=20, ge=1, description="minimum ticks between two diagnoses")
    expires: int = Field(default=20, ge=1, description="ticks after which an answer is too old for a vote")
    diagnoses: int = Field(default=10, ge=1, le=1000, description="maximum diagnoses per run, including its resumes")
    usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="limit in US dollars per run; prices must be known"
    )
    tokens: int | None = Field(default=1_000_000, ge=1, description="limit of tokens per run, both models together")
    seconds: float = Field(default=300.0, gt=0, le=3600, description="seconds that a diagnosis may take")
