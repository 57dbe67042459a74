"""Explain the decisions in a log, and re-run one of them under different rules.

The result is an open-loop counterfactual (oven_runs.log.counterfactual). An earlier divergence makes it less certain,
so the answer names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.access.run_access import RunAccess
from oven_runs.log.counterfactual import OpenLoop
from oven_runs.log.explanation import Explanation, Explanations
from oven_runs.log.explanation_report import OtherRuling
from oven_runs.settings.resolution import with_rules

MORE_TICKS: Final = 100
"""Number of ticks after the decision in which other rules, such as a longer window, may still decide."""


async def explanations(access: RunAccess, hear: Callable[[Event], object] = lambda _: None) -> Explanations:
    """Read a run's decisions. `hear` gets each event, and may raise to stop. Raises the log reader's errors."""
    log = Explanations()
    async for event in access.events(brief=True):
        log.feed(event)
        hear(event)
    return log


async def explained(
    access: RunAccess, name: str, rules: Mapping[str, Any], hear: Callable[[Event], object] = lambda _: None
) -> tuple[Explanation, OtherRuling | None]:
    """Find one decision like `Explanations.find`. Return it with the decision under other rules, if any are given."""
    explanation = (await explanations(access, hear)).find(name)
    return explanation, await other_ruling(access, explanation.decision, rules, hear) if rules else None


async def other_ruling(
    access: RunAccess, about: Decision, rules: Mapping[str, Any], hear: Callable[[Event], object] = lambda _: None
) -> OtherRuling:
    """Return the decision that these rules would have led to instead.

    Reads the log only as far as needed. `hear` gets each event, and may raise to stop. Raises the log reader's errors.
    """
    loop = OpenLoop(access.run, lambda logged: with_rules(logged, rules))
    later: Decision | None = None
    async with contextlib.aclosing(access.events(exact=True)) as log:
        async for event in log:
            loop.take(event)
            hear(event)
            same_actuator = (d for d in loop.computed if d.actuator == about.actuator)
            later = next((d for d in same_actuator if d.tick >= about.tick), None)
            if loop.tick > about.tick + (0 if later else MORE_TICKS):
                break
    divergences = loop.divergences()
    own = next((d for d in divergences if d.logged is not None and d.logged.id == about.id), None)
    earlier = next((d for d in divergences if d.tick < about.tick), None)
    return OtherRuling(
        rules=dict(rules),
        same=own is None,
        decision=about if own is None else own.computed or later,
        earlier_divergence=f"{earlier.actuator} at tick {earlier.tick}" if earlier is not None else "",
    )
