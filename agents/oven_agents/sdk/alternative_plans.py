"""Several plans for the same symptoms, of which one is published: the knowledge graph's choice, or the agent's first.

An agent sees symptoms. A symptom has several causes, and each cause has its own remedy, so metrics alone often leave
more than one plan open. The graph says which of them is most likely to help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_agents.sdk.topic_shares import TopicShares
from oven_agents.sdk.window import Window
from oven_core.protocol.alerts import Alert
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, EvidencePath, Phase
from oven_core.protocol.messages import AgentStatus, RunStarted, Value, Vote

SYMPTOM = "symptom:"
"""The evidence entry "symptom:loss_spike" names a node of the graph."""
REMEDIES = 50
"""The most that a diagnosis may hold. In a shorter list, an omitted remedy would look like an unknown one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Votes that are adopted all together or not at all, in the order in which they must be applied."""

    remedy: str
    """The remedy's node in the graph, e.g. "rollback_and_cut"."""
    votes: tuple[Vote, ...]

    @classmethod
    def of_votes(cls, remedy: str, votes: Sequence[Vote]) -> Plan:
        """Make a plan in which each vote lists all actuators of the plan, so that the mesh adopts all or none."""
        names = tuple(vote.actuator for vote in votes)
        return cls(remedy, tuple(vote.model_copy(update={"plan": names if len(names) > 1 else ()}) for vote in votes))

    @classmethod
    def of_changes(cls, window: Window, remedy: str, changes: Mapping[str, Value], **vote: Any) -> Plan:
        """Make a plan that sets each actuator to its value. `vote`: the other arguments of `Window.propose`."""
        return cls.of_votes(remedy, [window.propose(name, value, **vote) for name, value in changes.items()])


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Several plans for the same symptoms, of which one is published."""

    plans: tuple[Plan, ...]
    """In the agent's order of preference, each with the agent's confidence in its votes. Never empty."""
    symptoms: Mapping[str, float]
    """Graph node → severity, from 0 to 1. Never empty."""


UnsentMessage = Vote | AgentStatus | Alert | Plan | Alternatives | TopicShares
"""A message of an agent before the graph was asked about it."""


def offer(plans: Sequence[Plan], symptoms: Mapping[str, float]) -> Alternatives | None:
    """Return the plans that have votes, with the symptoms added to each vote's evidence, or None if there are none."""
    evidence = tuple(SYMPTOM + node for node in symptoms)
    alternatives = tuple(
        Plan.of_votes(
            plan.remedy, [vote.model_copy(update={"evidence": (*vote.evidence, *evidence)}) for vote in plan.votes]
        )
        for plan in plans
        if plan.votes
    )
    return Alternatives(alternatives, dict(symptoms)) if alternatives else None


def diagnose_request(alternatives: Alternatives, run: RunStarted) -> DiagnoseRequest:
    """Return the question for the graph: the symptoms, their severity, and what the run can do."""
    return DiagnoseRequest.model_validate(
        {
            "phase": phase(run),
            "symptoms": [{"id": node, "severity": severity} for node, severity in alternatives.symptoms.items()],
            "actuators": tuple(spec.name for spec in run.actuators),
            "metrics": tuple(metric.name for metric in run.metrics),
            "held_out": any(metric.held_out for metric in run.metrics),
            "k": REMEDIES,
        }
    )


def phase(run: RunStarted) -> Phase:
    """Return the kind of training as the graph distinguishes it: "grpo" if the run publishes a reward."""
    return "grpo" if any(metric.name == "reward" for metric in run.metrics) else ""


def ranked(alternatives: Alternatives, diagnosis: Diagnosis | None) -> list[Plan]:
    """Return the plans, best first.

    Plans are ranked by the graph's score of their remedies; ties keep the agent's order, and plans that the graph does
    not know come last. Without a diagnosis, or if the graph knows none of them, the agent's order stands. A remedy that
    the run cannot carry out is dropped, except the agent's first plan if the graph has no candidate.
    """
    remedies = {remedy.id: remedy for remedy in (diagnosis.remedies if diagnosis else ())}
    feasible = [plan for plan in alternatives.plans if plan.remedy in remedies and not remedies[plan.remedy].unmet]
    feasible.sort(key=lambda plan: -remedies[plan.remedy].score)
    leading = feasible or [alternatives.plans[0]]
    return [*leading, *(plan for plan in alternatives.plans if plan not in leading and plan.remedy not in remedies)]


def best_plan(alternatives: Alternatives, diagnosis: Diagnosis | None) -> tuple[Plan, tuple[EvidencePath, ...]]:
    """Return the highest-ranked plan, and the graph's paths that support it."""
    plan = ranked(alternatives, diagnosis)[0]
    feasible = (remedy for remedy in (diagnosis.remedies if diagnosis else ()) if not remedy.unmet)
    return plan, next((remedy.paths for remedy in feasible if remedy.id == plan.remedy), ())


def without_graph(messages: Sequence[UnsentMessage]) -> list[Vote | AgentStatus | Alert]:
    """Return the messages as they are published if no graph is asked."""
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
            case _:
                resolved.append(message)
    return resolved
