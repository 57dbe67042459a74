"""Sampled groups of a policy's training, to be shown: texts as they are, and of samples without a text their shape."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from oven_learner.client.loop_client import LoopClient
from oven_learner.completions.sample import MemberVerdict, Sample
from oven_learner.policies.scoring import Scored, Scoring
from oven_learner.rewards.group import Evidence
from oven_learner.rewards.group_verdicts import group_verdicts

log = logging.getLogger("oven.learner")


def show_groups(
    client: LoopClient | None,
    step: int,
    prompts: Sequence[Any],
    outputs: Sequence[Any],
    scored: Scored,
    advantages: Tensor | None,
    kept: Sequence[int],
    scoring: Scoring,
) -> None:
    """Hands over groups of the batch that was sampled for this step, if its turn has come. `advantages`: of the rows in
    `kept`; None: no group has any."""
    sampling = client.sampling if client is not None else None
    if client is None or sampling is None or client.tick + 1 < sampling.schedule.next:
        return
    try:
        tick, groups = client.tick + 1, len(prompts)
        size = len(outputs) // groups
        of_row = dict(zip(kept, advantages.tolist() if advantages is not None else (), strict=False))
        for turn in sampling.schedule.take(tick, groups):
            place = turn % groups
            rows = range(place * size, (place + 1) * size)
            rewards, texts = scored.rewards[rows.start : rows.stop].tolist(), [outputs[row] for row in rows]
            said = partial(_sample, prompts[place], texts, rewards, scoring.columns, rows)
            if scoring.committee is not None:
                said = partial(_judged, prompts[place], texts, rewards, scoring.committee.evidence, place)
            sampling.number += 1
            where = (sampling.number, tick, step, place, groups)
            given = [of_row.get(row, math.nan) for row in rows]
            client.show(partial(sampling.parcel, client.position, where, given, said))
    except Exception as error:  # its text may quote a prompt
        log.warning("completions of step %d are not shown: %s", step, type(error).__name__)


def _sample(
    prompt: Any, outputs: Sequence[Any], rewards: Sequence[float], columns: Mapping[str, Tensor], rows: range
) -> Sample:
    """Functions are added up: each has the weight 1."""
    scores = {name: column[rows.start : rows.stop].tolist() for name, column in columns.items()}
    return Sample(prompt, outputs, rewards, [MemberVerdict(name, 1.0, given) for name, given in scores.items()])


def _judged(prompt: Any, outputs: Sequence[Any], rewards: Sequence[float], evidence: Evidence, place: int) -> Sample:
    return Sample(prompt, outputs, rewards, group_verdicts(evidence, place))
