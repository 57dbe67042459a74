"""The metric that a decision is judged by: agents choose among those with a direction.

A gauge without a direction judges nothing: the agent would choose the direction too, and could name one that its own
knob moves by construction (`learning_rate`), so that it could not be wrong. An actuator that moves its own metric
(`moves_own_metric` in its spec: the reward's weights move the reward) is judged by what was measured on held-out data,
or not turned by agents at all.
"""

from __future__ import annotations

from oven_core.mesh.ballots import Refusal, request_text
from oven_core.mesh.measurements import METRICS
from oven_core.mesh.state import State
from oven_core.protocol.messages import MetricSpec, Vote


def directed(metrics: tuple[MetricSpec, ...]) -> dict[str, MetricSpec]:
    """Those that can judge, by name, in the order of the announcement."""
    found = {metric.name: metric for metric in metrics if metric.better != "neither"}
    return dict(list(found.items())[:METRICS])


def judging_metric(state: State, actuator: str, target: str) -> MetricSpec | None:
    """The metric that a change of `actuator` for the sake of `target` is judged by: the target, if it can judge it,
    else the held-out metric that stands for the whole (the fewest parts in its name, then the first announced), so that
    naming none is not a way out. None: there is none, and no outcome; nor has an action that moves no metric."""
    spec = state.spec(actuator)
    if not spec.has_outcome:
        return None
    known = directed(state.metrics)
    named = known.get(target)
    if named is not None and (named.held_out or not spec.moves_own_metric):
        return named
    held_out = (metric for metric in known.values() if metric.held_out)
    return min(held_out, key=lambda metric: metric.name.count("/"), default=None)


def refuse_unjudged(author: str, vote: Vote, state: State) -> Refusal | None:
    """Why this proposal cannot stand: it moves its own metric, and nothing held out could judge it."""
    if not state.spec(vote.actuator).moves_own_metric or judging_metric(state, vote.actuator, vote.target) is not None:
        return None
    return Refusal(
        (author, vote.actuator, "yardstick"),
        f"agent {author} {request_text(vote.actuator, vote.value)}, which moves what it is measured by, and this run "
        "announces no held-out metric that is better up or down: have it evaluate on held-out data, or announce the "
        "actuator without moves_own_metric",
    )
