"""Several plans for what an agent saw, of which one is said: the knowledge graph's best, or the agent's own first.

An agent sees symptoms. One symptom has several causes, and each cause another remedy, so that the gauges alone often
leave more than one plan standing; which of them is most likely to help is what the graph is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oven_agents.sdk.topic_shares import TopicShares
from oven_core.protocol.alerts import Alert
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, EvidencePath, Phase
from oven_core.protocol.messages import AgentStatus, RunStarted, Vote

SYMPTOM = "symptom:"
"""Evidence "symptom:loss_spike" names a node of the graph."""
REMEDIES = 50
"""As many as a diagnosis may hold: a plan that is left out of a short list would look like one that is not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Votes that are cast, and adopted, all together or not at all, in the order in which they have to be carried
    out."""

    remedy: str
    """The node of the graph that it is an instance of, e.g. "rollback_and_cut"."""
    votes: tuple[Vote, ...]

    @classmethod
    def of(cls, remedy: str, votes: Sequence[Vote]) -> Plan:
        """With each vote saying what it belongs to, so that the mesh adopts all of them or none."""
        names = tuple(vote.actuator for vote in votes)
        return cls(remedy, tuple(vote.model_copy(update={"plan": names if len(names) > 1 else ()}) for vote in votes))


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Several plans for what was seen, of which one is said."""

    plans: tuple[Plan, ...]
    """In the agent's own order of preference, each with the agent's own confidence in its votes; never empty."""
    symptoms: Mapping[str, float]
    """Node of the graph → severity, 0 to 1; never empty."""


def offer(plans: Sequence[Plan], symptoms: Mapping[str, float]) -> Alternatives | None:
    """Those that consist of something, each vote with the symptoms in its evidence. None where there is no plan."""
    named = tuple(SYMPTOM + id_ for id_ in symptoms)
    found = [
        Plan.of(plan.remedy, [vote.model_copy(update={"evidence": (*vote.evidence, *named)}) for vote in plan.votes])
        for plan in plans
        if plan.votes
    ]
    return Alternatives(tuple(found), dict(symptoms)) if found else None


def enquiry(said: Alternatives, run: RunStarted) -> DiagnoseRequest:
    """What to ask the graph: what was seen, how strongly, and what the run can do."""
    return DiagnoseRequest.model_validate(
        {
            "phase": phase(run),
            "symptoms": [{"id": id_, "severity": severity} for id_, severity in said.symptoms.items()],
            "actuators": tuple(spec.name for spec in run.actuators),
            "metrics": tuple(metric.name for metric in run.metrics),
            "held_out": any(metric.held_out for metric in run.metrics),
            "k": REMEDIES,
        }
    )


def phase(run: RunStarted) -> Phase:
    """Which kind of training it is, as the knowledge graph distinguishes them."""
    return "grpo" if any(metric.name == "reward" for metric in run.metrics) else ""


def ordered(said: Alternatives, diagnosis: Diagnosis | None) -> list[Plan]:
    """The plans, the best first: by the score of their remedies, of equal ones the agent's own first, and after them
    what the graph does not know; where it is away or knows none of them, as the agent has them. A remedy that needs
    what the run lacks is not a candidate, except for the agent's own first where the graph has none."""
    remedies = {remedy.id: remedy for remedy in (diagnosis.remedies if diagnosis else ())}
    known = [plan for plan in said.plans if plan.remedy in remedies and not remedies[plan.remedy].unmet]
    known.sort(key=lambda plan: -remedies[plan.remedy].score)
    first = known or [said.plans[0]]
    return [*first, *(plan for plan in said.plans if plan not in first and plan.remedy not in remedies)]


def chosen(said: Alternatives, diagnosis: Diagnosis | None) -> tuple[Plan, tuple[EvidencePath, ...]]:
    """The first of the plans in their order, with the paths that speak for it."""
    best = ordered(said, diagnosis)[0]
    found = (remedy for remedy in (diagnosis.remedies if diagnosis else ()) if not remedy.unmet)
    return best, next((remedy.paths for remedy in found if remedy.id == best.remedy), ())


def spoken(
    said: Sequence[Vote | AgentStatus | Alert | Plan | Alternatives | TopicShares],
) -> list[Vote | AgentStatus | Alert]:
    """`said` as it goes out where no graph is asked."""
    flat: list[Vote | AgentStatus | Alert] = []
    for message in said:
        if isinstance(message, Alternatives):
            flat.extend(message.plans[0].votes)
        elif isinstance(message, Plan):
            flat.extend(message.votes)
        elif isinstance(message, TopicShares):
            flat.extend(vote for vote in (message.decided(None),) if vote is not None)
        else:
            flat.append(message)
    return flat
