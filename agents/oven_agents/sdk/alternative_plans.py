"""Alternative plans for the same symptoms. The knowledge graph chooses one. Without it, the first plan is published.

An agent detects symptoms. A symptom can have several causes, and each cause has its own remedy, so metrics alone often
allow more than one plan. The graph shows which plan is most likely to help."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_agents.sdk.window import Window
from oven_core.mesh.actuator_values import clip
from oven_core.protocol.alerts import Alert
from oven_core.protocol.evidence import SYMPTOM_PREFIX, Signal
from oven_core.protocol.graph_requests import (
    Curriculum,
    CurriculumRequest,
    DiagnoseRequest,
    Diagnosis,
    EvidencePath,
    Judgement,
    Phase,
    Symptom,
)
from oven_core.protocol.messages import AgentStatus, BallotOpened, RunStarted, Value, Vote

BARRED_CONFIDENCE = 0.9
"""Confidence of the graph's vote against a change that it forbids now: a veto by default."""
MAX_OBJECTION_CONFIDENCE = 0.65
"""Maximum confidence of the graph's other votes against a change: too low for a veto by default."""
MAX_REMEDIES = 50
"""Maximum number of remedies to request. It is high because an omitted remedy would seem unknown to the graph."""
MAX_PREREQUISITES = 8
"""Maximum number of unmet prerequisites in a vote. A vote can have at most 32 entries of evidence."""
MIN_LEARNABILITY = 1e-6
"""Amount added to each topic's learnability, so that the sum is never 0."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Votes that the mesh adopts all together or not at all, in the order in which they must be applied."""

    remedy: str
    """The remedy's node in the graph, e.g. "rollback_and_cut"."""
    votes: tuple[Vote, ...]

    @classmethod
    def of_votes(cls, remedy: str, votes: Sequence[Vote]) -> Plan:
        """Create a plan in which each vote lists all actuators of the plan, so that the mesh adopts all or none."""
        names = tuple(vote.actuator for vote in votes)
        return cls(remedy, tuple(vote.model_copy(update={"plan": names if len(names) > 1 else ()}) for vote in votes))

    @classmethod
    def of_changes(cls, window: Window, remedy: str, changes: Mapping[str, Value], **kwargs: Any) -> Plan:
        """Create a plan that sets each actuator to its value. `kwargs` are passed to `Window.propose`."""
        return cls.of_votes(remedy, [window.propose(name, value, **kwargs) for name, value in changes.items()])

    @classmethod
    def of_numbers(cls, window: Window, remedy: str, changes: Mapping[str, float], *, why: str, **kwargs: Any) -> Plan:
        """Create a plan like `of_changes`, in which each vote's reason ends with the new value."""
        proposals = [
            window.propose(name, value, why=f"{why}; {name} → {value:.3g}", **kwargs) for name, value in changes.items()
        ]
        return cls.of_votes(remedy, proposals)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Several plans for the same symptoms. Only one is published."""

    plans: tuple[Plan, ...]
    """Plans in the agent's order of preference, each with the agent's confidence in its votes. Never empty."""
    symptoms: Mapping[str, float]
    """Graph node → severity, from 0 to 1. Never empty."""


@dataclass(frozen=True, slots=True)
class TopicShares:
    """A proposal for the shares of a curriculum's topics (its levels), in proportion to what can still be learnt.
    Topics that wait for their prerequisites get the minimum share."""

    vote: Vote
    """The proposal without its value and the end of its reason, which depend on the graph's answer."""
    shares: Mapping[str, float]
    """Topic → current share."""
    learnable: Mapping[str, float]
    """Topic → learnability, at least 0. Shares are in proportion to it."""
    waiting: frozenset[str]
    """Topics that have to wait if each level builds on the level before it."""
    min_share: float
    """The minimum share of any topic."""
    rounding_topic: str
    """The topic that absorbs the rounding error."""
    min_change: float
    """The minimum change for a proposal, as total variation from the current shares."""
    question: CurriculumRequest
    """The question for the graph, with the mastery of each topic."""

    def resolve(self, answer: Curriculum | None) -> Vote | None:
        """Return the vote, or None if it would change too little. `answer` is None if the graph did not reply."""
        if answer is None:
            waiting, order = self.waiting, "each level is assumed to require the one before, because no graph answered"
        elif not answer.known:
            waiting = self.waiting
            order = "each level is assumed to require the one before, because the graph knows none of them"
        else:
            waiting = frozenset(entry.topic for entry in answer.unmet)
            order = f"{answer.known} prerequisites come from the graph"
        target = self._target_shares(waiting)
        moved_share = sum(abs(self.shares[topic] - share) for topic, share in target.items()) / 2
        if moved_share < self.min_change:
            return None
        blocked = [topic for topic in self.shares if topic in waiting]
        waits = f"; {blocked[0]} waits for its prerequisites" if blocked else ""
        move = f"move {moved_share:.0%} of the mixture to levels with more to learn"
        why = f"{self.vote.rationale}: {move}{waits}; {order}"
        evidence = []
        if answer is not None and answer.known:
            evidence.append(f"curriculum:{answer.graph[:12]}")
            evidence += [f"waits: {' builds on '.join(entry.path)}" for entry in answer.unmet[:MAX_PREREQUISITES]]
        return self.vote.model_copy(
            update={"value": target, "rationale": why[:2000], "evidence": (*self.vote.evidence, *evidence)}
        )

    def _target_shares(self, waiting: Collection[str]) -> dict[str, float]:
        learnable = {topic: 0.0 if topic in waiting else gain for topic, gain in self.learnable.items()}
        weights = {topic: gain + MIN_LEARNABILITY for topic, gain in learnable.items()}
        free_share, total = 1 - self.min_share * len(weights), sum(weights.values())
        target = {topic: round(self.min_share + free_share * weight / total, 3) for topic, weight in weights.items()}
        target[self.rounding_topic] += 1 - sum(target.values())
        return target


