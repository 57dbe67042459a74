"""A run's folder with an exported log in it, as `up` leaves it."""

from __future__ import annotations

from typing import Any

from tests.support.mesh_log import LR, RUN, Log

from oven_runs.home.run_folder import Home, RunFolder


def a_run(end: bool = True, **rules: Any) -> Log:
    """Return nine ticks: a decision that is adopted and applied, one that is refused, and one without a quorum."""
    log = Log(stride=1)
    log.start(alone=dict.fromkeys(("amy", "bob"), (LR,)), **rules)
    for agent in ("amy", "bob"):
        log.join(agent)
    log.tick()
    log.propose("amy", 0.5, confidence=0.9)
    log.tick(3)
    log.receipt(log.last)
    log.propose("bob", 900)
    log.propose("bob", 2.0, "grad.clip")
    log.tick(3)
    log.tick(2)
    if end:
        log.end()
    return log


def left_behind(home: Home, log: Log, run: str = RUN) -> RunFolder:
    folder = home.create(run, "grpo")
    folder.export.write_text("".join(event.line() + "\n" for event in log.events))
    return folder
