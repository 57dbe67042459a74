"""A run made up of characters whose intentions are known, through the real mesh: what its reputations make of them.

The learner is a level that each applied change moves by `STEP` for better or worse, measured at every tick with noise.
Everybody has its own knob and turns to propose; no one else checks it, unless it is honest: so what stops a
character here is its reputation alone. Pure, and the same for the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from oven_agents.runtime.closed_loop import MemoryLog
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    Message,
    MetricSpec,
    Observation,
    Outcome,
    Receipt,
    RunStarted,
    Vote,
)
from oven_core.protocol.rules import Rules

RUN, METRIC = "swarm", "reward"
STEP, NOISE, HORIZON = 0.1, 0.05, 8
"""What a change does to the level, the standard deviation of one measurement of it, and ticks to each outcome."""


@dataclass(frozen=True, slots=True)
class Character:
    """`helps` says what its n-th change does: 1 for better, −1 for worse, 0 nothing. `ally` backs all that it proposes,
    and one that `backs_honest` agents says `for` to all of theirs."""

    name: str
    confidence: float
    helps: Callable[[int, Random], int]
    ally: str = ""
    backs_honest: bool = False
    honest: bool = False


@dataclass(slots=True)
class Turn:
    """The outcome of one proposal, and the proposer's reputation when the dust had settled."""

    agent: str
    adopted: bool
    outcome: Outcome | None
    reputations: dict[str, float] = field(default_factory=dict)


class Swarm:
    """One run. `turn` lets a character propose and continues until the outcome is there, or the rejection; what one
    that has become a shadow proposes opens no ballot. Knobs are turned to and fro by design, so none is left to a
    person; and outcomes alone move reputations, so that their bound is what shows."""

    def __init__(
        self, characters: Sequence[Character], seed: int, rules: Rules | None = None, drift: float = 0.0
    ) -> None:
        self.characters = {character.name: character for character in characters}
        self.log = MemoryLog(RUN)
        self.mesh = self.log.mesh
        self._rng = Random(f"swarm {seed}")
        self._drift = drift  # how the level moves at each tick, whatever anybody does
        self._level, self._n, self._proposed = 0.0, -1, dict.fromkeys(self.characters, 0)
        self._decision = ""  # the newest
        given = (rules or Rules()).trusting(self.characters)
        free = {
            "cooldown_ticks": 0,
            "max_interventions": 10**6,
            "window_ticks": 1,
            "outcome_ticks": HORIZON,
            "reversals": 10**6,
            "harm_charge": 0.0,
            "least_confidence": 0.0,
        }
        knobs = tuple(ActuatorSpec(name=f"knob.{name}", kind="scalar", value=1.0) for name in self.characters)
        self._put(
            "run",
            RunStarted(
                **self._learner(),
                recipe="swarm",
                actuators=knobs,
                metrics=(MetricSpec(name=METRIC, better="up"),),
                rules=given.model_copy(update=free),
            ),
        )
        for name in self.characters:
            knob = (f"knob.{name}",)
            self._put(f"agent.{name}", AgentStatus(state="joined", moves=knob, speciality=knob))
        self._ticks(HORIZON)

    def turn(self, name: str) -> Turn:
        character, knob = self.characters[name], f"knob.{name}"
        effect = character.helps(self._proposed[name], self._rng)
        self._proposed[name] += 1
        value = 3.0 - float(str(self.mesh.state.effective[knob]))  # 1 and 2, to and fro
        self._vote(character, "propose", knob, value)
        for other in self.characters.values():
            if other.name == character.ally or (other.backs_honest and character.honest):
                self._vote(other, "for", knob)
            elif other.honest and character.honest and other.name != name:  # its own look, right as often as its own
                self._vote(other, "for" if effect == other.helps(0, self._rng) else "against", knob)
        if self.mesh.state.shadowed(name):
            self._ticks(HORIZON)
            return Turn(name, False, None, dict(self.mesh.state.reputations))
        decision = self._decided(knob)
        if decision.verdict == "adopted":
            self._level += STEP * effect
            self._put("receipt", self._applied(decision))
        outcome = self._outcome() if decision.verdict != "rejected" else None
        return Turn(name, decision.verdict == "adopted", outcome, dict(self.mesh.state.reputations))

    def _outcome(self) -> Outcome:
        for _ in range(2 * HORIZON):
            for said in self._ticks(1):
                if isinstance(said, Outcome):
                    return said
        raise AssertionError(f"decision {self._decision} has no outcome after {2 * HORIZON} ticks")

    def _applied(self, decision: Decision) -> Receipt:
        return Receipt(
            **self._learner(),
            decision_id=decision.id,
            actuator=decision.actuator,
            status="applied",
            before=decision.before,
            after=decision.value,
            tick=self.mesh.state.tick,
            step=0,
        )

    def _vote(self, who: Character, stance: str, knob: str, value: float | None = None) -> None:
        promise = {"target": METRIC, "expected_change": STEP, "horizon": HORIZON} if stance == "propose" else {}
        vote = {"actuator": knob, "stance": stance, "value": value, "tick": 0, "confidence": who.confidence}
        self._put(f"vote.{who.name}", Vote.model_validate(vote | promise))

    def _decided(self, knob: str) -> Decision:
        """A ballot that still waits for somebody closes at the next tick."""
        for said in [entry.body for entry in self.log.events[-12:]] + self._ticks(1):
            if isinstance(said, Decision) and said.actuator == knob and said.id > self._decision:
                self._decision = said.id
                return said
        raise AssertionError(f"no decision on {knob}")

    def _ticks(self, count: int) -> list[Message]:
        said: list[Message] = []
        for _ in range(count):
            tick = self.mesh.state.tick + 1
            self._level += self._drift
            metrics = {METRIC: self._level + self._rng.gauss(0, NOISE)}
            observation = Observation(**self._learner(), tick=tick, step=tick, progress=0.0, metrics=metrics)
            said += self._put("observation", observation)
        return said

    def _learner(self) -> dict[str, int]:
        self._n += 1
        return {"incarnation": 1, "n": self._n}

    def _put(self, subject: str, body: Message) -> list[Message]:
        """What the mesh makes of it."""
        _, *outputs = self.log.append(f"{self.log.subjects.base}.{subject}", body)
        return [output.body for output in outputs if isinstance(output.body, Message)]
