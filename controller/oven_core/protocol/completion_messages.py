"""Sampled groups of completions, on their own subject and in their own stream, never in the run's log.

They contain text from the training data and the policy, which the mesh must not read. They follow the same rules as the
messages in oven_core.protocol.messages.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import Message, Real, is_default

Form: TypeAlias = Literal["text", "shape"]
"""The kind of a completion's text: written by the policy, or a description of the sample if the policy writes no
text."""


class ShownText(BaseModel):
    """A text, whole or cut. Part of SampledGroup."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    text: str = Field(description="the whole text, or its beginning")
    cut: int = Field(default=0, ge=0, exclude_if=is_default, description="characters omitted after `text`")
    end: str = Field(default="", exclude_if=is_default, description="the text after the omitted characters")


class ShownCompletion(ShownText):
    """One answer of a group. Part of SampledGroup."""

    reward: Real | None = Field(default=None, description="absent: it has none")
    advantage: Real | None = Field(default=None, description="absent: it has none, as without a reward")


class MemberScores(BaseModel):
    """Scores of one committee member, or one reward function, for a group. Part of SampledGroup."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    member: str
    weight: Real | None = Field(default=None, description="its share or factor in the reward; absent: not known")
    scores: tuple[Real | None, ...] = Field(default=(), description="one per completion; null: it has none")
    reasons: tuple[str, ...] = Field(
        default=(), exclude_if=is_default, description="the member's reasons, one per completion; absent: it gave none"
    )
    abstained: str = Field(
        default="", exclude_if=is_default, description="why it has no scores, as in `committee/abstain/<kind>`"
    )


class SampledGroup(Message):
    """learner → monitors and operators, on `completions`. One prompt, its answers, and their scores."""

    type: Literal["SampledGroup"] = "SampledGroup"
    incarnation: int = Field(ge=1)
    number: int = Field(ge=1, description="counts the learner's samples; a missing one was dropped or not shown")
    tick: int = Field(ge=0)
    step: int = Field(ge=0, description="the optimizer step that trained on it first")
    group: int = Field(default=0, ge=0, description="its index among the groups of that step, from 0")
    groups: int = Field(default=1, ge=1, description="number of groups of that step")
    form: Form = "text"
    prompt: ShownText
    completions: tuple[ShownCompletion, ...] = ()
    left_out: int = Field(
        default=0, ge=0, exclude_if=is_default, description="completions of the group that are not shown"
    )
    members: tuple[MemberScores, ...] = ()
    redacted: bool = Field(
        default=False, exclude_if=is_default, description="a function of the user has edited every text"
    )


class CompletionsRequest(Message):
    """monitors, operators → mesh, as a request on `completions.stored`."""

    type: Literal["CompletionsRequest"] = "CompletionsRequest"
    after: int = Field(default=0, ge=0, description="the last sequence of the stream that the sender has")
    limit: int = Field(default=64, ge=1, le=256, description="at most this many, the newest ones")


class StoredGroup(BaseModel):
    """A sampled group as the stream has it. Part of CompletionsBatch."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    seq: int
    time: str = Field(description="when the server stored it, RFC 3339, UTC")
    group: SampledGroup


class CompletionsBatch(Message):
    """mesh → sender of the request. Groups in the order of the stream. A batch ends early if it would grow too
    large."""

    type: Literal["CompletionsBatch"] = "CompletionsBatch"
    groups: tuple[StoredGroup, ...]
    head: int = Field(description="the stream's last sequence at that time")
    has_stream: bool = Field(default=True, description="whether this run has a stream of completions")
