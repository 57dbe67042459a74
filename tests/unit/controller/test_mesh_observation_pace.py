"""Minutes until an approval and seconds until a decision lapses become ticks at the pace of the log, in replays too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.mesh_log import LR, RUN, Log

from oven_core.protocol.events import Event
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay
from oven_runs.settings.run_settings import Settings


def advised(log: Log) -> int:
    """Ticks for which the newest advice can be approved."""
    log.propose("amy", 0.5, confidence=0.9)
    assert log.verdict == "advised"
    return log.last.expires_at_tick - log.last.tick


def running(step_s: float, **rules: Any) -> Log:
    log = Log.running("amy", alone=(LR,), **{"autonomy": "advise", **rules})
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
    log.restart(autonomy="advise", approve_minutes=5.0, alone={"amy": (LR,)})
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


def lasts(log: Log) -> int:
    """Ticks from the tick of application of the newest decision to the tick at which it lapses."""
    log.propose("amy", 0.5, confidence=0.9)
    assert log.verdict == "adopted"
    return log.last.expires_at_tick - log.last.apply_at_tick


@pytest.mark.parametrize(
    ("step_s", "rules", "ticks"),
    [
        (1 / 128, {"expire_seconds": 10.0}, 1282),  # ten seconds, rounded up
        (2.0, {"expire_seconds": 10.0}, 20),  # never fewer than the rules' ticks
        (1 / 128, {}, 20),  # a log from before the rule
        (1 / 128, {"expire_seconds": 10.0, "lockstep": True}, 20),  # a repeated run lapses alike
    ],
)
def test_a_decision_lapses_after_ticks_or_seconds_whichever_is_later(
    step_s: float, rules: dict[str, Any], ticks: int
) -> None:
    log = running(step_s, autonomy="auto", **rules)
    log.tick(990)
    assert lasts(log) == ticks


def test_a_fast_loop_whose_observations_are_stored_many_at_once_has_the_same_seconds() -> None:
    log = running(0.0, autonomy="auto", expire_seconds=10.0)
    for _ in range(50):
        log.now += timedelta(seconds=0.1)
        log.tick(70)  # 700 steps per second
    assert 6_500 < lasts(log) < 7_500


def test_an_evaluation_just_before_a_decision_does_not_shorten_its_life() -> None:
    log = running(0.02, autonomy="auto", expire_seconds=10.0)
    log.tick(100)
    log.now += timedelta(seconds=30)
    log.tick(1)
    assert 500 <= lasts(log) <= 501


def test_settings_of_a_new_run_have_seconds_and_a_log_without_them_has_none() -> None:
    assert Settings().rules.expire_seconds == 10.0
    assert Rules.model_validate({"expire_ticks": 20}).expire_seconds == 0.0
