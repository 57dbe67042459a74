"""Several plans for what an agent saw, of which one is said: the knowledge graph's best, or the agent's own first.

An agent sees symptoms. One symptom has several causes, and each cause another remedy, so that the gauges alone often
leave more than one plan standing; which of them is most likely to help is what the graph is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oven_controller.protocol.messages import AgentStatus, RunStarted, Vote
from oven_controller.protocol.requests import DiagnoseRequest, Diagnosis, EvidencePath, Phase

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
    metrics = tuple(metric.name for metric in run.metrics)
    return DiagnoseRequest.model_validate(
        {
            "phase": phase(run),
            "symptoms": [{"id": id_, "severity": severity} for id_, severity in said.symptoms.items()],
            "actuators": tuple(spec.name for spec in run.actuators),
            "metrics": metrics,
            "held_out": any(metric.held_out for metric in run.metrics),
            "k": REMEDIES,
        }
    )


def phase(run: RunStarted) -> Phase:
    """Which kind of training it is, as the knowledge graph distinguishes them."""
    return "grpo" if any(metric.name == "reward" for metric in run.metrics) else ""


def chosen(said: Alternatives, diagnosis: Diagnosis | None) -> tuple[Plan, tuple[EvidencePath, ...]]:
    """The plan whose remedy has the best score, with the paths that speak for it. Of equal ones, and where the graph is
    away or knows none of them, the agent's own first. A remedy that needs what the run lacks is not a candidate."""
    known = {remedy.id: remedy for remedy in (diagnosis.remedies if diagnosis else ()) if not remedy.unmet}
    ranked = [plan for plan in said.plans if plan.remedy in known]
    if not ranked:
        return said.plans[0], ()
    best = max(ranked, key=lambda plan: known[plan.remedy].score)  # the first of equals
    return best, known[best.remedy].paths


def spoken(said: Sequence[Vote | AgentStatus | Plan | Alternatives]) -> list[Vote | AgentStatus]:
    """`said` as it goes out where no graph is asked."""
    flat: list[Vote | AgentStatus] = []
    for message in said:
        if isinstance(message, Alternatives):
            flat.extend(message.plans[0].votes)
        elif isinstance(message, Plan):
            flat.extend(message.votes)
        else:
            flat.append(message)
    return flat
