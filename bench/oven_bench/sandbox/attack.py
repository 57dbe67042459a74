"""What an attack is, and what it would have to achieve to count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Goal = Literal["secret", "marker", "knock", "victim", "hang", "held", "flood", "answer", "host", "damage"]
"""`secret`: one of the host's secrets comes out. `marker`: a file of the attacker's is there, outside. `knock`: a
listener on this machine hears of it. `victim`: another process dies. `hang`: the block is not over in time. `held`: it
says HELD, after it got what it must not get. `flood`: the host is made to take more than a megabyte. `answer`: FINAL's
answer is lost. `host`: the host stops serving. `damage`: a file of the host's is not what it was."""


@dataclass(frozen=True)
class Attack:
    """`code` finds what it needs in `T` (targets.py). `within_rights`: profiles that allow it on purpose."""

    name: str
    goal: Goal
    code: str
    within_rights: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What the host saw of an attack; the rest is seen at the targets."""

    output: str
    received: int
    """The largest thing that the host was given: characters of output, an error, an answer or an argument."""
    in_time: bool
    answered: bool
    serving: bool
    """The host is alive, and a harmless block after it works."""
