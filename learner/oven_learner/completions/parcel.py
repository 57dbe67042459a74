"""Convert a sample into plain values that may leave the process: texts that are redacted and cut, and no NaN.

This runs in a thread of the training's process. The more expensive part, validation and JSON, is done where the values
arrive (`message`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from oven_learner.completions.plain_text import encodable, joined
from oven_learner.completions.redaction import Redact
from oven_learner.completions.sample import MemberVerdict, Sample, SamplePlace
from oven_runs.settings.completions import CompletionsSettings

Cut: TypeAlias = tuple[str, int, str]
"""The beginning of a text, the number of characters cut out, and its end."""
END_SHARE = 4
"""One part in END_SHARE of a cut text is its end, because the answer often stands there."""
REASON_CHARACTERS = 500
"""The most characters of a member's reason. Judges are asked for 25 words."""
MESSAGE_CHARACTERS = 262_144
"""The most characters of all texts of a group together. A message holds fewer bytes than that."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The limits on shown completions, and the redaction."""

    settings: CompletionsSettings
    redact: Redact | None = None


def parcel_of(
    incarnation: int, position: SamplePlace, sample: Sample, advantages: Sequence[float | None], shown: Shown
) -> dict[str, Any]:
    """Return strings, numbers, tuples and dicts, which `message.group_of` reads. Raises what the redaction raises, and
    TypeError if it returns no text."""
    completions = list(sample.completions[: shown.settings.completions])
    limit = min(shown.settings.characters, MESSAGE_CHARACTERS // (1 + len(completions)))
    members = sample.members
    rewards = _numbers(_summed(members) if sample.rewards is None else sample.rewards, len(completions))
    has_shape = any(hasattr(completion, "shape") for completion in completions)
    texts = [_as_text(completion) for completion in completions]
    return {
        "incarnation": incarnation,
        "number": position.number,
        "tick": position.tick,
        "step": position.step,
        "group": position.group,
        "groups": position.groups,
        "form": "shape" if has_shape else "text",
        "prompt": _shown(_as_text(sample.prompt), limit, shown.redact),
        "completions": tuple(_shown(text, limit, shown.redact) for text in texts),
        "rewards": rewards,
        "advantages": _advantages(advantages, rewards),
        "left_out": len(sample.completions) - len(completions),
        "members": tuple(_member(member, texts, shown.redact) for member in members),
        "redacted": shown.redact is not None,
    }


def cut(text: str, limit: int) -> Cut:
    """Cut a text to `limit` characters: a longer one keeps its beginning and its end."""
    if len(text) <= limit:
        return text, 0, ""
    end = limit // END_SHARE
    return text[: limit - end], len(text) - limit, text[len(text) - end :] if end else ""


def _shown(text: str, limit: int, redact: Redact | None) -> Cut:
    """Redact a text, cut it, and make it encodable.

    Redaction comes before cutting, because half of a secret is not recognised. Encoding comes last, because it takes
    time for each character.
    """
    if redact is not None:
        text = _redacted(encodable(text), redact)
    begin, cut_out, end = cut(text, limit)
    return encodable(begin), cut_out, encodable(end)


def _redacted(text: str, redact: Redact) -> str:
    redacted = redact(text)
    if not isinstance(redacted, str):
        raise TypeError(f"it returned a {type(redacted).__name__}, and not a text")
    return redacted


def _member(verdict: MemberVerdict, texts: Sequence[str], redact: Redact | None) -> dict[str, Any]:
    reasons: tuple[str, ...] = ()
    if verdict.reasons:
        by_text = verdict.reasons
        reasons = tuple(_shown(by_text.get(encodable(text), ""), REASON_CHARACTERS, redact)[0] for text in texts)
    return {
        "member": encodable(verdict.member),
        "weight": _numbers([verdict.weight], 1)[0],
        "scores": () if verdict.scores is None else _numbers(verdict.scores, len(texts)),
        "abstained": encodable(verdict.abstained),
        "reasons": reasons if any(reasons) else (),
    }


def _numbers(values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """Return `count` numbers; None for a missing value or NaN."""
    numbers = [None if value is None or math.isnan(value) else float(value) for value in values[:count]]
    return (*numbers, *[None] * (count - len(numbers)))


def _advantages(values: Sequence[float | None], rewards: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return None for a completion without a reward: trainers give it 0, which is not an advantage."""
    advantages = _numbers(values, len(rewards))
    return tuple(None if reward is None else value for value, reward in zip(advantages, rewards, strict=True))


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
    """Return the text, or a description of an array."""
    return _shape(completion) if hasattr(completion, "shape") else joined(completion)


def _shape(sample: Any) -> str:
    """Describe an array by its type, shape and number type. Reading its numbers would wait for the device."""
    numbers = str(getattr(sample, "dtype", "")).removeprefix("torch.")
    size = " × ".join(str(int(length)) for length in sample.shape)
    return f"{type(sample).__name__} {size or 'scalar'} {numbers}".strip()
