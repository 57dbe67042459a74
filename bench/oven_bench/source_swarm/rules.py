"""The source's agents, as they were published: what each proposes, from the gauges of one decision cycle.

After the public code of "Swarm-Guided KG-Conditioned Training" (openai/parameter-golf, pull request 1081), in our own
words: conditions, values and confidences are its own. What each of its settings is called here: the weight of the
graph's scores in the loss is `channel.kg`, that of multi-token prediction `channel.mtp`, the gradient clip `grad.clip`,
quantisation-aware training `train.quantisation`, the factor on the learning rate `optimizer.lr_scale`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from oven_core.protocol.messages import Value

GRAPH, TOKENS_AHEAD, CLIP = "channel.kg", "channel.mtp", "grad.clip"
PRECISION, RATE = "train.quantisation", "optimizer.lr_scale"
FIRST_GRAPH_WEIGHT: Final = 0.3
"""Of its loss, and what its agent takes for the weight before its first proposal."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What its agents are shown at a cycle."""

    progress: float
    """Steps done over the run's own horizon, 0 to 1."""
    schedule: float
    """Learning rate over its peak, 0 to 1."""
    grad_norm: float
    """Before clipping."""
    losses: Sequence[float]
    """One a step, oldest first."""
    quantised: bool
    rate_scale: float = 1.0
    """The factor on the learning rate that is in force."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one of its agents wants. `raises` is the direction; None for what has none."""

    actuator: str
    value: Value
    confidence: float
    raises: bool | None


def precision(gauges: Gauges, bits: str) -> Proposal | None:
    """Quantisation-aware training: past .40 of the run once the schedule is below .15, and past .65 in any case."""
    if gauges.quantised:
        return None
    if gauges.progress > 0.40 and gauges.schedule < 0.15:
        return Proposal(PRECISION, bits, 0.90, None)
    return Proposal(PRECISION, bits, 0.95, None) if gauges.progress > 0.65 else None


def graph_weight(gauges: Gauges, proposed: float) -> Proposal | None:
    """.5, .4, .3 and .1, from 0, .15, .40 and .70 of the run on, where that is more than .05 from what it last
    proposed."""
    progress = gauges.progress
    target = 0.5 if progress < 0.15 else 0.4 if progress < 0.40 else 0.3 if progress < 0.70 else 0.1
    if abs(target - proposed) <= 0.05:
        return None
    return Proposal(GRAPH, target, 0.75, target > proposed)


def clip(gauges: Gauges) -> Proposal | None:
    """.15 where the norm is above 2."""
    return Proposal(CLIP, 0.15, 0.85, False) if gauges.grad_norm > 2.0 else None


def tokens_ahead(gauges: Gauges) -> Proposal | None:
    """.05 past three quarters of the run, at every cycle."""
    return Proposal(TOKENS_AHEAD, 0.05, 0.65, False) if gauges.progress > 0.75 else None


def rate(gauges: Gauges) -> Proposal | None:
    """By what the loss fell over the last ten steps against the ten before: times .85 where that is below a fifth and
    the run past .40, times 1.1 where it is above one and a half and the factor below 1.2. It is in the source's code
    and not in its swarm."""
    if len(gauges.losses) < 20:
        return None
    recent, earlier = gauges.losses[-10:], gauges.losses[-20:-10]
    fell, fell_before = recent[0] - recent[-1], earlier[0] - earlier[-1]
    if fell_before <= 0:
        return None
    ratio = fell / fell_before
    if ratio < 0.2 and gauges.progress > 0.4:
        return Proposal(RATE, 0.85 * gauges.rate_scale, 0.7, False)
    if ratio > 1.5 and gauges.rate_scale < 1.2:
        return Proposal(RATE, 1.1 * gauges.rate_scale, 0.6, True)
    return None


def as_coded(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The consensus that its code has: every proposal of confidence .6 or more."""
    return [one for one in proposals if one.confidence >= 0.6]


def as_written(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The consensus that its text promises, for each knob: a proposal of .85 or more, or two that agree on the
    direction, of which the surer one's value counts; and nothing where one is below .3."""
    found = []
    for actuator in dict.fromkeys(one.actuator for one in proposals):
        about = sorted((one for one in proposals if one.actuator == actuator), key=lambda one: -one.confidence)
        if about[-1].confidence < 0.3:
            continue
        agreed = [one for one in about if sum(one.raises == other.raises for other in about) >= 2]
        if about[0].confidence >= 0.85:
            found.append(about[0])
        elif agreed:
            found.append(agreed[0])
    return found
