"""Other rules to compare a decision with: one change each of the run's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oven_core.protocol.messages import Decision
from oven_core.protocol.rules import Rules


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of rules."""

    words: str
    changes: dict[str, Any]


def variants(rules: Rules, decision: Decision) -> list[Variant]:
    """Return the variants that differ from `rules` and can matter for this decision."""
    every = [
        Variant("any one agent is enough", {"agreeing": 1, "newcomers": "full"}),
        Variant("no agent is enough alone", {"specialist_confidence": 1.0, "agreeing": max(2, rules.agreeing)}),
        Variant("a weaker objection is a veto", {"veto_confidence": min(0.4, rules.veto_confidence)}),
        Variant("no vetoes", {"veto_confidence": 1.0}),
        Variant("a bare majority decides", {"majority": 0.501}),
        Variant("nine tenths must be for it", {"majority": 0.9}),
        Variant("no cool-down between changes", {"cooldown_ticks": 0}),
        Variant("twice the window to vote in", {"window_ticks": min(1000, 2 * rules.window_ticks)}),
    ]
    if decision.verdict == "advised" or rules.autonomy_for(decision.actuator) != "auto":
        every.append(
            Variant("without asking a person", {"autonomy": "auto", "autonomy_of": {decision.actuator: "auto"}})
        )
    now = rules.model_dump()
    return [variant for variant in every if any(now[name] != value for name, value in variant.changes.items())]
