"""Stakes of the voters in a decision: side, confidence, and the promised change of a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from oven_core.mesh.ballots import Ballot
from oven_core.mesh.judging_metric import judging_metric
from oven_core.mesh.state import State
from oven_core.mesh.value_merge import WeightedVote, heaviest, sides_of
from oven_core.protocol.messages import ActuatorSpec, TallyLine

LONGEST = 10
"""× rules.outcome_ticks: no one may put off being judged beyond it."""


@dataclass(frozen=True, slots=True)
class Stake:
    """`expected` is the size of the change that the agent itself promised of the judging metric; 0 if it named none."""

    agent: str
    stance: Literal["propose", "for", "against"]
    confidence: float
    expected: float
    shadow: bool
    carried: bool
    """Whether its vote had weight in the decision."""
    opened: bool
    """Whether it opened the ballot: no one else had seen the matter."""


@dataclass(frozen=True, slots=True)
class Forecast:
    target: str
    sign: int  # +1 where up is better
    expected: float  # the leading proposal's, as it gave it; 0 where it named another metric or none
    horizon: int  # ticks
    stakes: tuple[Stake, ...]


def forecast(state: State, ballot: Ballot, spec: ActuatorSpec, lines: Sequence[TallyLine]) -> Forecast | None:
    """Of a ballot that passed. None where nothing can judge the change.

    The leading proposal is the heaviest on the winning side, then the last by name. Proposals on another side have no
    stake: theirs was not tried. A horizon below `rules.outcome_ticks` is taken as that, so that harm has time to show.
    """
    before = state.effective.get(spec.name)
    votes = [
        WeightedVote(line.agent, ballot.casts[line.agent].value, line.weight, line)
        for line in lines
        if line.stance in ("propose", "for")
    ]
    _, side = heaviest(sides_of(spec, before, votes))
    proposers = [cast.line for cast in side if cast.line.stance == "propose" and not cast.line.shadow]
    lead = max(proposers, key=lambda line: (line.weight, line.agent), default=None)
    vote = ballot.casts[lead.agent].vote if lead else None
    metric = judging_metric(state, spec.name, vote.target if vote else "")
    if metric is None:
        return None
    own = vote is not None and vote.target == metric.name and math.isfinite(vote.expected_change)
    least = state.rules.outcome_ticks
    staked = {cast.agent for cast in side} | {line.agent for line in lines if line.stance == "against"}
    return Forecast(
        target=metric.name,
        sign=1 if metric.better == "up" else -1,
        expected=vote.expected_change if vote is not None and own else 0.0,
        horizon=min(max(vote.horizon if vote else 0, least), LONGEST * least),
        stakes=tuple(_stake(ballot, line, metric.name) for line in lines if line.agent in staked),
    )


def _stake(ballot: Ballot, line: TallyLine, target: str) -> Stake:
    vote = ballot.casts[line.agent].vote
    promised = vote.stance != "against" and vote.target == target and math.isfinite(vote.expected_change)
    assert line.stance in ("propose", "for", "against")
    return Stake(
        line.agent,
        line.stance,
        line.confidence,
        abs(vote.expected_change) if promised else 0.0,
        line.shadow,
        carried=line.weight > 0,
        opened=line.agent == ballot.opened.opened_by,
    )
