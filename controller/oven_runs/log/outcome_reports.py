"""Outcome reports for the knowledge graph: each scored outcome with its change and its symptoms.

Pure: the same log gives the same reports, and reading it again from any place gives the same ones again, for each is
named by its run and decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from oven_core.mesh.actuator_values import direction
from oven_core.mesh.change_requirements import spelt
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.graph_requests import OutcomeReport, Phase, Symptom
from oven_core.protocol.messages import Decision, Outcome, Receipt, RunStarted, Vote

SYMPTOM = "symptom:"
"""A vote's evidence "symptom:loss_spike" names a node of the graph."""
DECISIONS = 1024
"""Adopted decisions that may wait for their outcome; the oldest are let go."""


@dataclass(frozen=True, slots=True)
class _Done:
    """An adopted decision: its change as it is spelt, and what those who proposed it had seen."""

    id: str
    change: str
    symptoms: frozenset[str]


class OutcomeReports:
    """Hears the events of one run in the log's order.

    Changes that were carried out at one tick are one plan, since no one can tell their effects apart: what is reported
    of any of them is reported of all together, under the first one's id.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._phase: Phase = ""
        self._actions: frozenset[str] = frozenset()
        self._idle: frozenset[str] = frozenset()
        self._seen: dict[tuple[str, str], frozenset[str]] = {}
        self._done: dict[str, _Done] = {}
        self._ticks: dict[str, int] = {}

    def hear(self, event: Event) -> OutcomeReport | None:
        """The report, where this was an outcome that says something and somebody had named a symptom."""
        match event.body:
            case RunStarted() as run:
                self._phase = "grpo" if any(metric.name == "reward" for metric in run.metrics) else ""
                self._actions = frozenset(spec.name for spec in run.actuators if spec.kind == "action")
                self._idle = frozenset(spec.name for spec in run.actuators if not spec.intervenes)
            case ActuatorAnnounced(actuator=spec):
                self._actions |= {spec.name} if spec.kind == "action" else set()
                self._idle |= {spec.name} if not spec.intervenes else set()
            case Vote(stance="propose") as vote:
                named = (entry.removeprefix(SYMPTOM) for entry in vote.evidence if entry.startswith(SYMPTOM))
                self._seen[vote.actuator, event.author] = frozenset(named)
            case Decision() as decision:
                self._decided(decision)
            case Receipt(status="applied") as receipt if receipt.decision_id in self._done:
                self._ticks[receipt.decision_id] = receipt.tick
            case Outcome(scored=True) as outcome if outcome.decision_id in self._ticks:
                tick = self._ticks[outcome.decision_id]
                return self._report(outcome, [done for done in self._done.values() if self._ticks.get(done.id) == tick])
        return None

    def _decided(self, decision: Decision) -> None:
        proposers = [line.agent for line in decision.tally if line.stance == "propose" and not line.shadow]
        seen = [self._seen.get((decision.actuator, agent), frozenset()) for agent in proposers]
        for key in [key for key in self._seen if key[0] == decision.actuator]:
            del self._seen[key]
        if decision.verdict != "adopted" or decision.actuator in self._idle:
            return  # a measurement is no part of a plan
        # An action's argument is no value to go up or down from.
        action = decision.actuator in self._actions
        change = decision.actuator if action else spelt(decision.actuator, direction(decision.before, decision.value))
        self._done[decision.id] = _Done(decision.id, change, frozenset().union(*seen))
        while len(self._done) > DECISIONS:
            oldest = next(iter(self._done))
            del self._done[oldest]
            self._ticks.pop(oldest, None)

    def _report(self, outcome: Outcome, plan: Sequence[_Done]) -> OutcomeReport | None:
        symptoms = frozenset().union(*(done.symptoms for done in plan))
        proposed = any(line.stance == "propose" and not line.shadow for line in outcome.lines)
        if not plan or not symptoms or not proposed or outcome.beat is None:
            return None
        try:
            return OutcomeReport(
                id=f"{self._run}/{min(done.id for done in plan)}",
                changes=tuple(sorted({done.change for done in plan})),
                symptoms=tuple(Symptom(id=id_) for id_ in sorted(symptoms)),
                success=outcome.beat,
                phase=self._phase,
                at=outcome.tick,
            )
        except ValidationError:
            return None  # e.g. a success that is no number, or more changes at one tick than any remedy has
