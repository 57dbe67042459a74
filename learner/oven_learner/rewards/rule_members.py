"""Rule members: plain functions in the learner, with the signature of TRL's reward functions."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from oven_learner.rewards import scores
from oven_learner.rewards.scores import Abstention, checked

log = logging.getLogger("oven.learner")

Cell: TypeAlias = float | Abstention
"""What a rule says of one completion."""


RewardFunction: TypeAlias = Callable[..., Sequence[float | None]]
"""Called with keywords: `prompts`, `completions`, the data set's other columns, a list each, and what TRL adds
(`completion_ids`, `log_metric`, …). Returns one score in [0, 1] a completion, in the order of the batch; None where the
rule does not apply."""


def score_rows(
    name: str, rule: RewardFunction, asked: Mapping[str, Any], rows: int, references: Collection[str] = ()
) -> list[Cell]:
    """The rule's word on each of a batch's rows. A rule that raises abstains on all of them.

    `references`: columns that the data's own prompts have and an author's lack, such as the answer. A rule that names
    one of them is not asked about rows without it, where it would compare with nothing and give a number all the same.
    """
    if not (open_ := _without_reference(rule, asked, rows, references)):
        return _scored(name, rule, asked, rows)
    cells: list[Cell] = [Abstention(scores.NOT_APPLICABLE)] * rows
    known = [row for row in range(rows) if row not in open_]
    if known:
        part = {
            key: [value[row] for row in known] if _is_column(value, rows) else value for key, value in asked.items()
        }
        for row, cell in zip(known, _scored(name, rule, part, len(known)), strict=True):
            cells[row] = cell
    return cells


def _scored(name: str, rule: RewardFunction, asked: Mapping[str, Any], rows: int) -> list[Cell]:
    try:
        given = list(rule(**asked))
    except Exception as error:  # its text may quote a prompt
        log.warning("the committee's rule %r raised %s; it abstains", name, type(error).__name__)
        return [Abstention(scores.RAISED)] * rows
    if len(given) != rows:
        log.warning("the committee's rule %r gave %d scores for %d completions; it abstains", name, len(given), rows)
        return [Abstention(scores.MALFORMED)] * rows
    cells: list[Cell] = []
    for value in given:
        verdict = checked([value])
        cells.append(verdict if isinstance(verdict, Abstention) else verdict[0])
    return cells


def _without_reference(
    rule: RewardFunction, asked: Mapping[str, Any], rows: int, references: Collection[str]
) -> set[int]:
    """Rows that lack a column which the rule names in its signature."""
    columns = [name for name in references if _is_column(asked.get(name), rows)]
    if not columns or not (lacking := {row for name in columns for row in range(rows) if asked[name][row] is None}):
        return set()
    try:
        named = set(inspect.signature(rule).parameters).intersection(columns)
    except (TypeError, ValueError):  # of a callable without one it is not known: it may use them all
        named = set(columns)
    return {row for row in lacking if any(asked[name][row] is None for name in named)}


def _is_column(value: object, rows: int) -> bool:
    return isinstance(value, list) and len(value) == rows
