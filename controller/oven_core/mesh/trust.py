"""Trust in agents: whose vote counts on which actuator, by settings, by operators or by outcomes.

An agent that no one granted anything is a newcomer. Its votes are in the tally without weight: they carry no ballot,
veto none and split none; one that agrees with a trusted agent completes a quorum. What newcomers alone are for is
advised, so that a person can try it. After `rules.trusted_after` good outcomes of ballots that it opened itself on an
actuator, an agent is trusted there as if it had been granted; agreeing with others earns reputation and no trust. Clear
harm takes back what was earned (oven_core.mesh.harm).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from oven_core.protocol.rules import ALL, Rules


@dataclass(frozen=True, slots=True)
class Standing:
    """What an agent's vote on one actuator counts for when the ballot closes."""

    reputation: float = 1.0
    shadow: bool = False
    newcomer: bool = False
    specialist: bool = False


@dataclass
class Trust:
    """What operators said, over what the rules grant and outcomes earned. Part of the mesh's state."""

    rules: Rules = field(default_factory=Rules)
    _words: dict[tuple[str, str], bool] = field(default_factory=dict)
    """(agent, actuator or ALL) → an operator's last word on it."""
    _earned: Counter[tuple[str, str]] = field(default_factory=Counter)

    def say(self, agent: str, actuators: Iterable[str], trusted: bool) -> None:
        """An operator's word; none named is every actuator. One on all replaces those on single ones."""
        named = set(actuators) or {ALL}
        for key in [key for key in self._words if key[0] == agent and ALL in named]:
            del self._words[key]
        for actuator in named:
            self._words[agent, actuator] = trusted
        if not trusted:
            self.forget(agent, named)

    def earn(self, agent: str, actuator: str) -> None:
        """One good outcome of a ballot that it opened."""
        self._earned[agent, actuator] += 1

    def forget(self, agent: str, actuators: Iterable[str] = (ALL,)) -> None:
        """What outcomes earned it there counts no more."""
        named = set(actuators)
        for key in [key for key in self._earned if key[0] == agent and (ALL in named or key[1] in named)]:
            del self._earned[key]

    def holds(self, agent: str, actuator: str) -> bool:
        """Whether the agent's votes on this actuator carry and veto."""
        for key in ((agent, actuator), (agent, ALL)):
            if key in self._words:
                return self._words[key]
        granted = self.rules.trusted.get(agent, ())
        if self.rules.newcomers == "full" or actuator in granted or ALL in granted:
            return True
        return self._earned[agent, actuator] >= self.rules.trusted_after

    def specialist(self, agent: str, actuator: str, declared: Iterable[str]) -> bool:
        """Whether it alone, sure enough, is a quorum there. A grant that names the actuator makes it one; where trust
        comes from elsewhere, the agent's own declaration does."""
        if not self.holds(agent, actuator):
            return False
        named = self._words.get((agent, actuator), False) or actuator in self.rules.trusted.get(agent, ())
        return named or actuator in declared

    def grants(self, agent: str) -> tuple[str, ...]:
        """The actuators that its grants name, sorted; `ALL` alone where they name every one."""
        words = {actuator: word for (name, actuator), word in self._words.items() if name == agent}
        granted = () if words.get(ALL) is False else self.rules.trusted.get(agent, ())
        found = {actuator for actuator in granted if words.get(actuator, True)}
        found |= {actuator for actuator, word in words.items() if word}
        return (ALL,) if ALL in found else tuple(sorted(found))

    def earned(self, agent: str) -> dict[str, int]:
        """Actuator → good outcomes of ballots that it opened."""
        return {actuator: count for (name, actuator), count in sorted(self._earned.items()) if name == agent and count}
