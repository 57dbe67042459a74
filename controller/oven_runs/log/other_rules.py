"""What other rules would have made of one decision. Open loop (oven_runs.log.counterfactual), so that an earlier
divergence, which is named, makes the answer less sure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_core.protocol.rules import Rules
from oven_runs.log.counterfactual import OpenLoop, spoken

BEYOND: Final = 100
"""Ticks after the decision in which other rules may still decide on its actuator, as those with a longer window do."""


class OtherRuling(BaseModel):
    """The answer."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    rules: dict[str, Any] = Field(description="those that were put in place of the run's")
    same: bool = Field(description="whether they come to the same: verdict, value and ticks")
    decision: Decision | None = Field(
        description="what they would have decided then, else next on this actuator; null: nothing"
    )
    earlier_divergence: str = Field(
        description="the first decision before it that comes out otherwise: from there on the recording is one of "
        "another run. Empty: none"
    )

    def lines(self) -> list[str]:
        """In words."""
        decided_by = ", ".join(f"rules.{name} = {value}" for name, value in self.rules.items())
        what = "the same" if self.same else spoken(self.decision)
        out = [f"with {decided_by}: {what}"]
        if self.earlier_divergence:
            out.append(f"  open loop: {self.earlier_divergence} would have come out otherwise before it")
        return out


class OtherRules:
    """Feed it the log's events in order, until it is `done`."""

    def __init__(self, run: str, about: Decision, given: Mapping[str, Any], rules: Callable[[Rules], Rules]) -> None:
        """`given`: the rules in question; `rules` puts them in place of a recording's."""
        self._loop = OpenLoop(run, rules)
        self._about, self._given = about, dict(given)

    def feed(self, event: Event) -> None:
        """Take the next event in."""
        self._loop.take(event)

    @property
    def done(self) -> bool:
        """Whether nothing that comes later changes the answer."""
        return self._loop.tick > self._about.tick and (
            self._next() is not None or self._loop.tick > self._about.tick + BEYOND
        )

    def _next(self) -> Decision | None:
        of = (one for one in self._loop.computed if one.actuator == self._about.actuator)
        return next((one for one in of if one.tick >= self._about.tick), None)

    def answer(self) -> OtherRuling:
        """What was found."""
        parted = self._loop.divergences()
        mine = next((one for one in parted if one.logged is not None and one.logged.id == self._about.id), None)
        before = next((one for one in parted if one.tick < self._about.tick), None)
        return OtherRuling(
            rules=self._given,
            same=mine is None,
            decision=self._about if mine is None else mine.computed or self._next(),
            earlier_divergence=f"{before.actuator} at tick {before.tick}" if before is not None else "",
        )
