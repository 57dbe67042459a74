"""Explain the decisions in a log, and re-run one of them under different rules.

The decision under other rules is an open-loop counterfactual (oven_runs.log.counterfactual). It is less certain if
these rules also change an earlier decision, so the result names the first such decision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.access.run_access import RunAccess
from oven_runs.log.explanation import Explanation, Explanations
from oven_runs.log.explanation_report import AlternativeDecision

MAX_DELAY_TICKS: Final = 100
"""Maximum ticks by which a decision may be later under other rules, for example because of a longer voting window."""


async def read_explanations(access: RunAccess, on_event: Callable[[Event], object] = lambda _: None) -> Explanations:
    """Read the explanations of a run's decisions from its log. `on_event` is called with each event, and may raise to
    stop. Raises the errors of `RunAccess.events`."""
    explanations = Explanations()
    await access.read_view(explanations, on_event=on_event)
    return explanations


async def explain_decision(
    access: RunAccess, name: str, rules: Mapping[str, Any], on_event: Callable[[Event], object] = lambda _: None
) -> tuple[Explanation, AlternativeDecision | None]:
    """Explain a decision. For `name`, see `Explanations.find`. With `rules`, also return the decision under them."""
    explanation = (await read_explanations(access, on_event)).find(name)
    if not rules:
        return explanation, None
    return explanation, await decide_under_rules(access, explanation.decision, rules, on_event)


async def decide_under_rules(
    access: RunAccess,
    original: Decision,
    rules: Mapping[str, Any],
    on_event: Callable[[Event], object] = lambda _: None,
) -> AlternativeDecision:
    """Return the decision that these rules would have led to instead of the original one. Read the log only as far as
    needed. `on_event` is called with each event, and may raise to stop. Raises the errors of `RunAccess.events`."""
    from oven_runs.log.counterfactual import ChangedMesh
    from oven_runs.settings.resolution import with_rules

    changed_mesh = ChangedMesh(access.run, lambda logged: with_rules(logged, rules))
    later: Decision | None = None
    async with contextlib.aclosing(access.events(exact=True)) as log:
        async for event in log:
            changed_mesh.feed(event)
            on_event(event)
            same_actuator = (d for d in changed_mesh.computed if d.actuator == original.actuator)
            later = next((d for d in same_actuator if d.tick >= original.tick), None)
            if changed_mesh.tick > original.tick + (0 if later else MAX_DELAY_TICKS):
                break
    divergences = changed_mesh.divergences()
    divergence = next((d for d in divergences if d.logged is not None and d.logged.id == original.id), None)
    earlier = next((d for d in divergences if d.tick < original.tick), None)
    return AlternativeDecision(
        rules=dict(rules),
        same=divergence is None,
        decision=original if divergence is None else divergence.computed or later,
        earlier_divergence=f"{earlier.actuator} at tick {earlier.tick}" if earlier is not None else "",
    )