@dataclass(frozen=True, slots=True)
class GraphReview:
    """A review of a ballot by the knowledge graph, which answers to the symptoms that the proposer names."""

    ballot: BallotOpened
    tick: int

    def resolve(self, judgement: Judgement | None, diagnosis: Diagnosis | None) -> Vote | None:
        """Return the graph's vote, or None if it has no opinion or did not reply."""
        if judgement is None or judgement.verdict == "neutral":
            return None
        is_support = judgement.verdict == "support"
        paths = judgement.supports if is_support else judgement.objections
        why = "; ".join(path.text for path in paths[:2]) or "a precondition is not met"
        if is_support and diagnosis is not None and diagnosis.causes:
            why += f" (most likely cause: {diagnosis.causes[0].id}, belief {diagnosis.causes[0].p:.2f})"
        confidence = 1 / (1 + math.exp(-abs(judgement.log_odds)))
        if judgement.verdict == "object":
            confidence = min(confidence, MAX_OBJECTION_CONFIDENCE)
        elif judgement.verdict == "barred":
            confidence = BARRED_CONFIDENCE
        return Vote(
            actuator=self.ballot.actuator, ballot=self.ballot.id, stance="for" if is_support else "against",
            tick=self.tick, confidence=confidence, rationale=clip(why, 400), evidence=(Signal("graph", ()).entry,),
        )  # fmt: skip


UnsentMessage = Vote | AgentStatus | Alert | Plan | Alternatives | TopicShares | GraphReview
"""An agent's message before the knowledge graph has been consulted."""


def offer(plans: Sequence[Plan], symptoms: Mapping[str, float]) -> Alternatives | None:
    """Return the plans that have votes as alternatives, or None if no plan has votes. The symptoms are added to the
    evidence of each vote."""
    evidence = tuple(SYMPTOM_PREFIX + node for node in symptoms)
    alternatives = tuple(
        Plan.of_votes(
            plan.remedy, [vote.model_copy(update={"evidence": (*vote.evidence, *evidence)}) for vote in plan.votes]
        )
        for plan in plans
        if plan.votes
    )
    return Alternatives(alternatives, dict(symptoms)) if alternatives else None


def diagnose_request(
    symptoms: Mapping[str, float], run: RunStarted, max_remedies: int = MAX_REMEDIES
) -> DiagnoseRequest:
    """Return the question for the graph: the symptoms with their severity, and what the run can do."""
    return DiagnoseRequest(
        phase=phase(run),
        symptoms=tuple(Symptom(id=node, severity=severity) for node, severity in symptoms.items()),
        actuators=tuple(spec.name for spec in run.actuators),
        metrics=tuple(metric.name for metric in run.metrics),
        held_out=any(metric.held_out for metric in run.metrics),
        k=max_remedies,
    )


def phase(run: RunStarted) -> Phase:
    """Return the graph's name for the kind of training: "grpo" if the run publishes a reward, otherwise empty."""
    return "grpo" if any(metric.name == "reward" for metric in run.metrics) else ""


def rank_plans(alternatives: Alternatives, diagnosis: Diagnosis | None) -> list[Plan]:
    """Return the plans, best first, ranked by the graph's scores of their remedies. Ties keep the agent's order, and
    plans that the graph does not know come last. Without a diagnosis, or if the graph knows no plan, the agent's order
    is kept. Plans with unmet requirements are dropped. If the graph knows no plan with met requirements, the agent's
    first plan comes first, even if its own requirements are unmet."""
    remedies = {remedy.id: remedy for remedy in (diagnosis.remedies if diagnosis else ())}
    feasible = [plan for plan in alternatives.plans if plan.remedy in remedies and not remedies[plan.remedy].unmet]
    feasible.sort(key=lambda plan: -remedies[plan.remedy].score)
    leading = feasible or [alternatives.plans[0]]
    return [*leading, *(plan for plan in alternatives.plans if plan not in leading and plan.remedy not in remedies)]


def best_plan(alternatives: Alternatives, diagnosis: Diagnosis | None) -> tuple[Plan, tuple[EvidencePath, ...]]:
    """Return the highest-ranked plan, and the graph's paths that support it."""
    plan = rank_plans(alternatives, diagnosis)[0]
    feasible = (remedy for remedy in (diagnosis.remedies if diagnosis else ()) if not remedy.unmet)
    return plan, next((remedy.paths for remedy in feasible if remedy.id == plan.remedy), ())


def without_graph(messages: Sequence[UnsentMessage]) -> list[Vote | AgentStatus | Alert]:
    """Return the messages to publish when there is no knowledge graph."""
    resolved: list[Vote | AgentStatus | Alert] = []
    for message in messages:
        match message:
            case Alternatives():
                resolved.extend(message.plans[0].votes)
            case Plan():
                resolved.extend(message.votes)
            case TopicShares():
                if (vote := message.resolve(None)) is not None:
                    resolved.append(vote)
            case GraphReview():
                pass  # the graph abstains
            case _:
                resolved.append(message)
    return resolved
