"""A proposed mixture of topics that the knowledge graph may adjust by what builds on what.

The graph may know the prerequisites of a curriculum's levels. If it does not, or does not answer, each level builds on
the level before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from oven_core.protocol.graph_requests import Curriculum, CurriculumRequest
from oven_core.protocol.messages import Vote

CITED = 8
"""The most unmet prerequisites that a vote names. A vote holds 32 entries of evidence in all."""
SPARE = 1e-6
"""Added to each topic's learnability so that the sum is never 0."""


@dataclass(frozen=True, slots=True)
class TopicShares:
    """Shares proportional to what can still be learnt of each topic. A topic that waits for others gets only the
    floor."""

    vote: Vote
    """The proposal without its value and the end of its reason, which depend on the graph's answer."""
    shares: Mapping[str, float]
    """Topic → current share."""
    learnable: Mapping[str, float]
    """Topic → how much can still be learnt of it, at least 0."""
    waiting: frozenset[str]
    """Topics that wait if each level builds on the level before it."""
    floor: float
    """The smallest share of any topic."""
    first: str
    """The topic that absorbs the rounding error."""
    least: float
    """The smallest change worth proposing, as total variation from the current shares."""
    question: CurriculumRequest
    """The question for the graph, with the mastery of each topic."""

    def resolve(self, answer: Curriculum | None) -> Vote | None:
        """Return the vote, or None if it would change too little. `answer` is None if the graph did not reply."""
        if answer is None:
            known, order = False, "; each level builds on the one before: no graph answered"
        elif not answer.known:
            known, order = False, "; each level builds on the one before: the graph knows no prerequisite among them"
        else:
            known, order = True, f"; {answer.known} prerequisites are the graph's"
        unmet = answer.unmet if answer is not None and known else ()
        waiting = {short.topic for short in unmet} if known else self.waiting
        target = self._target(waiting)
        moved = sum(abs(self.shares[topic] - target[topic]) for topic in target) / 2
        if moved < self.least:
            return None
        blocked = [topic for topic in self.shares if topic in waiting]
        why = (
            f"{self.vote.rationale}: move {moved:.0%} of the mixture towards what can still be learnt"
            f"{f'; {blocked[0]} waits for what comes before it' if blocked else ''}{order}"
        )
        evidence = [f"curriculum:{answer.graph[:12]}"] if answer is not None and known else []
        evidence += [f"waits: {' builds on '.join(short.path)}" for short in unmet[:CITED]]
        return self.vote.model_copy(
            update={"value": target, "rationale": why[:2000], "evidence": (*self.vote.evidence, *evidence)}
        )

    def _target(self, waiting: Collection[str]) -> dict[str, float]:
        weights = {topic: value * (topic not in waiting) + SPARE for topic, value in self.learnable.items()}
        spare, total = 1 - self.floor * len(weights), sum(weights.values())
        target = {topic: round(self.floor + spare * weight / total, 3) for topic, weight in weights.items()}
        target[self.first] += 1 - sum(target.values())
        return target
