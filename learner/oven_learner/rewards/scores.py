"""A member's verdict on a group, which is scores in [0, 1] or an abstention with its reason, and the scoring by rules,
which are members with TRL's reward signature."""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

log = logging.getLogger("oven.learner")

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
"""Explanations by kind. Remote members also have their own kinds of failure (`rate_limit`, …)."""

_PLAIN = re.compile(r"^[a-z][a-z0-9_]{0,31}$")

Scores: TypeAlias = tuple[float, ...]
"""One score per completion, in the order of the group."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """A verdict without scores. `kind` is the reason."""

    kind: str


Verdict: TypeAlias = Scores | Abstention
Cell: TypeAlias = float | Abstention
"""A rule's result for one completion."""
RewardFunction: TypeAlias = Callable[..., Sequence[float | None]]
"""Called with keywords: `prompts`, `completions`, the dataset's other columns as lists, and TRL's extras
(`completion_ids`, `log_metric`, …). Returns one score in [0, 1] per completion, in order; None if the rule does not
apply."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of remote members' answers, as they report it."""

    tokens: int = 0
    usd: float | None = None
    """Cost in US dollars. None if no price is known."""

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
    """Return a member's own failure kind if it is valid in a metric name, otherwise OTHER."""
    return failure if _PLAIN.match(failure) else OTHER


def score_rows(
    name: str, rule: RewardFunction, arguments: Mapping[str, Any], rows: int, references: Collection[str] = ()
) -> list[Cell]:
    """Score a batch's rows with a rule. If the rule raises, it abstains on all of them.

    `references` are columns that the dataset's prompts have and authored prompts lack, such as the answer. A rule with
    such a parameter skips rows without it, because it would have nothing to compare with but still return a number.
    """
    if not (lacking := _without_reference(rule, arguments, rows, references)):
        return _scored(name, rule, arguments, rows)
    cells: list[Cell] = [Abstention(NOT_APPLICABLE)] * rows
    if complete := [row for row in range(rows) if row not in lacking]:
        columns = {key: value for key, value in arguments.items() if _is_column(value, rows)}
        part = {**arguments, **{key: [value[row] for row in complete] for key, value in columns.items()}}
        for row, cell in zip(complete, _scored(name, rule, part, len(complete)), strict=True):
            cells[row] = cell
    return cells


def _scored(name: str, rule: RewardFunction, arguments: Mapping[str, Any], rows: int) -> list[Cell]:
    try:
        returned = list(rule(**arguments))
    except Exception as error:  # its text may quote a prompt
        log.warning("the committee's rule %r raised %s; it abstains", name, type(error).__name__)
        return [Abstention(RAISED)] * rows
    if len(returned) != rows:
        log.warning("the committee's rule %r gave %d scores for %d completions; it abstains", name, len(returned), rows)
        return [Abstention(MALFORMED)] * rows
    verdicts = [checked([value]) for value in returned]
    return [verdict if isinstance(verdict, Abstention) else verdict[0] for verdict in verdicts]


def _without_reference(
    rule: RewardFunction, arguments: Mapping[str, Any], rows: int, references: Collection[str]
) -> set[int]:
    """Return the rows that lack a column named in the rule's signature."""
    columns = [name for name in references if _is_column(arguments.get(name), rows)]
    if not columns or not (lacking := {row for name in columns for row in range(rows) if arguments[name][row] is None}):
        return set()
    try:
        used_columns = set(inspect.signature(rule).parameters).intersection(columns)
    except (TypeError, ValueError):  # no signature: it may use all columns
        used_columns = set(columns)
    return {row for row in lacking if any(arguments[name][row] is None for name in used_columns)}


def _is_column(value: object, rows: int) -> bool:
    return isinstance(value, list) and len(value) == rows
