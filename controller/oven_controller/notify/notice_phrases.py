"""Build the phrases of notices. Text from agents and learners is shortened and cleaned. This module does no I/O."""

from __future__ import annotations

import re
from typing import Final

from oven_core.protocol.messages import Decision, TallyLine
from oven_core.terminal_text import clean
from oven_runs.log.run_summary import format_value

REASON_CHARACTERS: Final = 300
"""Maximum length of a reason in a notice."""
NAMED_AGENTS: Final = 4
"""Maximum number of agents that a notice names. Further agents are only counted."""
_MENTION: Final = re.compile(r"@(?=everyone|here|channel)|<(?=[!@#])", re.IGNORECASE)
"""Markup that makes a chat notify people or insert a link."""


def change_text(decision: Decision) -> str:
    """Return the actuator's name with its old and new values."""
    if decision.value is None:
        return decision.actuator
    before = f"{format_value(decision.before)} → " if decision.before is not None else ""
    return f"{decision.actuator} {before}{format_value(decision.value)}"


def proposers_text(decision: Decision) -> str:
    """Return a phrase with the agents that proposed the change."""
    names = [line.agent for line in _proposals(decision)]
    more = f" and {len(names) - NAMED_AGENTS} more" if len(names) > NAMED_AGENTS else ""
    return " and ".join(names[:NAMED_AGENTS]) + more if names else "the mesh"


def origin_text(decision: Decision) -> str:
    """Return who caused a decision, e.g. "proposed by amy and approved by an operator"."""
    if decision.command and not decision.approves:
        return "set by an operator"
    return f"proposed by {proposers_text(decision)}" + (" and approved by an operator" if decision.approves else "")


def reason_clause(decision: Decision) -> str:
    """Return the end of a sentence: the reason of the heaviest proposal, if it has one, and a full stop."""
    heaviest = max(_proposals(decision), key=lambda line: (line.weight, line.agent), default=None)
    return f", because {shorten(heaviest.rationale)}." if heaviest is not None and heaviest.rationale.strip() else "."


def shorten(phrase: str) -> str:
    """Return the phrase on one line, with at most REASON_CHARACTERS and without a full stop."""
    return truncate(" ".join(phrase.split()), REASON_CHARACTERS).rstrip(". ")


def truncate(phrase: str, max_length: int) -> str:
    """Return at most `max_length` characters of the phrase."""
    return phrase if len(phrase) <= max_length else phrase[: max_length - 1] + "…"


def sanitize(phrase: str) -> str:
    """Remove terminal control characters and the markup that a chat would act on."""
    return _MENTION.sub("", clean(phrase))


def _proposals(decision: Decision) -> list[TallyLine]:
    return [line for line in decision.tally if line.stance == "propose" and not line.shadow]
