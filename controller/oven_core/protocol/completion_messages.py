"""Messages with sampled groups of completions. They have their own subject and stream, and are never in a run's log.

They contain text from the training data and the policy, which the mesh must not read. They follow the same rules as the
messages in oven_core.protocol.messages.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import Message, Real, is_default

COMPLETION_BYTES: Final = 256 * 1024
"""Maximum bytes of one sampled group. The learner truncates its texts until it fits."""
Form: TypeAlias = Literal["text", "shape"]
"""The form of completions: `text` written by the policy, or descriptions (`shape`) of samples that are not text."""


class ShownText(BaseModel):
    """A text, complete or with characters omitted in its middle or at its end. Part of SampledGroup."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", ser_json_inf_nan="strings")

    text: str = Field(description="the complete text, or its beginning")
    cut: int = Field(default=0, ge=0, exclude_if=is_default, description="characters omitted after `text`")
    end: str = Field(default="", exclude_if=is_default, description="the text after the omitted characters")


class ShownCompletion(ShownText):
    """One answer of a group. Part of SampledGroup."""

    reward: Real | None = Field(default=None, description="null: it has no reward")
    advantage: Real | None = Field(default=None, description="null: it has no advantage, for example without a reward")


class MemberScores(BaseModel):
    """Scores of one committee member, or one reward function, for a group. Part of SampledGroup."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", ser_json_inf_nan="strings")

    member: str
    weight: Real | None = Field(default=None, description="share of the reward, or a function's factor; null: unknown")
    scores: tuple[Real | None, ...] = Field(default=(), description="one per completion; null: no score")
    reasons: tuple[str, ...] = Field(
        default=(), exclude_if=is_default, description="the member's reasons, one per completion; absent: it gave none"
    )
    abstained: str = Field(
        default="",
        exclude_if=is_default,
        description="kind of abstention, as in the metric `committee/abstain/<kind>`; empty: it scored",
    )


class SampledGroup(Message):
    """learner → monitors and operators, on `completions`. One prompt, its answers, and their scores."""

    type: Literal["SampledGroup"] = "SampledGroup"
    incarnation: int = Field(ge=1)
    number: int = Field(
        ge=1, description="number of the sample, counted by the learner from 1; dropped and hidden samples leave gaps"
    )
    tick: int = Field(ge=0)
    step: int = Field(ge=0, description="the first optimizer step that trained on it")
    group: int = Field(default=0, ge=0, description="index among the groups of that step, from 0")
    groups: int = Field(default=1, ge=1, description="number of groups in that step")
    form: Form = "text"
    prompt: ShownText
    completions: tuple[ShownCompletion, ...] = ()
    left_out: int = Field(
        default=0, ge=0, exclude_if=is_default, description="number of completions of the group that are not shown"
    )
    members: tuple[MemberScores, ...] = ()
    redacted: bool = Field(
        default=False, exclude_if=is_default, description="whether a user's function has edited every text"
    )


class CompletionsRequest(Message):
    """A request from a monitor or operator to the mesh for stored groups, on `oven.<run>.completions.stored`."""

    type: Literal["CompletionsRequest"] = "CompletionsRequest"
    after: int = Field(default=0, ge=0, description="sequence number of the last group that the sender has")
    limit: int = Field(default=64, ge=1, le=256, description="maximum number of groups, of which the newest are sent")


class StoredGroup(BaseModel):
    """A sampled group as it is stored in the stream. Part of CompletionsBatch."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", ser_json_inf_nan="strings")

    seq: int
    time: str = Field(description="time at which the server stored it, RFC 3339, UTC")
    group: SampledGroup


class CompletionsBatch(Message):
    """The reply to a CompletionsRequest: groups in the order of the stream, as many as fit into one message."""

    type: Literal["CompletionsBatch"] = "CompletionsBatch"
    groups: tuple[StoredGroup, ...]
    head: int = Field(description="last sequence number of the stream at the time of the reply")
    has_stream: bool = Field(default=True, description="whether this run has a stream of completions")
