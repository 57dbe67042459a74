"""A sampled group of completions, and its conversion into the message for the monitor.

`parcel_of` runs in a thread of the training's process: texts are redacted and cut before they leave it. `wire_of`
validates and builds the JSON, which costs more, in the link's process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from oven_core.bus.streams import COMPLETION_BYTES
from oven_core.protocol.completion_messages import SampledGroup
from oven_learner.completions.plain_text import encodable, joined
from oven_runs.settings.completions import CompletionsSettings

Redact: TypeAlias = Callable[[str], str]
"""Maps the text of a prompt, a completion or a reason to the text that may be shown. It is called in a thread of the
training's process, with the whole text. If it raises, or returns no text, nothing of the sample is shown."""
END_SHARE = 4
"""A truncated text keeps 1/END_SHARE of its length from the end, because the answer is often there."""
REASON_CHARACTERS = 500
"""Maximum characters of a member's reason. Prompts ask judges for 25 words."""
HEADERS_BYTES = 1024
"""Bytes reserved for headers within the stream's message limit."""
LEAST_CHARACTERS = 16
"""Minimum characters of each text. If a message is still too large at this length, its texts are not the cause, and it
is dropped."""


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    """The scores that one committee member, or one reward function, gave to a group."""

    member: str
    weight: float | None
    scores: Sequence[float | None] | None
    """One score per completion. None if the member scored no completion."""
    abstained: str = ""
    reasons: Mapping[str, str] | None = None
    """Text of a completion → the member's reason."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One group: a prompt and its completions."""

    prompt: Any
    """Text, a conversation, or an array."""
    completions: Sequence[Any]
    rewards: Sequence[float | None] | None
    """Rewards; None means the weighted sum of the members' scores."""
    members: Sequence[MemberVerdict]


def parcel_of(
    position: Mapping[str, int],
    sample: Sample,
    advantages: Sequence[float | None],
    settings: CompletionsSettings,
    redact: Redact | None,
) -> dict[str, Any]:
    """Return the fields of a SampledGroup as strings, numbers, tuples and dicts. `position` has its numbers.

    Raises the redaction's errors, and TypeError if it does not return a text.
    """
    completions = list(sample.completions[: settings.completions])
    limit = min(settings.characters, COMPLETION_BYTES // (1 + len(completions)))
    rewards = _numbers(_summed(sample.members) if sample.rewards is None else sample.rewards, len(completions))
    texts = [_as_text(completion) for completion in completions]
    shown = [
        # Trainers give a completion without a reward an advantage of 0, which is not a measurement.
        _shown(text, limit, redact) | {"reward": reward, "advantage": advantage if reward is not None else None}
        for text, reward, advantage in zip(texts, rewards, _numbers(advantages, len(texts)), strict=True)
    ]
    return {
        **position,
        "form": "shape" if any(hasattr(completion, "shape") for completion in completions) else "text",
        "prompt": _shown(_as_text(sample.prompt), limit, redact),
        "completions": tuple(shown),
        "left_out": len(sample.completions) - len(completions),
        "members": tuple(_member(member, texts, redact) for member in sample.members),
        "redacted": redact is not None,
    }


def wire_of(parcel: dict[str, Any], most_bytes: int = COMPLETION_BYTES - HEADERS_BYTES) -> bytes | None:
    """Return the message in at most `most_bytes`; None if that is impossible.

    The texts are halved until it fits: a control character takes six bytes of JSON.
    """
    limit = max(len(text["text"]) + len(text["end"]) for text in (parcel["prompt"], *parcel["completions"]))
    while True:
        wire = SampledGroup.model_validate(_shortened(parcel, limit)).wire()
        if len(wire) <= most_bytes:
            return wire
        if limit <= LEAST_CHARACTERS:
            return None
        limit //= 2


def _shortened(parcel: dict[str, Any], limit: int) -> dict[str, Any]:
    """Cut each text, and each reason, to `limit` characters."""
    members = [{**member, "reasons": tuple(why[:limit] for why in member["reasons"])} for member in parcel["members"]]
    completions = [_cut(completion, limit) for completion in parcel["completions"]]
    return {**parcel, "prompt": _cut(parcel["prompt"], limit), "completions": completions, "members": members}


def _cut(shown: dict[str, Any], limit: int) -> dict[str, Any]:
    """Cut a text to `limit` characters: a longer one keeps its beginning and its end."""
    begin, end = shown["text"], shown["end"]
    excess = len(begin) + len(end) - limit
    if excess <= 0:
        return shown
    end = end if shown["cut"] else begin
    last = end[len(end) - min(len(end), limit // END_SHARE) :]
    return {**shown, "text": begin[: limit - len(last)], "cut": shown["cut"] + excess, "end": last}


def _shown(text: str, limit: int, redact: Redact | None) -> dict[str, Any]:
    """Redact a text, cut it, and make it encodable.

    Redaction comes before cutting, because half of a secret is not recognised. Encoding comes last, because it takes
    time for each character.
    """
    if redact is not None:
        text = redact(encodable(text))
        if not isinstance(text, str):
            raise TypeError(f"the redaction returned a {type(text).__name__}, and not a text")
    shown = _cut({"text": text, "cut": 0, "end": ""}, limit)
    return {**shown, "text": encodable(shown["text"]), "end": encodable(shown["end"])}


def _member(verdict: MemberVerdict, texts: Sequence[str], redact: Redact | None) -> dict[str, Any]:
    by_text = verdict.reasons or {}
    reasons = [by_text.get(encodable(text), "") for text in texts]
    return {
        "member": encodable(verdict.member),
        "weight": _numbers([verdict.weight], 1)[0],
        "scores": () if verdict.scores is None else _numbers(verdict.scores, len(texts)),
        "abstained": encodable(verdict.abstained),
        "reasons": tuple(_shown(why, REASON_CHARACTERS, redact)["text"] for why in reasons) if any(reasons) else (),
    }


def _numbers(values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """Return `count` numbers; None for a missing value or NaN."""
    numbers = [None if value is None or math.isnan(value) else float(value) for value in values[:count]]
    return (*numbers, *[None] * (count - len(numbers)))


def _summed(members: Sequence[MemberVerdict]) -> list[float | None]:
    """Sum the weighted scores of reward functions, as TRL does; None for a completion without any score."""
    columns = [
        [None if score is None or math.isnan(score) else score * (1.0 if member.weight is None else member.weight)
         for score in member.scores]
        for member in members if member.scores is not None
    ]  # fmt: skip
    rows = [[score for score in row if score is not None] for row in zip(*columns, strict=True)]
    return [sum(row) if row else None for row in rows]


def _as_text(completion: Any) -> str:
    """Return the text. An array is described by type, shape and number type: reading its numbers would wait for the
    device."""
    if not hasattr(completion, "shape"):
        return joined(completion)
    numbers = str(getattr(completion, "dtype", "")).removeprefix("torch.")
    size = " × ".join(str(int(length)) for length in completion.shape)
    return f"{type(completion).__name__} {size or 'scalar'} {numbers}".strip()
