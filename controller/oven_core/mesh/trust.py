"""Trust in agents, per actuator. Settings and operators grant trust, and good outcomes earn it.

A grant may also let an agent decide alone: then its proposal needs no second kind of evidence (oven_core.mesh.quorum).

An agent without a grant is a newcomer. Its votes are in the tally without weight. They cannot pass, veto or split a
ballot, or complete a quorum. A change that only newcomers propose is advised, so that a person can try it. An agent
earns trust with an actuator by `rules.trusted_after` good outcomes of ballots that it opened and that its own proposal
carried. For a newcomer, these are changes that a person approved and that no trusted agent proposed. So an agent earns
nothing by a ballot that it opens just before a trusted agent carries it. Clear harm revokes earned trust. An agent that
is charged with it in full (oven_core.mesh.harm) no longer decides alone on any actuator, until an operator
allows it again. It keeps the trust that was granted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from oven_core.protocol.rules import ALL, Rules

Grant: TypeAlias = Literal["none", "trusted", "alone"]
"""An agent's rights on an actuator, as granted by an operator or the rules. `alone` includes trust."""


@dataclass(frozen=True, slots=True)
class Standing:
    """An agent's reputation and rights on one actuator when the ballot closes, which decide how its vote counts."""

    reputation: float = 1.0
    shadow: bool = False
    newcomer: bool = False
    decides_alone: bool = False


@dataclass
class Trust:
    """The trust in each agent. Operators' decisions outrank the rules and earned trust."""

    rules: Rules = field(default_factory=Rules)
    _by_operators: dict[tuple[str, str], Grant] = field(default_factory=dict)
    """(agent, actuator or ALL) → the newest decision of an operator."""
    _good_outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(agent, actuator) → number of good outcomes of ballots that the agent opened and carried."""
    _charged: set[str] = field(default_factory=set)
    """Agents that were charged in full with clear harm, so that `rules.alone` no longer lets them decide alone."""

    def set(self, agent: str, actuators: Iterable[str], grant: Grant) -> None:
        """Record an operator's decision. For no or ALL `actuators`, it replaces all earlier decisions on the agent."""
        names = set(actuators) or {ALL}
        if ALL in names:
            self._by_operators = {key: value for key, value in self._by_operators.items() if key[0] != agent}
        for actuator in names:
            self._by_operators[agent, actuator] = grant
        if grant == "none":
            self.revoke_earned(agent, names)

    def add_good_outcome(self, agent: str, actuator: str) -> None:
        """Count a good outcome of a ballot that the agent opened and carried."""
        self._good_outcomes[agent, actuator] += 1

    def revoke_earned(self, agent: str, actuators: Iterable[str] = (ALL,)) -> None:
        """Forget the agent's good outcomes on these actuators."""
        names = set(actuators)
        for name, actuator in list(self._good_outcomes):
            if name == agent and (ALL in names or actuator in names):
                del self._good_outcomes[name, actuator]

    def add_full_charge(self, agent: str) -> None:
        """End the agent's right to decide alone, because it was charged in full with clear harm. It stays trusted."""
        self._charged.add(agent)
        for key, grant in self._by_operators.items():
            if key[0] == agent and grant == "alone":
                self._by_operators[key] = "trusted"

    def is_trusted(self, agent: str, actuator: str) -> bool:
        """Return whether the agent's votes on this actuator can decide and veto."""
        grant = self._grant(agent, actuator)
        return grant != "none" if grant else self._good_outcomes[agent, actuator] >= self.rules.trusted_after

    def decides_alone(self, agent: str, actuator: str) -> bool:
        """Return whether the agent's proposal alone is a quorum, by a grant that no full charge has ended."""
        return self._grant(agent, actuator) == "alone"

    def _grant(self, agent: str, actuator: str) -> Grant | None:
        """Return the decision of an operator, or that of the rules if there is none, or None without either."""
        for key in ((agent, actuator), (agent, ALL)):
            if key in self._by_operators:
                return self._by_operators[key]
        if not {actuator, ALL}.isdisjoint(self.rules.alone.get(agent, ())):
            return "trusted" if agent in self._charged else "alone"
        if self.rules.newcomers == "full" or not {actuator, ALL}.isdisjoint(self.rules.trusted.get(agent, ())):
            return "trusted"
        return None

    def grants(self, agent: str) -> tuple[str, ...]:
        """Return the actuators in the agent's grants, sorted, or only `ALL` if it has a grant for all of them."""
        grants = {actuator: grant for (name, actuator), grant in self._by_operators.items() if name == agent}
        by_rules = (*self.rules.trusted.get(agent, ()), *self.rules.alone.get(agent, ()))
        if grants.get(ALL) == "none":
            by_rules = ()
        granted = {actuator for actuator in by_rules if grants.get(actuator) != "none"}
        granted |= {actuator for actuator, grant in grants.items() if grant != "none"}
        return (ALL,) if ALL in granted else tuple(sorted(granted))

    def good_outcomes(self, agent: str) -> dict[str, int]:
        """Return the number of good outcomes of ballots that the agent opened and carried, by actuator."""
        counts = sorted(self._good_outcomes.items())
        return {actuator: count for (name, actuator), count in counts if name == agent and count}
