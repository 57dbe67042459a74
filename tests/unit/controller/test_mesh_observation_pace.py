"""Minutes for an approval become ticks at the pace that the log's times show: in every replica and replay alike."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.mesh_log import LR, RUN, Log

from oven_core.protocol.events import Event
from oven_runs.log.replay import replay


def advised(log: Log) -> int:
    """Ticks for which the newest advice can be approved."""
    log.propose("amy", 0.5, confidence=0.9)
    assert log.verdict == "advised"
    return log.last.expires_at_tick - log.last.tick


def running(step_s: float, **rules: Any) -> Log:
    log = Log.running("amy", speciality=(LR,), autonomy="advise", **rules)
    log.tick_s = step_s
    log.tick(10)
    return log


@pytest.mark.parametrize(
    ("step_s", "rules", "ticks"),
    [
        (2.0, {"approve_minutes": 5.0}, 150),
        (7.0, {"approve_minutes": 1.0, "approve_ticks": 4}, 9),  # rounded up
        (60.0, {"approve_minutes": 5.0}, 100),  # never fewer than the rules' ticks
        (2.0, {}, 100),
        (0.0, {"approve_minutes": 5.0}, 100),  # nobody stored it: there are no times
    ],
)
def test_minutes_become_ticks_at_the_pace_of_the_newest_observations(
    step_s: float, rules: dict[str, Any], ticks: int
) -> None:
    log = running(step_s, **rules)
    assert advised(log) == ticks
    assert f"within {ticks} ticks" in log.last.reason


def test_a_pause_an_outage_and_a_restart_do_not_move_the_pace() -> None:
    log = running(2.0, approve_minutes=5.0)
    log.now += timedelta(hours=1)  # held, or an evaluation
    log.tick(1)
    log.tick_s = 0.0
    log.tick(3)  # what piled up while the bus was away is stored at once
    log.now += timedelta(hours=9)
    log.restart(autonomy="advise", approve_minutes=5.0)
    log.tick_s = 2.0
    log.tick(2)
    assert advised(log) == 150


def test_advice_can_be_approved_until_the_tick_that_it_names() -> None:
    for late in (0, 1):
        log = running(2.0, approve_minutes=5.0)
        ticks = advised(log)
        log.tick(ticks + late)
        log.operator("c1", "approve", of=LR)
        assert log.answers[-1].done is (late == 0)


def test_a_replay_of_the_exported_log_decides_byte_for_byte_the_same() -> None:
    log = running(0.123457, approve_minutes=1.0)
    advised(log)
    lines = [entry.line() for entry in log.events]
    report = replay(map(Event.from_line, lines), RUN)
    assert report.same and report.decisions == 1
