"""Words of a notice: who wanted what and why. Agents and learners chose most of them. Pure."""

from __future__ import annotations

import re
from typing import Final

from oven_core.protocol.messages import Decision, TallyLine
from oven_core.terminal_text import clean
from oven_runs.log.run_summary import text

WHY: Final = 300
"""Characters of a reason that a notice repeats."""
NAMED: Final = 4
"""Agents that a notice names."""
_MENTION: Final = re.compile(r"@(?=everyone|here|channel)|<(?=[!@#])", re.IGNORECASE)
"""What has a chat call people, or link to something."""


def change_of(decision: Decision) -> str:
    """What it would set, and from what."""
    if decision.value is None:
        return decision.actuator
    before = f"{text(decision.before)} → " if decision.before is not None else ""
    return f"{decision.actuator} {before}{text(decision.value)}"


def proposers(decision: Decision) -> str:
    """The agents that proposed it."""
    names = [line.agent for line in _proposals(decision)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return " and ".join(names[:NAMED]) + more if names else "the mesh"


def origin(decision: Decision) -> str:
    """Who is behind it: "proposed by amy", "proposed by amy and approved by an operator", "set by an operator"."""
    if decision.command and not decision.of:
        return "set by an operator"
    return f"proposed by {proposers(decision)}" + (" and approved by an operator" if decision.of else "")


def because(decision: Decision) -> str:
    """The reason of the proposal with the most weight, and a full stop."""
    lead = max(_proposals(decision), key=lambda line: (line.weight, line.agent), default=None)
    return f", because {short(lead.rationale)}." if lead is not None and lead.rationale.strip() else "."


def short(words: str) -> str:
    """Without its own full stop."""
    return cut(" ".join(words.split()), WHY).rstrip(". ")


def cut(words: str, most: int) -> str:
    """At most so many characters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def harmless(words: str) -> str:
    """One line that neither steers a terminal nor mentions people in a chat."""
    return _MENTION.sub("", clean(words))


def _proposals(decision: Decision) -> list[TallyLine]:
    return [line for line in decision.tally if line.stance == "propose" and not line.shadow]
