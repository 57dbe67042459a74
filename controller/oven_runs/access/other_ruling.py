"""A question to a run's log: what would other rules have made of one decision?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.access.run_access import RunAccess
from oven_runs.log.other_rules import OtherRules, OtherRuling
from oven_runs.settings.resolution import with_rules


async def other_ruling(
    access: RunAccess, decision: Decision, rules: Mapping[str, Any], hear: Callable[[Event], object] = lambda _: None
) -> OtherRuling:
    """The answer for these rules in place of the run's. The log is read as far as the answer needs; `hear` is called
    with each event, and may raise to end it. Raises what reading a log raises."""
    asked = OtherRules(access.run, decision, rules, lambda logged: with_rules(logged, rules))
    async with contextlib.aclosing(access.events(exact=True)) as log:
        async for event in log:
            asked.feed(event)
            hear(event)
            if asked.done:
                break
    return asked.answer()
