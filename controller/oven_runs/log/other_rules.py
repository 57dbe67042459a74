"""A logged decision under other rules. Open loop (oven_runs.log.counterfactual): an earlier divergence, which the
answer names, makes it less certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_core.protocol.rules import Rules
from oven_runs.log.counterfactual import OpenLoop, decision_text

MORE_TICKS: Final = 100
"""Ticks after the decision in which other rules may still decide on its actuator, such as those with a longer
window."""


class OtherRuling(BaseModel):
    """The decision under other rules."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    rules: dict[str, Any] = Field(description="the rules that replace the run's")
    same: bool = Field(description="whether verdict, value and ticks are the same")
    decision: Decision | None = Field(
        description="the decision at that tick, else the next one on this actuator; null: none"
    )
    earlier_divergence: str = Field(
        description="the first earlier decision that would differ, after which the log is that of a different run; "
        "empty: none"
    )

    def lines(self) -> list[str]:
        """Return the answer as lines for people."""
        decided_by = ", ".join(f"rules.{name} = {value}" for name, value in self.rules.items())
        what = "the same" if self.same else decision_text(self.decision)
        out = [f"with {decided_by}: {what}"]
        if self.earlier_divergence:
            out.append(f"  open loop: {self.earlier_divergence} would have come out otherwise before it")
        return out


class OtherRules:
    """Feed it the log's events in order, until it is `done`."""

    def __init__(self, run: str, about: Decision, changes: Mapping[str, Any], rules: Callable[[Rules], Rules]) -> None:
        """`changes`: the other rules; `rules` applies them to the run's."""
        self._loop = OpenLoop(run, rules)
        self._about, self._changes = about, dict(changes)

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self._loop.take(event)

    @property
    def done(self) -> bool:
        """Whether later events cannot change the answer."""
        return self._loop.tick > self._about.tick and (
            self._next() is not None or self._loop.tick > self._about.tick + MORE_TICKS
        )

    def _next(self) -> Decision | None:
        decisions = (d for d in self._loop.computed if d.actuator == self._about.actuator)
        return next((d for d in decisions if d.tick >= self._about.tick), None)

    def answer(self) -> OtherRuling:
        """Return the decision under the other rules."""
        divergences = self._loop.divergences()
        own = next((d for d in divergences if d.logged is not None and d.logged.id == self._about.id), None)
        earlier = next((d for d in divergences if d.tick < self._about.tick), None)
        return OtherRuling(
            rules=self._changes,
            same=own is None,
            decision=self._about if own is None else own.computed or self._next(),
            earlier_divergence=f"{earlier.actuator} at tick {earlier.tick}" if earlier is not None else "",
        )
