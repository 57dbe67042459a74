"""A sampled group of completions, before it is converted for the monitor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    """The scores that one committee member, or one reward function, gave to a group."""

    member: str
    weight: float | None
    scores: Sequence[float | None] | None
    """One per completion; None if it scored none."""
    abstained: str = ""
    reasons: Mapping[str, str] | None = None
    """Text of a completion → the member's reason."""


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """The position of a sample in the training."""

    number: int
    """The number of the sample, from 1."""
    tick: int
    step: int
    group: int
    groups: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One group: a prompt and its completions."""

    prompt: Any
    """Text, a conversation, or an array."""
    completions: Sequence[Any]
    rewards: Sequence[float | None] | None
    """None: the weighted sum of the members' scores."""
    members: Sequence[MemberVerdict]
