"""From a parcel to the bytes of a SampledGroup that the stream takes, cut further where it would be too large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oven_core.bus.streams import COMPLETION_BYTES
from oven_core.protocol.completion_messages import MemberScores, SampledGroup, ShownCompletion, ShownText
from oven_learner.completions.parcel import END_SHARE, Cut, cut

HEADERS_BYTES = 1024
"""Left free below the stream's limit on a message."""
LEAST_CHARACTERS = 16
"""Of each text, below which a message is given up: what is too large then is not its texts."""


def wire_of(parcel: dict[str, Any], most_bytes: int = COMPLETION_BYTES - HEADERS_BYTES) -> bytes | None:
    """At most so many bytes: every text is cut to half of what it was until it fits. A control character is six bytes
    of JSON, and 16 texts of 100,000 characters are more than a message holds. None where nothing helps."""
    limit = max((len(begin) + len(end) for begin, _, end in _texts(parcel)), default=0)
    while True:
        wire = group_of(parcel, limit).wire()
        if len(wire) <= most_bytes:
            return wire
        if limit <= LEAST_CHARACTERS:
            return None
        limit //= 2


def group_of(parcel: dict[str, Any], limit: int) -> SampledGroup:
    """The message, with at most `limit` characters of each text."""
    completions = tuple(
        ShownCompletion(**_shown(text, limit), reward=reward, advantage=advantage)
        for text, reward, advantage in zip(parcel["completions"], parcel["rewards"], parcel["advantages"], strict=True)
    )
    return SampledGroup(
        **{name: parcel[name] for name in _PLAIN},
        prompt=ShownText(**_shown(parcel["prompt"], limit)),
        completions=completions,
        members=tuple(MemberScores(**{**member, "reasons": _reasons(member, limit)}) for member in parcel["members"]),
    )


_PLAIN = ("incarnation", "number", "tick", "step", "group", "groups", "form", "left_out", "redacted")


def _texts(parcel: dict[str, Any]) -> list[Cut]:
    return [parcel["prompt"], *parcel["completions"]]


def _shown(text: Cut, limit: int) -> dict[str, Any]:
    begin, left, end = text
    if len(begin) + len(end) > limit:
        if left:
            kept = min(len(end), limit // END_SHARE)
            shorter, last = begin[: limit - kept], end[len(end) - kept :]
        else:
            shorter, _, last = cut(begin, limit)
        left += len(begin) + len(end) - len(shorter) - len(last)
        begin, end = shorter, last
    return {"text": begin, "cut": left, "end": end}


def _reasons(member: Mapping[str, Any], limit: int) -> tuple[str, ...]:
    return tuple(reason[:limit] for reason in member["reasons"])
