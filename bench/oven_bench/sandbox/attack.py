"""Attacks on the sandbox with the goals that they have to reach, and honest programs that must run in it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter

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


@dataclass(frozen=True)
class Program:
    """An honest program. `printed` is the right output."""

    name: str
    code: str
    printed: str


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text())


def _attack(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with the preludes that its code uses."""
    preludes = "".join(_TABLE["preludes"][name] for name in row.get("uses", ()))
    return {name: value for name, value in row.items() if name != "uses"} | {"code": preludes + row["code"]}


_TABLE: Final = _table("attacks.toml")
_ATTACKS: Final = TypeAdapter(tuple[Attack, ...])
KINDS: Final = _ATTACKS.validate_python([_attack(row) for row in _TABLE["known"]])
"""One attack of each kind that the first prototype was tested with."""
OWN: Final = _ATTACKS.validate_python([_attack(row) for row in _TABLE["more"]])
"""Further attacks."""
PROGRAMS: Final = TypeAdapter(tuple[Program, ...]).validate_python(_table("honest_programs.toml")["program"])
CONTEXT: Final = "alpha 3\nbeta 1\ngamma 2\n" * 40
"""The value of the programs' variable `context`."""
