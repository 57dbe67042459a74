"""What a log has to teach a prior: of every outcome that was scored, what was seen, what was done and how it went."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from oven_controller.events import Event
from oven_controller.mesh.needs import change
from oven_controller.messages import BallotOpened, Decision, Outcome, Receipt, RunStarted, Vote

SYMPTOM = "symptom:"
"""Evidence of a vote that names a node of the graph."""


def reports(run: str, events: Iterable[Event]) -> list[dict[str, Any]]:
    """One `OutcomeReport` an outcome, as plain values, in the log's order. Changes that were carried out at one tick
    are one, since nobody can tell their effects apart. Success is the proposers' own in the mesh's `Outcome`: its mean.

    An outcome that was not scored, a withheld decision, and a change that nobody gave a symptom for teach nothing.
    """
    found: list[dict[str, Any]] = []
    decisions: dict[str, Decision] = {}
    seen: dict[str, tuple[str, ...]] = {}  # ballot → symptoms that its proposals named
    open_on: dict[str, str] = {}  # actuator → its ballot
    carried_out: dict[int, list[Decision]] = {}  # tick of the receipt → what was applied
    proposed: dict[str, tuple[str, ...]] = {}  # actuator → symptoms of the newest proposal, which may open a ballot
    phase = ""
    for event in events:
        body = event.body
        if isinstance(body, RunStarted):
            phase = "grpo" if any(metric.name == "reward" for metric in body.metrics) else "pretrain"
        elif isinstance(body, Vote) and body.stance == "propose":
            named = tuple(entry.removeprefix(SYMPTOM) for entry in body.evidence if entry.startswith(SYMPTOM))
            proposed[body.actuator] = named
            if ballot := open_on.get(body.actuator):
                seen[ballot] = (*seen[ballot], *named)
        elif isinstance(body, BallotOpened):
            open_on[body.actuator] = body.id
            seen[body.id] = proposed.get(body.actuator, ())
        elif isinstance(body, Decision):
            decisions[body.id] = body
            if open_on.get(body.actuator) == body.ballot:
                del open_on[body.actuator]
        elif isinstance(body, Receipt) and body.status == "applied" and body.decision_id in decisions:
            carried_out.setdefault(body.tick, []).append(decisions[body.decision_id])
        elif isinstance(body, Outcome) and body.scored and not body.withheld:
            together = carried_out.get(body.from_tick, [])
            symptoms = dict.fromkeys(id_ for made in together for id_ in seen.get(made.ballot, ()))
            success = [line.success for line in body.lines if line.stance == "propose"]
            if together and symptoms and success:
                found.append(
                    {
                        "type": "OutcomeReport",
                        "id": _id(run, event),
                        "changes": _spelt(together),
                        "symptoms": [{"id": id_} for id_ in symptoms],
                        "success": fmean(success),
                        "phase": phase,
                    }
                )
    return found


def _spelt(together: Sequence[Decision]) -> list[str]:
    return list(dict.fromkeys(change(made.actuator, made.before, made.value) for made in together))


def _id(run: str, outcome: Event) -> str:
    """Runs of one seed are called alike whatever befell them, so their outcomes are told apart by what they say."""
    return f"{run}-{hashlib.blake2b(outcome.data, digest_size=8).hexdigest()}"
