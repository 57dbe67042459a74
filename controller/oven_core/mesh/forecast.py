"""The forecast behind a decision: the metric that will judge it, the expected change, and what each voter claimed.

Agents choose the judging metric, but only from those for which the learner announces whether up or down is better.
Otherwise an agent could name a metric that its actuator sets (`learning_rate`) and the direction in which it moves, and
would never be wrong. Some actuators move their own metric (`moves_own_metric`), as reward weights move the reward. Such
changes are judged on held-out data. Without held-out data, agents may not make them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from oven_core.mesh.ballots import Ballot, Refusal, request_text
from oven_core.mesh.measurements import MAX_METRICS
from oven_core.mesh.state import State, main_held_out_metric
from oven_core.mesh.value_merge import WeightedVote, group_by_side, heaviest_side
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, TallyLine, Vote

MAX_HORIZON = 10
"""Maximum horizon in multiples of rules.outcome_ticks, so that no agent can postpone its judgement indefinitely."""


@dataclass(frozen=True, slots=True)
class Stake:
    """What one voter claimed about a decision. The outcome changes the voter's reputation accordingly."""

    agent: str
    stance: Literal["propose", "for", "against"]
    confidence: float
    forecast_size: float
    """The size of the change that the agent forecast for the judging metric; 0 if it did not forecast that metric."""
    shadow: bool
    has_weight: bool
    """Whether the agent's vote had weight in the decision."""
    led_ballot: bool
    """Whether the agent opened the ballot with a proposal of this change, and no more trusted agent proposed it."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast by which a decision is judged."""

    target: str
    sign: int
    """1 if higher is better, −1 if lower is better."""
    expected_change: float
    """The change that the leading proposal forecast; 0 if the proposal named another metric or none."""
    horizon: int
    """Number of ticks after the change in which its effect should show."""
    stakes: tuple[Stake, ...]


def directed_metrics(metrics: tuple[MetricSpec, ...]) -> dict[str, MetricSpec]:
    """Return the metrics that can judge a change, by name, in the announced order."""
    by_name = {metric.name: metric for metric in metrics if metric.better != "neither"}
    return dict(list(by_name.items())[:MAX_METRICS])


def judging_metric(state: State, actuator: str, target: str) -> MetricSpec | None:
    """Return the metric that judges a change of `actuator` proposed for `target`.

    This is the target if it can judge the change. Otherwise it is the main held-out metric, so that an agent cannot
    avoid judgement by naming no target. Return None if no metric can judge the change, or if the actuator has no
    outcome."""
    spec = state.spec(actuator)
    if not spec.has_outcome:
        return None
    candidates = directed_metrics(state.metrics)
    targeted = candidates.get(target)
    if targeted is not None and (targeted.held_out or not spec.moves_own_metric):
        return targeted
    return main_held_out_metric(candidates.values())


def refuse_unjudged(author: str, vote: Vote, state: State) -> Refusal | None:
    """Return a refusal if the proposal moves its own metric and the run has no held-out metric to judge it."""
    if not state.spec(vote.actuator).moves_own_metric or judging_metric(state, vote.actuator, vote.target) is not None:
        return None
    return Refusal(
        (author, vote.actuator, "yardstick"),
        f"agent {author} {request_text(vote.actuator, vote.value)}, which moves its own metric, and this run announces "
        "no held-out metric with a better direction: evaluate on held-out data, or announce the actuator without "
        "moves_own_metric",
    )


def make_forecast(state: State, ballot: Ballot, spec: ActuatorSpec, lines: Sequence[TallyLine]) -> Forecast | None:
    """Return the forecast of a ballot that passed, or None if no metric can judge the change.

    The leading proposal has the most weight on the winning side (or the last name on a tie). Votes for other sides have
    no stake, because their changes were not made. The horizon is at least `rules.outcome_ticks`, as harm takes time."""
    before = state.effective.get(spec.name)
    votes = [
        WeightedVote(line.agent, ballot.votes[line.agent].value, line.weight, line)
        for line in lines
        if line.stance in ("propose", "for")
    ]
    _, side = heaviest_side(group_by_side(spec, before, votes))
    proposers = [vote.line for vote in side if vote.line.stance == "propose" and not vote.line.shadow]
    leading_line = max(proposers, key=lambda line: (line.weight, line.agent), default=None)
    leading_vote = ballot.votes[leading_line.agent].vote if leading_line else None
    metric = judging_metric(state, spec.name, leading_vote.target if leading_vote else "")
    if metric is None:
        return None
    expected_change = leading_vote.expected_change if leading_vote and leading_vote.target == metric.name else 0.0
    min_horizon = state.rules.outcome_ticks
    proposed_horizon = leading_vote.horizon if leading_vote else 0
    is_weightless = leading_line is not None and leading_line.weight == 0
    leaders = {line.agent for line in proposers if line.weight > 0 or is_weightless} & {ballot.opened.opened_by}
    stakeholders = {vote.agent for vote in side} | {line.agent for line in lines if line.stance == "against"}
    return Forecast(
        target=metric.name,
        sign=1 if metric.better == "up" else -1,
        expected_change=expected_change if math.isfinite(expected_change) else 0.0,
        horizon=min(max(proposed_horizon, min_horizon), MAX_HORIZON * min_horizon),
        stakes=tuple(
            _make_stake(ballot, line, metric.name, led_ballot=line.agent in leaders)
            for line in lines
            if line.agent in stakeholders
        ),
    )


def _make_stake(ballot: Ballot, line: TallyLine, target: str, *, led_ballot: bool) -> Stake:
    vote = ballot.votes[line.agent].vote
    has_forecast = vote.stance != "against" and vote.target == target and math.isfinite(vote.expected_change)
    assert line.stance in ("propose", "for", "against")
    return Stake(
        line.agent,
        line.stance,
        line.confidence,
        abs(vote.expected_change) if has_forecast else 0.0,
        line.shadow,
        has_weight=line.weight > 0,
        led_ballot=led_ballot,
    )
