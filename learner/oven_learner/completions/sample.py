"""A sampled group as the training thread hands it over: references to what is there already, and plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
class Sample:
    """One group. Nothing of it is copied or looked at before it is off the training thread: whoever hands it over does
    not change it afterwards."""

    incarnation: int
    number: int
    tick: int
    step: int
    group: int
    groups: int
    prompt: Any
    """Text, a conversation, or a mapping."""
    completions: Sequence[Any]
    rewards: Sequence[float | None] | None
    """None: the weighted sum of what the members gave."""
    advantages: Sequence[float | None]
    members: Callable[[], Sequence[MemberVerdict]]
    """Called off the training thread."""
