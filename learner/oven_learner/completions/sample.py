"""A sampled group as a parcel is made of it, off the training thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    """What one member of the committee, or one reward function, said of a group."""

    member: str
    weight: float | None
    scores: Sequence[float | None] | None
    """One a completion; None: it gave none at all."""
    abstained: str = ""
    reasons: Mapping[str, str] | None = None
    """Completion's text → why, in the member's words."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sample is from."""

    number: int
    """Of the samples so far, from 1."""
    tick: int
    step: int
    group: int
    groups: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One group."""

    prompt: Any
    """Text, a conversation, or what has a shape."""
    completions: Sequence[Any]
    rewards: Sequence[float | None] | None
    """None: the weighted sum of what the members gave."""
    members: Sequence[MemberVerdict]
