"""Requests to members of the reward committee, and their replies. They are not in the log.

They follow the same rules as the messages in oven_core.protocol.messages.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import Message, MessagePart, Real, is_default


class Completion(MessagePart):
    """One sampled answer. Ids are random and do not reveal the order. Part of ScoreRequest."""

    id: str
    text: str


class ScoreRequest(Message):
    """A request from the learner to a remote committee member for scores, on `oven.reward.<member>`."""

    type: Literal["ScoreRequest"] = "ScoreRequest"
    run: str
    group: str = Field(description="name of the group, repeated in the reply")
    prompt: str
    completions: tuple[Completion, ...] = Field(min_length=1, description="answers to that one prompt")
    policy: str = Field(default="", description="the model in training, in words (ModelDescription)")
    domain: str = Field(default="", description="subject area of the tasks, for members that are specialists")
    deadline_s: Real = Field(gt=0, description="seconds that the learner waits for the reply")
    reference: str = Field(
        default="", exclude_if=is_default, description="a correct answer, for tests of the judge; absent if unknown"
    )
    judge: JudgeSpec | None = Field(
        default=None,
        exclude_if=is_default,
        description="the model to score with; absent: the one in the member's configuration",
    )
    swap: int = Field(
        default=0,
        ge=0,
        exclude_if=is_default,
        description="number of swaps of the member's model so far; each restarts the tests of the judge",
    )


class JudgeHealth(MessagePart):
    """Results of a member's tests of its judge. Part of ScoreReply."""

    controls: int = Field(default=0, ge=0, description="number of groups so far with inserted answers of known quality")
    controls_failed: int = Field(default=0, ge=0, description="number of those groups that the judge got wrong")
    quarantined: bool = Field(default=False, description="whether the judge is only tested, not used")
    order_flips: Real | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of pairs whose order changed when a group was shown in reverse order",
    )
    change_p: Real | None = Field(
        default=None, ge=0, le=1, description="p-value of the judge's new scores for old groups, if it is unchanged"
    )
    changes: int = Field(default=0, ge=0, description="number of detected changes of the judge")
    cut_texts: int = Field(default=0, ge=0, description="number of texts so far that were truncated")


class ScoreReply(Message):
    """The reply to a ScoreRequest: scores for exactly the requested ids, or the reason for an abstention."""

    type: Literal["ScoreReply"] = "ScoreReply"
    member: str
    group: str
    judge: str = Field(
        default="",
        exclude_if=is_default,
        description="identity of the model that the request named; absent if it named none",
    )
    scores: dict[str, Real] | None = Field(default=None, description="completion id → score, 0..1; null: abstention")
    reasons: dict[str, str] = Field(
        default_factory=dict,
        exclude_if=is_default,
        description="completion id → the judge's reason, shown to people; absent: it gave none",
    )
    failure: str = Field(default="", description="the kind of failure behind an abstention, e.g. rate_limit")
    detail: str = Field(default="", max_length=500)
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cost_usd: Real | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="null: the price is unknown, or no model was called"
    )
    health: JudgeHealth | None = Field(default=None, description="null: the member does not test its judge")


class ProbeRequest(Message):
    """A request from the learner to a remote committee member to test another model, on `oven.probe.<member>`.

    The member asks the model one small question. Its current judge stays in use."""

    type: Literal["ProbeRequest"] = "ProbeRequest"
    judge: JudgeSpec
    deadline_s: Real = Field(gt=0, description="seconds that the learner waits for the reply")


class ProbeReply(Message):
    """The reply to a ProbeRequest. Without a failure, the model gave a usable verdict."""

    type: Literal["ProbeReply"] = "ProbeReply"
    member: str
    judge: str = Field(description="identity of the tested model")
    failure: str = Field(default="", max_length=64, description="the kind of failure, e.g. auth; empty: success")
    detail: str = Field(
        default="", max_length=500, description="details of the failure, or features that the model lacks"
    )
