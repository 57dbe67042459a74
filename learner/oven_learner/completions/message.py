"""Build the SampledGroup message of a sample, with shorter texts if it would be too large for the stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oven_core.bus.streams import COMPLETION_BYTES
from oven_core.protocol.completion_messages import MemberScores, SampledGroup, ShownCompletion, ShownText
from oven_learner.completions.parcel import END_SHARE, Cut, cut

HEADERS_BYTES = 1024
"""Reserved below the stream's limit on a message."""
LEAST_CHARACTERS = 16
"""Characters of each text below which a message is given up: then its texts are not what is too large."""


def wire_of(parcel: dict[str, Any], most_bytes: int = COMPLETION_BYTES - HEADERS_BYTES) -> bytes | None:
    """Return the message in at most `most_bytes`; None if that is impossible.

    The texts are halved until it fits. A control character takes six bytes of JSON, and 16 texts of 100,000 characters
    exceed the limit.
    """
    limit = max((len(begin) + len(end) for begin, _, end in _texts(parcel)), default=0)
    while True:
        wire = group_of(parcel, limit).wire()
        if len(wire) <= most_bytes:
            return wire
        if limit <= LEAST_CHARACTERS:
            return None
        limit //= 2


def group_of(parcel: dict[str, Any], limit: int) -> SampledGroup:
    """Return the message, with at most `limit` characters of each text."""
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
    begin, cut_out, end = text
    if len(begin) + len(end) > limit:
        if cut_out:
            end_length = min(len(end), limit // END_SHARE)
            shorter, last = begin[: limit - end_length], end[len(end) - end_length :]
        else:
            shorter, _, last = cut(begin, limit)
        cut_out += len(begin) + len(end) - len(shorter) - len(last)
        begin, end = shorter, last
    return {"text": begin, "cut": cut_out, "end": end}


def _reasons(member: Mapping[str, Any], limit: int) -> tuple[str, ...]:
    return tuple(reason[:limit] for reason in member["reasons"])
