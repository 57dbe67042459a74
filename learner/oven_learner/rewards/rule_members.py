"""Rule members: plain functions in the learner, with the signature of TRL's reward functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
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


def score_rows(name: str, rule: RewardFunction, asked: Mapping[str, Any], rows: int) -> list[Cell]:
    """The rule's word on each of a batch's rows. A rule that raises abstains on all of them."""
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
