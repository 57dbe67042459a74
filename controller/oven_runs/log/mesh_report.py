"""Report of what the mesh knew at a tick: settings, agents, open ballots, decisions in flight."""

from __future__ import annotations

from typing import Any

from oven_core.mesh.actuator_values import show
from oven_core.mesh.state_machine import Mesh


def report_of(mesh: Mesh) -> dict[str, Any]:
    """As plain data, for people and for `--json`."""
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


def lines(found: dict[str, Any]) -> list[str]:
    """The same in words."""
    out = [f"what the mesh knew at tick {found['tick']}"]
    out += [f"  {name} = {show(value)}" for name, value in found["effective"].items() if value is not None]
    for name, agent in found["agents"].items():
        life = "live" if agent["live"] else f"silent since tick {agent['last_tick']}"
        why = f"; cannot fire: {agent['cannot_fire']}" if agent["cannot_fire"] else ""
        out.append(f"  agent {name}: {life}, reputation {agent['reputation']:.3g}{why}")
    for ballot in found["open_ballots"]:
        votes = ", ".join(f"{name} {stance}" for name, stance in ballot["votes"].items())
        out.append(
            f"  open until tick {ballot['closes_at_tick']}: {ballot['actuator']}, {ballot['opened_by']} proposed "
            f"{show(ballot['proposal'])} ({votes})"
        )
    for flight in found["in_flight"]:
        out.append(f"  on its way: {flight['actuator']} to {show(flight['value'])} (decision {flight['id']})")
    out.append(f"  {found['adopted']} decisions adopted, {found['interventions_left']} interventions left")
    return out
