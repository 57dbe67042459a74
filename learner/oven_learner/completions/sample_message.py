"""Converts a sampled group of completions into the message for the monitor.

`group_fields` runs in a thread of the training process, so that no text leaves this process before it is redacted and
truncated. The more expensive `encode_group` runs in the link's process. It validates the message and builds the JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from oven_core.protocol.completion_messages import COMPLETION_BYTES, SampledGroup
from oven_learner.completions.plain_text import join_messages, make_encodable
from oven_runs.settings.completions import CompletionsSettings

Redact: TypeAlias = Callable[[str], str]
"""A function that maps the text of a prompt, a completion or a reason to the text that may be shown.

It is called in a thread of the training's process, with the complete text. If it fails, the sample is not shown.
"""
END_DIVISOR = 4
"""A truncated text of n characters includes the last n / END_DIVISOR characters, where the answer often is."""
REASON_CHARACTERS = 500
"""Maximum number of characters in a member's reason. Judges are asked for 25 words."""
HEADERS_BYTES = 1024  # reserved for headers within the stream's message limit
MIN_CHARACTERS = 16
"""Minimum number of characters to which texts are shortened. A message that is still too large is dropped, because
shorter texts would not help."""


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    """The scores that one committee member or one reward function gave to a group."""

    member: str
    weight: float | None
    scores: Sequence[float | None] | None
    """One score per completion. None if the member scored no completion."""
    abstained: str = ""  # the kind of abstention, or an empty string
    reasons: Mapping[str, str] | None = None
    """The member's reasons by the completion's text."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A group, which is a prompt and its completions."""

    prompt: Any
    """Text, a conversation, or an array."""
    completions: Sequence[Any]
    rewards: Sequence[float | None] | None
    """One reward per completion, or None to use the weighted sum of the members' scores."""
    members: Sequence[MemberVerdict]


def group_fields(
    position: Mapping[str, int],
    sample: Sample,
    advantages: Sequence[float | None],
    settings: CompletionsSettings,
    redact: Redact | None,
) -> dict[str, Any]:
    """Return the fields of a SampledGroup as strings, numbers, tuples and dicts. `position` contains its numeric
    fields, such as tick and step. Re-raises errors of `redact`, and raises TypeError if it does not return text."""
    completions = list(sample.completions[: settings.completions])
    limit = min(settings.characters, COMPLETION_BYTES // (1 + len(completions)))
    sample_rewards = _sum_weighted_scores(sample.members) if sample.rewards is None else sample.rewards
    rewards = _to_numbers(sample_rewards, len(completions))
    texts = [_describe(completion) for completion in completions]
    shown_completions = [
        # Trainers give a completion without a reward an advantage of 0, which is not a measurement.
        _text_fields(text, limit, redact) | {"reward": reward, "advantage": advantage if reward is not None else None}
        for text, reward, advantage in zip(texts, rewards, _to_numbers(advantages, len(texts)), strict=True)
    ]
    return {
        **position,
        "form": "shape" if any(hasattr(completion, "shape") for completion in completions) else "text",
        "prompt": _text_fields(_describe(sample.prompt), limit, redact),
        "completions": tuple(shown_completions),
        "left_out": len(sample.completions) - len(completions),
        "members": tuple(_member_fields(member, texts, redact) for member in sample.members),
        "redacted": redact is not None,
    }


def encode_group(fields: dict[str, Any], max_bytes: int = COMPLETION_BYTES - HEADERS_BYTES) -> bytes | None:
    """Return the message in at most `max_bytes`, or None if that is impossible. The limit on texts is halved
    until the message fits, because some characters take up to six bytes of JSON."""
    limit = max(len(text["text"]) + len(text["end"]) for text in (fields["prompt"], *fields["completions"]))
    while True:
        wire = SampledGroup.model_validate(_shorten(fields, limit)).wire()
        if len(wire) <= max_bytes:
            return wire
        if limit <= MIN_CHARACTERS:
            return None
        limit //= 2


def _shorten(fields: dict[str, Any], limit: int) -> dict[str, Any]:
    """Truncate each prompt, completion and reason to `limit` characters."""
    members = [{**member, "reasons": tuple(text[:limit] for text in member["reasons"])} for member in fields["members"]]
    completions = [_truncate(completion, limit) for completion in fields["completions"]]
    return {
        **fields,
        "prompt": _truncate(fields["prompt"], limit),
        "completions": completions,
        "members": members,
    }


def _truncate(text_fields: dict[str, Any], limit: int) -> dict[str, Any]:
    """Truncate a text to `limit` characters, taken from its beginning and its end."""
    begin, end = text_fields["text"], text_fields["end"]
    excess = len(begin) + len(end) - limit
    if excess <= 0:
        return text_fields
    if not text_fields["cut"]:  # the text was whole until now, so "text" contains its end, too
        end = begin
    tail_length = min(len(end), limit // END_DIVISOR)
    tail = end[len(end) - tail_length :]
    return {**text_fields, "text": begin[: limit - len(tail)], "cut": text_fields["cut"] + excess, "end": tail}


def _text_fields(text: str, limit: int, redact: Redact | None) -> dict[str, Any]:
    """Redact a text, truncate it, and make it encodable. Redaction comes first, because it might not recognise a
    truncated secret. Encoding comes last, because its cost depends on the number of characters."""
    if redact is not None:
        text = redact(make_encodable(text))
        if not isinstance(text, str):
            raise TypeError(f"the redaction returned a {type(text).__name__} instead of a string")
    fields = _truncate({"text": text, "cut": 0, "end": ""}, limit)
    return {**fields, "text": make_encodable(fields["text"]), "end": make_encodable(fields["end"])}


def _member_fields(verdict: MemberVerdict, texts: Sequence[str], redact: Redact | None) -> dict[str, Any]:
    by_text = verdict.reasons or {}
    reasons = [by_text.get(make_encodable(text), "") for text in texts]
    shown_reasons = [_text_fields(text, REASON_CHARACTERS, redact)["text"] for text in reasons] if any(reasons) else []
    return {
        "member": make_encodable(verdict.member),
        "weight": _to_numbers([verdict.weight], 1)[0],
        "scores": () if verdict.scores is None else _to_numbers(verdict.scores, len(texts)),
        "abstained": make_encodable(verdict.abstained),
        "reasons": tuple(shown_reasons),
    }


def _to_numbers(values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """Return `count` numbers, with None for missing values and NaN."""
    numbers = [None if value is None or math.isnan(value) else float(value) for value in values[:count]]
    return (*numbers, *[None] * (count - len(numbers)))


def _sum_weighted_scores(members: Sequence[MemberVerdict]) -> list[float | None]:
    """Sum the weighted scores of each completion, as TRL does. The sum is None if there are no scores."""
    scores_by_member = [_weigh_scores(member) for member in members if member.scores is not None]
    known_scores = [[score for score in row if score is not None] for row in zip(*scores_by_member, strict=True)]
    return [sum(scores) if scores else None for scores in known_scores]


def _weigh_scores(member: MemberVerdict) -> list[float | None]:
    weight = 1.0 if member.weight is None else member.weight
    return [None if score is None or math.isnan(score) else score * weight for score in member.scores or ()]


def _describe(completion: Any) -> str:
    """Return the text of a prompt or a completion. An array is described by its class, shape and dtype, because reading
    its numbers would wait for the device."""
    if not hasattr(completion, "shape"):
        return join_messages(completion)
    dtype = str(getattr(completion, "dtype", "")).removeprefix("torch.")
    size = " × ".join(str(int(length)) for length in completion.shape)
    return f"{type(completion).__name__} {size or 'scalar'} {dtype}".strip()
