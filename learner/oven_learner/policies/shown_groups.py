"""Sampled groups of a policy's training, to be shown: texts as they are, and of samples without a text their shape."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from oven_learner.client.loop_client import LoopClient
from oven_learner.completions.sample import MemberVerdict
from oven_learner.policies.scoring import Scored, Scoring
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
    `kept`; None: no group has any. A branch's samples are not shown."""
    sampling = client.sampling if client is not None else None
    if client is None or sampling is None or client.plays_branch or not sampling.schedule.due(client.tick + 1):
        return
    try:
        tick, size = client.tick + 1, len(outputs) // len(prompts)
        of_row = dict(zip(kept, advantages.tolist() if advantages is not None else (), strict=False))
        for place in sampling.schedule.take(tick, len(prompts)):
            rows = range(place * size, (place + 1) * size)
            if scoring.committee is not None:
                members = partial(group_verdicts, scoring.committee.evidence, place)
            else:
                members = partial(_functions, scoring.columns, rows)
            client.show(
                sampling.parcel(
                    incarnation=client.position()["incarnation"],
                    tick=tick,
                    step=step,
                    group=place,
                    groups=len(prompts),
                    prompt=prompts[place],
                    completions=[outputs[row] for row in rows],
                    rewards=scored.rewards[rows.start : rows.stop].tolist(),
                    advantages=[of_row.get(row, math.nan) for row in rows],
                    members=members,
                )
            )
    except Exception as error:  # its text may quote a prompt
        log.warning("completions of step %d are not shown: %s", step, type(error).__name__)


def _functions(columns: Mapping[str, Tensor], rows: range) -> list[MemberVerdict]:
    """Functions are added up: each has the weight 1."""
    return [MemberVerdict(name, 1.0, column[rows.start : rows.stop].tolist()) for name, column in columns.items()]
