"""What `status` says is wrong."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.support.mesh_log import NOON, Log

from oven_controller.stack.run_status import find_problems
from oven_runs.log.run_summary import RunSummary

STACK = ("up", "nats-server", "mesh", "mesh-2", "mesh-3", "agent-amy", "learner")


def processes(dead: tuple[str, ...] = (), frozen: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [{"name": name, "alive": name not in dead, "stopped": name in frozen} for name in STACK]


def viewed(ticks: int = 3) -> RunSummary:
    log, view = Log.running("amy", silent_ticks=5), RunSummary()
    log.tick(ticks)
    for event in log.events:
        view.feed(event)
    return view


def reports(listed: list[dict[str, Any]], ticks: int = 3, unread: str = "", later_s: float = 1.0) -> list[str]:
    now = NOON + timedelta(seconds=later_s)
    return find_problems(viewed(ticks), listed, unread, now, lambda name: f"{name} spoke")


def test_nothing_is_said_of_a_stack_that_is_well() -> None:
    assert reports(processes()) == []
    assert reports([], ticks=50, later_s=1e6) == [], "a run that is down is quiet"


def test_one_of_three_meshes_away_is_not_the_same_as_none() -> None:
    assert reports(processes(dead=("mesh-2",))) == [
        "not running: 1 of 3 mesh replicas (mesh-2); the others still make decisions"
    ]
    assert reports(processes(dead=("mesh", "mesh-2", "mesh-3"))) == [
        "no mesh is running; no decisions are made, and training continues with its last settings"
    ]


def test_what_is_frozen_counts_as_away_and_is_called_so() -> None:
    lines = reports(processes(dead=("mesh", "mesh-3"), frozen=("mesh-2", "nats-server")), unread="no answer")
    assert lines[0].startswith("nats-server, mesh-2 are frozen")
    assert lines[1].startswith("the bus does not respond") and lines[2].startswith("no mesh is running")


def test_a_silent_agent_and_a_quiet_log() -> None:
    assert reports(processes(), ticks=5) == []
    assert reports(processes(), ticks=6) == [
        "agent amy has been silent for 6 ticks and counts as lost until it responds (silent_ticks 5)"
    ]
    assert reports(processes(), later_s=31.4) == [
        "nothing was logged for 31 s; last line of the learner's output: learner spoke"
    ]
