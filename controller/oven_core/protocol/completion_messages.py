"""Sampled groups of completions: on a subject and in a stream of their own, never in the run's log.

What they hold is text of the training's data and of the policy, which nothing that decides may read. The rules of
oven_core.protocol.messages hold for them, too.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import Message, Real

Form: TypeAlias = Literal["text", "shape"]
"""What a completion's text is: what the policy wrote, or, of a policy that writes none, what its sample is."""


def _is_default(value: object) -> bool:
    """Such a field is on the wire only where it says something."""
    return not value


class ShownText(BaseModel):
    """A text, whole or cut. Part of SampledGroup."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    text: str = Field(description="all of it, or its beginning")
    cut: int = Field(default=0, ge=0, exclude_if=_is_default, description="characters that were left out after `text`")
    end: str = Field(default="", exclude_if=_is_default, description="what follows those")


class ShownCompletion(ShownText):
    """One answer of a group. Part of SampledGroup."""

    reward: Real | None = Field(default=None, description="absent: it has none")
    advantage: Real | None = Field(default=None, description="absent: it has none, as without a reward")


class MemberScores(BaseModel):
    """What one member of the committee, or one reward function, said of a group. Part of SampledGroup."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    member: str
    weight: Real | None = Field(default=None, description="its share or factor in the reward; absent: not known")
    scores: tuple[Real | None, ...] = Field(default=(), description="one a completion; null: none of that one")
    reasons: tuple[str, ...] = Field(
        default=(), exclude_if=_is_default, description="one a completion, in the member's words; absent: it gave none"
    )
    abstained: str = Field(
        default="", exclude_if=_is_default, description="why there are no scores, as `committee/abstain/<kind>` has it"
    )


class SampledGroup(Message):
    """learner → monitors and operators, on `completions`. One prompt, the answers to it, and what they were worth."""

    type: Literal["SampledGroup"] = "SampledGroup"
    incarnation: int = Field(ge=1)
    number: int = Field(ge=1, description="counts the learner's samples; one that is missing was dropped or not shown")
    tick: int = Field(ge=0)
    step: int = Field(ge=0, description="the optimizer step that trained on it first")
    group: int = Field(default=0, ge=0, description="its place among the groups of that step, from 0")
    groups: int = Field(default=1, ge=1, description="how many that step had")
    form: Form = "text"
    prompt: ShownText
    completions: tuple[ShownCompletion, ...] = ()
    left_out: int = Field(default=0, ge=0, exclude_if=_is_default, description="completions of the group beyond those")
    members: tuple[MemberScores, ...] = ()
    redacted: bool = Field(
        default=False, exclude_if=_is_default, description="a function of the user's went over every text"
    )


class CompletionsRequest(Message):
    """monitors, operators → mesh, as a request on `completions.stored`."""

    type: Literal["CompletionsRequest"] = "CompletionsRequest"
    after: int = Field(default=0, ge=0, description="the last sequence of the stream that the asker has")
    limit: int = Field(default=64, ge=1, le=256, description="the newest of those behind it, at most so many")


class StoredGroup(BaseModel):
    """A sampled group as the stream holds it. Part of CompletionsBatch."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    seq: int
    time: str = Field(description="when the server stored it, RFC 3339, UTC")
    group: SampledGroup


class CompletionsBatch(Message):
    """mesh → asker. In the order of the stream; a batch ends early where it would grow too large."""

    type: Literal["CompletionsBatch"] = "CompletionsBatch"
    groups: tuple[StoredGroup, ...]
    head: int = Field(description="the stream's last sequence when this was read")
    kept: bool = Field(default=True, description="whether this run has a stream of completions")
