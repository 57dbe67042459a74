"""An attack on the sandbox, and the goal that it has to reach to succeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Goal = Literal["secret", "marker", "knock", "victim", "hang", "held", "flood", "answer", "host", "damage"]
"""`secret`: it prints one of the host's secrets. `marker`: it creates a file outside the sandbox. `knock`: a listener
on this machine receives its message. `victim`: another process dies. `hang`: the block does not end in time. `held`: it
prints HELD, after it got what it must not have. `flood`: the host receives more than a megabyte. `answer`: the answer
of FINAL is lost. `host`: the host no longer runs blocks. `damage`: a file of the host has changed."""


@dataclass(frozen=True)
class Attack:
    """`code` reads its targets from the variable `T`. `within_rights`: profiles that allow the attack on purpose."""

    name: str
    goal: Goal
    code: str
    within_rights: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What the host saw of an attack. The targets show the rest."""

    output: str
    received: int
    """Length of the longest text that the host received: output, an error, an answer or an argument."""
    in_time: bool
    answered: bool
    serving: bool
    """Whether the host lives and runs a harmless block afterwards."""
