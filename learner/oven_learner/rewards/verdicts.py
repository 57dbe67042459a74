"""Verdicts of committee members on groups, and functions that score with rules. A verdict is either scores in [0, 1] or
an abstention with its reason. Rules are members with TRL's reward signature."""

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
OTHER_JUDGE, TOO_LARGE, NO_DIFFERENCE, OTHER = "other_judge", "too_large", "no_difference", "other"
ABSTENTION_KINDS = {
    RAISED: "a rule raised an error",
    NOT_APPLICABLE: "a rule returned None, or a remote member returned neither scores nor a failure",
    MALFORMED: "an answer that is not a ScoreReply of this member, or the wrong number of scores",
    OUT_OF_RANGE: "a score outside [0, 1], or NaN",
    WRONG_IDS: "scores for other completions or another group",
    OTHER_JUDGE: "an answer by a model other than the requested one",
    NO_RESPONDER: "no process listens on the member's subject",
    DEADLINE: "no answer in time",
    BUS_DOWN: "no connection to the bus",
    TOO_LARGE: "the group is larger than the bus accepts in a message",
    NO_DIFFERENCE: "equal scores for a group in which too few other members saw a difference",
    OTHER: "a member's own kind of failure that is not a plain word",
}
"""Explanations of the kinds of abstentions. Remote members may report other kinds of failure (`rate_limit`, …)."""
_KIND_PATTERN = re.compile(r"^[a-z][a-z0-9_]{0,31}$")
Scores: TypeAlias = tuple[float, ...]
"""One score per completion, in the order of the group."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """A verdict without scores, for the reason `kind`."""

    kind: str


Verdict: TypeAlias = Scores | Abstention
RuleResult: TypeAlias = float | Abstention
"""A rule's result for one completion."""
RewardFunction: TypeAlias = Callable[..., Sequence[float | None]]
"""A rule, called with keyword arguments: `prompts`, `completions`, the dataset's other columns as lists, and TRL's
extra arguments (`completion_ids`, `log_metric`, …). It returns one score in [0, 1] per completion, in the same order,
or None where it does not apply."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of answers, as reported by the remote members."""

    tokens: int = 0
    usd: float | None = None
    """Cost in US dollars, or None if no price is known."""

    def __add__(self, addend: Cost) -> Cost:
        prices = [usd for usd in (self.usd, addend.usd) if usd is not None]
        return Cost(self.tokens + addend.tokens, math.fsum(prices) if prices else None)


def to_verdict(values: Iterable[object]) -> Verdict:
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


def to_kind(failure: str) -> str:
    """Return the member's own kind of failure if it is valid in a metric name, otherwise OTHER."""
    return failure if _KIND_PATTERN.match(failure) else OTHER


def score_rows(
    name: str, rule: RewardFunction, arguments: Mapping[str, Any], row_count: int, references: Collection[str] = ()
) -> list[RuleResult]:
    """Score the rows of a batch with a rule. If the rule raises an error, it abstains on all rows. `references` are
    columns, such as the answer, that may be empty for prompts added during training. A rule that uses such a column
    skips the rows without a value, because its score would be meaningless there."""
    incomplete_rows = _find_incomplete_rows(rule, arguments, row_count, references)
    if not incomplete_rows:
        return _score(name, rule, arguments, row_count)
    results: list[RuleResult] = [Abstention(NOT_APPLICABLE)] * row_count
    complete_rows = [row for row in range(row_count) if row not in incomplete_rows]
    if complete_rows:
        columns = {key: value for key, value in arguments.items() if _is_column(value, row_count)}
        complete_columns = {key: [value[row] for row in complete_rows] for key, value in columns.items()}
        new_results = _score(name, rule, {**arguments, **complete_columns}, len(complete_rows))
        for row, result in zip(complete_rows, new_results, strict=True):
            results[row] = result
    return results


def _score(name: str, rule: RewardFunction, arguments: Mapping[str, Any], row_count: int) -> list[RuleResult]:
    """Call the rule, and turn errors and invalid scores into abstentions."""
    try:
        values = list(rule(**arguments))
    except Exception as error:  # the error's text is not logged, because it may quote a prompt
        log.warning("the committee's rule %r raised %s, so it abstains", name, type(error).__name__)
        return [Abstention(RAISED)] * row_count
    if len(values) != row_count:
        log.warning(
            "the committee's rule %r abstains: it returned %d scores for %d completions", name, len(values), row_count
        )
        return [Abstention(MALFORMED)] * row_count
    verdicts = [to_verdict([value]) for value in values]
    return [verdict if isinstance(verdict, Abstention) else verdict[0] for verdict in verdicts]


def _find_incomplete_rows(
    rule: RewardFunction, arguments: Mapping[str, Any], row_count: int, references: Collection[str]
) -> set[int]:
    """Return the rows without a value in a reference column that is named in the rule's signature."""
    columns = [name for name in references if _is_column(arguments.get(name), row_count)]
    if all(value is not None for name in columns for value in arguments[name]):
        return set()
    try:
        used_columns = set(inspect.signature(rule).parameters).intersection(columns)
    except (TypeError, ValueError):  # without a signature the rule may use all columns
        used_columns = set(columns)
    return {row for row in range(row_count) if any(arguments[name][row] is None for name in used_columns)}


def _is_column(value: object, row_count: int) -> bool:
    return isinstance(value, list) and len(value) == row_count
