"""From a sample to a parcel of plain values that may leave the process: as text, redacted, cut, without NaN.

In a thread beside the training. What costs more, checking it and writing JSON, is done where it arrives (`message`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from oven_learner.completions.plain_text import encodable, joined
from oven_learner.completions.redaction import Redact
from oven_learner.completions.sample import MemberVerdict, Place, Sample
from oven_runs.settings.completions import CompletionsSettings

Cut: TypeAlias = tuple[str, int, str]
"""A text's beginning, how many characters are left out, and what follows those."""
END_SHARE = 4
"""One part in so many of what is shown is the text's end: the answer often stands there."""
REASON_CHARACTERS = 500
"""Of a member's reason; a judge is told to give 25 words."""


MESSAGE_CHARACTERS = 262_144
"""Of all texts of a group together: a message takes fewer bytes, so more need not leave the process."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How much is shown, and what goes over it."""

    settings: CompletionsSettings
    redact: Redact | None = None


def parcel_of(
    incarnation: int, place: Place, sample: Sample, advantages: Sequence[float | None], shown: Shown
) -> dict[str, Any]:
    """Texts, numbers, tuples and dicts of them, which `message.group_of` reads. Raises whatever the redaction raises,
    and TypeError where it returns no text."""
    there = list(sample.completions[: shown.settings.completions])
    limit = min(shown.settings.characters, MESSAGE_CHARACTERS // (1 + len(there)))
    members = sample.members
    rewards = _numbers(_summed(members) if sample.rewards is None else sample.rewards, len(there))
    shapes = any(hasattr(one, "shape") for one in there)
    as_written = [_written(one) for one in there]
    return {
        "incarnation": incarnation,
        "number": place.number,
        "tick": place.tick,
        "step": place.step,
        "group": place.group,
        "groups": place.groups,
        "form": "shape" if shapes else "text",
        "prompt": _shown(_written(sample.prompt), limit, shown.redact),
        "completions": tuple(_shown(text, limit, shown.redact) for text in as_written),
        "rewards": rewards,
        "advantages": _advantages(advantages, rewards),
        "left_out": len(sample.completions) - len(there),
        "members": tuple(_member(member, as_written, shown.redact) for member in members),
        "redacted": shown.redact is not None,
    }


def cut(text: str, limit: int) -> Cut:
    """At most `limit` characters of a text: of a longer one the beginning and the end."""
    if len(text) <= limit:
        return text, 0, ""
    end = limit // END_SHARE
    return text[: limit - end], len(text) - limit, text[len(text) - end :] if end else ""


def _shown(text: str, limit: int, redact: Redact | None) -> Cut:
    """Redacted before it is cut: half of a secret is not recognised as one. Cut before it is made encodable, which
    takes as long as the text is."""
    if redact is not None:
        text = _redacted(encodable(text), redact)
    begin, left, end = cut(text, limit)
    return encodable(begin), left, encodable(end)


def _redacted(text: str, redact: Redact) -> str:
    said = redact(text)
    if not isinstance(said, str):
        raise TypeError(f"it returned a {type(said).__name__}, and not a text")
    return said


def _member(verdict: MemberVerdict, texts: Sequence[str], redact: Redact | None) -> dict[str, Any]:
    reasons: tuple[str, ...] = ()
    if verdict.reasons:
        by_text = verdict.reasons
        said = [by_text.get(encodable(text), "") for text in texts]
        reasons = tuple(_shown(one, REASON_CHARACTERS, redact)[0] for one in said)
    return {
        "member": encodable(verdict.member),
        "weight": _numbers([verdict.weight], 1)[0],
        "scores": () if verdict.scores is None else _numbers(verdict.scores, len(texts)),
        "abstained": encodable(verdict.abstained),
        "reasons": reasons if any(reasons) else (),
    }


def _numbers(values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """`count` of them; what is not a number is missing."""
    found = [None if value is None or math.isnan(value) else float(value) for value in values[:count]]
    return (*found, *[None] * (count - len(found)))


def _advantages(values: Sequence[float | None], rewards: Sequence[float | None]) -> tuple[float | None, ...]:
    """Where there is no reward trainers give 0, which is not an advantage."""
    found = _numbers(values, len(rewards))
    return tuple(None if reward is None else value for value, reward in zip(found, rewards, strict=True))


def _summed(members: Sequence[MemberVerdict]) -> list[float | None]:
    """Reward functions' scores times their weights, as TRL adds them; None where none of them gave one."""
    columns = [
        [None if score is None or math.isnan(score) else score * (1.0 if member.weight is None else member.weight)
         for score in member.scores]
        for member in members if member.scores is not None
    ]  # fmt: skip
    rows = [[score for score in row if score is not None] for row in zip(*columns, strict=True)]
    return [sum(row) if row else None for row in rows]


def _written(one: Any) -> str:
    """As text, or what it is where it has none."""
    return _shape(one) if hasattr(one, "shape") else joined(one)


def _shape(sample: Any) -> str:
    """What a sample without a text is: its kind, shape and type of numbers. No number of it is read, which a device
    would have to be waited for."""
    shape = getattr(sample, "shape", None)
    if shape is None:
        return type(sample).__name__
    numbers = str(getattr(sample, "dtype", "")).removeprefix("torch.")
    size = " × ".join(str(int(length)) for length in shape)
    return f"{type(sample).__name__} {size or 'scalar'} {numbers}".strip()
