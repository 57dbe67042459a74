"""Requests to members of the reward committee, and their answers. None of them stands in the log.

The rules of oven_core.protocol.messages hold for them, too.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import Message, Real, is_default


class Completion(BaseModel):
    """One sampled answer. Ids are random and say nothing of the order. Part of ScoreRequest."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    text: str


class ScoreRequest(Message):
    """learner → remote committee member, as a request on `oven.reward.<member>`. Never in the log."""

    type: Literal["ScoreRequest"] = "ScoreRequest"
    run: str
    group: str = Field(description="names the group in the answer")
    prompt: str
    completions: tuple[Completion, ...] = Field(min_length=1, description="answers to that one prompt")
    policy: str = Field(default="", description="what is being trained, in words (ModelDescription)")
    domain: str = Field(default="", description="the field that its tasks are from, for a specialist")
    deadline_s: Real = Field(gt=0, description="seconds after which nobody waits for the answer any more")
    reference: str = Field(
        default="",
        exclude_if=is_default,
        description="an answer known to be right, to test the judge with; absent: none is known",
    )
    judge: JudgeSpec | None = Field(
        default=None,
        exclude_if=is_default,
        description="the model that has to score; absent: the one that the member was configured with",
    )
    swap: int = Field(
        default=0,
        ge=0,
        exclude_if=is_default,
        description="counts the member's swaps: with each its controls start anew",
    )


class JudgeHealth(BaseModel):
    """What a member found out about its judge by testing it. Part of ScoreReply."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    controls: int = Field(default=0, ge=0, description="groups so far into which known answers were slipped")
    controls_failed: int = Field(default=0, ge=0, description="of them, those that it got wrong")
    quarantined: bool = Field(default=False, description="it is asked for tests only")
    order_flips: Real | None = Field(
        default=None, ge=0, le=1, description="share of pairs that turned round when a group was shown in reverse"
    )
    change_p: Real | None = Field(
        default=None, ge=0, le=1, description="probability of what it says of old groups now, had it not changed"
    )
    changes: int = Field(default=0, ge=0, description="times that it was found to be another judge than before")
    cut_texts: int = Field(default=0, ge=0, description="texts so far that were too long to be shown whole")


class ScoreReply(Message):
    """remote committee member → learner. Scores for exactly the ids that were asked for, or the reason why not."""

    type: Literal["ScoreReply"] = "ScoreReply"
    member: str
    group: str
    judge: str = Field(
        default="",
        exclude_if=is_default,
        description="identity of the model that the request named; absent where it named none",
    )
    scores: dict[str, Real] | None = Field(default=None, description="completion id → 0..1; none: it abstains")
    reasons: dict[str, str] = Field(
        default_factory=dict,
        exclude_if=is_default,
        description="completion id → why, in the judge's words; absent: it gave none. For people: no score follows "
        "from it",
    )
    failure: str = Field(default="", description="the kind of failure behind an abstention, e.g. rate_limit")
    detail: str = Field(default="", max_length=500)
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cost_usd: Real | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="none: no price is known, or nothing was asked",
    )
    health: JudgeHealth | None = Field(default=None, description="none: the member does not test its judge")


class ProbeRequest(Message):
    """learner → remote committee member, as a request on `oven.probe.<member>`: whether it could judge with this model.
    The member asks it one small question; what judges now goes on."""

    type: Literal["ProbeRequest"] = "ProbeRequest"
    judge: JudgeSpec
    deadline_s: Real = Field(gt=0, description="seconds after which nobody waits for the answer any more")


class ProbeReply(Message):
    """remote committee member → learner. Without a failure the model gave a verdict that can be used."""

    type: Literal["ProbeReply"] = "ProbeReply"
    member: str
    judge: str = Field(description="identity of the model that was asked")
    failure: str = Field(default="", max_length=64, description="the kind of failure, e.g. auth; empty: it answered")
    detail: str = Field(default="", max_length=500, description="the failure in words, or what the model lacks")
