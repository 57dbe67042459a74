"""Publish some sampled groups for people to read: texts as they are, other samples by their shape."""

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

log = logging.getLogger("oven.learner")


def show_groups(
    client: LoopClient | None,
    step: int,
    prompts: Sequence[Any],
    outputs: Sequence[Any],
    scored: Scored,
    advantages: Tensor | None,
    scored_rows: Sequence[int],
    scoring: Scoring,
) -> None:
    """Publish groups of this step's batch if the sampling schedule is due.

    `advantages` are those of `scored_rows`; None if no group has any.
    """
    sampling = client.sampling if client is not None else None
    if client is None or sampling is None or client.tick + 1 < sampling.schedule.next:
        return
    try:
        tick, groups = client.tick + 1, len(prompts)
        size = len(outputs) // groups
        of_row = dict(zip(scored_rows, advantages.tolist() if advantages is not None else (), strict=False))
        for turn in sampling.schedule.take(tick, groups):
            index = turn % groups
            rows = range(index * size, (index + 1) * size)
            rewards, texts = scored.rewards[rows.start : rows.stop].tolist(), [outputs[row] for row in rows]
            sample = partial(_sample, prompts[index], texts, rewards, scoring.columns, rows)
            if scoring.committee is not None:
                sample = partial(_judged, prompts[index], texts, rewards, scoring.committee.evidence, index)
            sampling.number += 1
            where = (sampling.number, tick, step, index, groups)
            group_advantages = [of_row.get(row, math.nan) for row in rows]
            client.show(partial(sampling.parcel, client.position, where, group_advantages, sample))
    except Exception as error:  # its text may quote a prompt
        log.warning("completions of step %d are not shown: %s", step, type(error).__name__)


def _sample(
    prompt: Any, outputs: Sequence[Any], rewards: Sequence[float], columns: Mapping[str, Tensor], rows: range
) -> Sample:
    """Build the sample of a group scored by functions, which all have weight 1."""
    scores = {name: column[rows.start : rows.stop].tolist() for name, column in columns.items()}
    return Sample(prompt, outputs, rewards, [MemberVerdict(name, 1.0, values) for name, values in scores.items()])


def _judged(prompt: Any, outputs: Sequence[Any], rewards: Sequence[float], evidence: Evidence, index: int) -> Sample:
    return Sample(prompt, outputs, rewards, evidence.group_verdicts(index))
