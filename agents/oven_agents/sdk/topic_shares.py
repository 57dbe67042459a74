"""A proposal of shares of topics that waits for the graph's word on what builds on what.

What a level of a curriculum builds on is knowledge, and the graph may have it. Where it has none, or does not answer,
each level builds on the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from oven_core.protocol.graph_requests import Curriculum, CurriculumRequest
from oven_core.protocol.messages import Vote

CITED = 8
"""Unmet prerequisites that a vote names at most; it holds 32 entries of evidence in all."""
SPARE = 1e-6
"""Added to each topic's learnability, so that their sum is never 0."""


@dataclass(frozen=True, slots=True)
class TopicShares:
    """Shares in proportion to what can be learnt of each topic, and no more than the floor for one that waits."""

    vote: Vote
    """The proposal; its value and the end of its reason are made when the graph was asked."""
    shares: Mapping[str, float]
    """Topic → its share now."""
    learnable: Mapping[str, float]
    """Topic → what can be learnt of it, 0 or more."""
    waiting: frozenset[str]
    """Topics that wait in the agent's own order."""
    floor: float
    """Share that each topic keeps."""
    first: str
    """The topic that gets what rounding leaves."""
    least: float
    """Total variation from the shares now below which nothing is said."""
    question: CurriculumRequest
    """How well each topic is mastered."""

    def decided(self, answer: Curriculum | None) -> Vote | None:
        """The vote; None where it would move too little. `answer`: the graph's; None where there is none."""
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
        shut = [topic for topic in self.shares if topic in waiting]
        why = (
            f"{self.vote.rationale}: move {moved:.0%} of the mixture towards what can still be learnt"
            f"{f'; {shut[0]} waits for what comes before it' if shut else ''}{order}"
        )
        evidence = [f"curriculum:{answer.graph[:12]}"] if answer is not None and known else []
        evidence += [f"waits: {' builds on '.join(short.path)}" for short in unmet[:CITED]]
        return self.vote.model_copy(
            update={"value": target, "rationale": why[:2000], "evidence": (*self.vote.evidence, *evidence)}
        )

    def _target(self, waiting: Collection[str]) -> dict[str, float]:
        left = {topic: value * (topic not in waiting) + SPARE for topic, value in self.learnable.items()}
        spare, total = 1 - self.floor * len(left), sum(left.values())
        target = {topic: round(self.floor + spare * value / total, 3) for topic, value in left.items()}
        target[self.first] += 1 - sum(target.values())
        return target
