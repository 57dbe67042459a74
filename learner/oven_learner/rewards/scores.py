"""A member's verdict on a group: scores in [0, 1], or an abstention with a kind of reason."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

RAISED, NOT_APPLICABLE, MALFORMED, OUT_OF_RANGE = "raised", "not_applicable", "malformed", "out_of_range"
WRONG_IDS, NO_RESPONDER, DEADLINE, BUS_DOWN = "wrong_ids", "no_responder", "deadline", "bus_down"
OTHER_JUDGE = "other_judge"
TOO_LARGE, NO_DIFFERENCE, OTHER = "too_large", "no_difference", "other"

KINDS = {
    RAISED: "a rule raised",
    NOT_APPLICABLE: "a rule returned None, or a remote member no scores and no failure",
    MALFORMED: "an answer that is no ScoreReply of the member asked, or the wrong number of scores",
    OUT_OF_RANGE: "a score outside [0, 1], or NaN",
    WRONG_IDS: "scores for other completions or another group than were asked for",
    OTHER_JUDGE: "an answer that is not by the model that was asked for",
    NO_RESPONDER: "nobody listens on the member's subject",
    DEADLINE: "no answer in time",
    BUS_DOWN: "no connection to the bus",
    TOO_LARGE: "the group exceeds what the bus takes in a message",
    NO_DIFFERENCE: "equal scores for a whole group in which too few others saw a difference",
    OTHER: "a reason of the member's own that is not a plain word",
}
"""Kind → explanation. Remote members' own kinds of failure (`rate_limit`, …) exist in addition."""

_PLAIN = re.compile(r"^[a-z][a-z0-9_]{0,31}$")

Scores: TypeAlias = tuple[float, ...]
"""One per completion, in the order of the group."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """A verdict without scores; `kind` is the reason."""

    kind: str


Verdict: TypeAlias = Scores | Abstention


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of remote members' answers, as reported by them."""

    tokens: int = 0
    usd: float | None = None
    """None: no price is known."""

    def __add__(self, addend: Cost) -> Cost:
        prices = [usd for usd in (self.usd, addend.usd) if usd is not None]
        return Cost(self.tokens + addend.tokens, math.fsum(prices) if prices else None)


def checked(values: Iterable[object]) -> Verdict:
    """Return the scores if each is a finite number in [0, 1], otherwise an abstention. None means "not applicable"."""
    scores: list[float] = []
    for value in values:
        if value is None:
            return Abstention(NOT_APPLICABLE)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Abstention(MALFORMED)
        if not (math.isfinite(value) and 0 <= value <= 1):
            return Abstention(OUT_OF_RANGE)
        scores.append(float(value))
    return tuple(scores)


def own_kind(failure: str) -> str:
    """Return a member's own failure kind if it is valid in a metric's name, else OTHER."""
    return failure if _PLAIN.match(failure) else OTHER
