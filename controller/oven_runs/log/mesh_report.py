"""Report of the mesh's state at a tick: settings, agents, open ballots, decisions in flight."""

from __future__ import annotations

from typing import Any

from oven_core.mesh.actuator_values import show
from oven_core.mesh.state_machine import Mesh


def report_of(mesh: Mesh) -> dict[str, Any]:
    """Return the mesh's state as JSON values."""
    state = mesh.state
    return {
        "tick": state.tick,
        "effective": dict(sorted(state.effective.items())),
        "agents": {
            name: {
                "live": agent.live,
                "last_tick": agent.last_tick,
                "cannot_fire": agent.cannot_fire,
                "reputation": state.reputations.get(name, 1.0),
                "trusted": list(state.trust.grants(name)),
                "earned": state.trust.earned(name),
            }
            for name, agent in sorted(state.agents.items())
        },
        "open_ballots": [
            {
                "id": ballot.opened.id,
                "actuator": actuator,
                "proposal": ballot.opened.proposal,
                "opened_by": ballot.opened.opened_by,
                "closes_at_tick": ballot.opened.closes_at_tick,
                "votes": {name: cast.vote.stance for name, cast in sorted(ballot.casts.items())},
            }
            for actuator, ballot in mesh.ballots.items()
        ],
        "in_flight": [
            {"id": flight.decision.id, "actuator": flight.decision.actuator, "value": flight.decision.value}
            for flight in state.flying()
        ],
        "adopted": state.adopted,
        "interventions_left": max(0, state.rules.max_interventions - state.adopted),
    }


def lines(report: dict[str, Any]) -> list[str]:
    """Return the report as lines for people."""
    out = [f"what the mesh knew at tick {report['tick']}"]
    out += [f"  {name} = {show(value)}" for name, value in report["effective"].items() if value is not None]
    for name, agent in report["agents"].items():
        life = "live" if agent["live"] else f"silent since tick {agent['last_tick']}"
        obstacle = f"; cannot fire: {agent['cannot_fire']}" if agent["cannot_fire"] else ""
        out.append(f"  agent {name}: {life}, reputation {agent['reputation']:.3g}{obstacle}")
    for ballot in report["open_ballots"]:
        votes = ", ".join(f"{name} {stance}" for name, stance in ballot["votes"].items())
        out.append(
            f"  open until tick {ballot['closes_at_tick']}: {ballot['actuator']}, {ballot['opened_by']} proposed "
            f"{show(ballot['proposal'])} ({votes})"
        )
    for flight in report["in_flight"]:
        out.append(f"  in flight: {flight['actuator']} to {show(flight['value'])} (decision {flight['id']})")
    out.append(f"  {report['adopted']} decisions adopted, {report['interventions_left']} interventions left")
    return out
