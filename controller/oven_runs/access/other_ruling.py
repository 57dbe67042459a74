"""Read what a log says about its decisions, and decide one of them again under other rules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.access.run_access import RunAccess
from oven_runs.log.explanation import Explanation, Explanations
from oven_runs.log.other_rules import OtherRules, OtherRuling
from oven_runs.settings.resolution import with_rules


async def explanations(access: RunAccess, hear: Callable[[Event], object] = lambda _: None) -> Explanations:
    """Read a run's decisions. `hear` gets each event, and may raise to stop. Raises the log reader's errors."""
    log = Explanations()
    async for event in access.events():
        log.feed(event)
        hear(event)
    return log


async def explained(
    access: RunAccess, name: str, rules: Mapping[str, Any], hear: Callable[[Event], object] = lambda _: None
) -> tuple[Explanation, OtherRuling | None]:
    """Return one decision, found as by `Explanations.find`, and what other rules, if any, would have decided."""
    explanation = (await explanations(access, hear)).find(name)
    return explanation, await other_ruling(access, explanation.decision, rules, hear) if rules else None


async def other_ruling(
    access: RunAccess, decision: Decision, rules: Mapping[str, Any], hear: Callable[[Event], object] = lambda _: None
) -> OtherRuling:
    """Return the decision that these rules would have made in place of the run's.

    Reads the log only as far as needed. `hear` gets each event, and may raise to stop. Raises the log reader's errors.
    """
    ruling = OtherRules(access.run, decision, rules, lambda logged: with_rules(logged, rules))
    async with contextlib.aclosing(access.events(exact=True)) as log:
        async for event in log:
            ruling.feed(event)
            hear(event)
            if ruling.done:
                break
    return ruling.answer()
