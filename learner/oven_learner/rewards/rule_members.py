"""Rule members: plain functions in the learner, with TRL's reward signature."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from oven_learner.rewards import scores
from oven_learner.rewards.scores import Abstention, checked

log = logging.getLogger("oven.learner")

Cell: TypeAlias = float | Abstention
"""A rule's result for one completion."""


RewardFunction: TypeAlias = Callable[..., Sequence[float | None]]
"""Called with keywords: `prompts`, `completions`, the dataset's other columns as lists, and TRL's extras
(`completion_ids`, `log_metric`, …). Returns one score in [0, 1] per completion, in order; None if the rule does not
apply."""


def score_rows(
    name: str, rule: RewardFunction, arguments: Mapping[str, Any], rows: int, references: Collection[str] = ()
) -> list[Cell]:
    """Score a batch's rows with a rule. If the rule raises, it abstains on all of them.

    `references` are columns that the dataset's prompts have and authored prompts lack, such as the answer. A rule with
    such a parameter skips rows without it, where it would compare with nothing and still return a number.
    """
    if not (open_ := _without_reference(rule, arguments, rows, references)):
        return _scored(name, rule, arguments, rows)
    cells: list[Cell] = [Abstention(scores.NOT_APPLICABLE)] * rows
    complete_rows = [row for row in range(rows) if row not in open_]
    if complete_rows:
        part = {
            key: [value[row] for row in complete_rows] if _is_column(value, rows) else value
            for key, value in arguments.items()
        }
        for row, cell in zip(complete_rows, _scored(name, rule, part, len(complete_rows)), strict=True):
            cells[row] = cell
    return cells


def _scored(name: str, rule: RewardFunction, arguments: Mapping[str, Any], rows: int) -> list[Cell]:
    try:
        returned = list(rule(**arguments))
    except Exception as error:  # its text may quote a prompt
        log.warning("the committee's rule %r raised %s; it abstains", name, type(error).__name__)
        return [Abstention(scores.RAISED)] * rows
    if len(returned) != rows:
        log.warning("the committee's rule %r gave %d scores for %d completions; it abstains", name, len(returned), rows)
        return [Abstention(scores.MALFORMED)] * rows
    cells: list[Cell] = []
    for value in returned:
        verdict = checked([value])
        cells.append(verdict if isinstance(verdict, Abstention) else verdict[0])
    return cells


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
