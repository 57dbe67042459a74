"""Faults of a running stack in plain words, from its processes and the progress of its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from oven_runs.log.run_summary import RunSummary

QUIET_S = 30.0
"""A log that takes nothing for so long is told of. A step may take longer; then this is how one sees that it does."""


def notes(
    view: RunSummary, processes: Sequence[dict[str, Any]], unread: str, now: datetime, last_words: Callable[[str], str]
) -> list[str]:
    """A line each, none when all is well. `processes` are as `status` lists them (name, alive, stopped); `unread` says
    why the log cannot be read, if so; `last_words` gives the end of a process's log."""
    found: list[str] = []
    away = {entry["name"] for entry in processes if not entry["alive"] or entry["stopped"]}
    frozen = [entry["name"] for entry in processes if entry["alive"] and entry["stopped"]]
    if frozen:
        verb = "is" if len(frozen) == 1 else "are"
        found.append(f"{', '.join(frozen)} {verb} frozen (stopped by a signal; `kill -CONT PID` wakes a process)")
    if "nats-server" in away:
        found.append("the bus does not answer: training continues with its last settings")
    meshes = [entry["name"] for entry in processes if _is_mesh(entry["name"])]
    gone = [name for name in meshes if name in away]
    if meshes and len(gone) == len(meshes):
        found.append("no mesh runs: no decisions are made, training continues with its last settings")
    elif gone:
        found.append(f"{len(gone)} of {len(meshes)} meshes is away ({', '.join(gone)}): the others decide")
    if unread or not processes:
        return found
    if view.started is not None and view.ended is None:
        found += _silent(view)
        quiet_s = (now - view.last_time).total_seconds() if view.last_time else 0.0
        if quiet_s > QUIET_S and not view.held:
            learner = last_words("learner" if any(e["name"] == "learner" for e in processes) else "script")
            found.append(f"nothing was logged for {quiet_s:.0f} s; the learner's last words: {learner or 'none'}")
    return found


def _silent(view: RunSummary) -> list[str]:
    limit = view.started.rules.silent_ticks if view.started else 0
    silent = {name: view.tick - agent.heard_tick for name, agent in view.agents.items() if agent.live}
    return [
        f"agent {name} has said nothing for {ticks} ticks: it is lost until it speaks (silent_ticks {limit})"
        for name, ticks in sorted(silent.items())
        if ticks > limit
    ]


def _is_mesh(name: str) -> bool:
    return name == "mesh" or name.startswith("mesh-")
