"""The agent that looks whether a rollback brought anything, and what the others make of a way that was left again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.support import runs

from oven_agents.sdk.window import Knob, Window
from oven_agents.shipped.rollback_undo import RollbackUndo
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import Decision, Observation, Receipt, RunStarted, Vote

LEFT, TO = 60, 40
"""Ticks of the rollback, and of what it went back to."""
BEST, FELL = 2.5, 2.9
Events = Iterable[Observation | Receipt | Decision]


def run(*more: str) -> RunStarted:
    started = runs.pretraining()
    actions = tuple(ACTUATORS[name] for name in more)
    return started.model_copy(update={"actuators": (*started.actuators, *actions)})


BOTH = run("run.evaluate", "run.undo_rollback")


def course(reading: float, reading_tick: int = LEFT + 5, *, cut: bool = False) -> list[Observation | Receipt]:
    """A reading that fell, a rollback, and what is read at a tick after it."""
    readings = {TO: BEST, LEFT: FELL, reading_tick: reading}
    events: list[Observation | Receipt] = []
    for tick in range(1, LEFT + 20):
        step = tick if tick <= LEFT else tick - (LEFT - TO)
        read = {"eval/loss": readings[tick]} if tick in readings else {}
        events.append(runs.seen(tick, {"loss": 2.6, **read}, step).model_copy(update={"n": 3 * tick}))
        if tick == LEFT:
            back, rate = (
                runs.receipt(LEFT, "run.rollback", LEFT, TO),
                runs.receipt(LEFT, "optimizer.lr_scale", 1.0, 0.125),
            )
            events.append(back.model_copy(update={"n": 3 * LEFT + 1}))
            events += [rate.model_copy(update={"n": 3 * LEFT + 2})] if cut else []
    return events


def votes_of(events: Events, started: RunStarted = BOTH) -> list[Vote]:
    return runs.votes(RollbackUndo(), started, events)


def wanted(events: Events, started: RunStarted = BOTH) -> dict[str, object]:
    return {vote.actuator: vote.value for vote in votes_of(events, started) if vote.actuator != "run.evaluate"}


def test_it_evaluates_a_rollback_and_undoes_one_that_did_not_help() -> None:
    votes = votes_of(course(FELL))
    assert (votes[0].actuator, votes[0].tick) == ("run.evaluate", LEFT + 4)
    assert wanted(course(FELL)) == {"run.undo_rollback": None}
    assert wanted(course(FELL + 0.3)) == {"run.undo_rollback": None}


@pytest.mark.parametrize("reading", [BEST, BEST + 0.4 * (FELL - BEST)])
def test_a_rollback_that_helped_is_not_undone(reading: float) -> None:
    assert wanted(course(reading)) == {}


def test_the_first_reading_is_the_verdict() -> None:
    events = course(BEST)
    later = [
        e.model_copy(update={"metrics": {**e.metrics, "eval/loss": 3.2}})
        if isinstance(e, Observation) and e.tick == LEFT + 8
        else e
        for e in events
    ]
    assert wanted(later) == {}, "it may have happened again: that is for others to see"


def test_undoing_a_rollback_also_undoes_the_rate_cut() -> None:
    assert wanted(course(FELL, cut=True)) == {"run.undo_rollback": None, "optimizer.lr_scale": 1.0}


def test_an_undone_rollback_is_not_judged_again() -> None:
    undone = runs.receipt(LEFT + 6, "run.undo_rollback", 46, LEFT).model_copy(update={"n": 3 * (LEFT + 6) + 1})
    events = course(FELL)
    index = next(i for i, event in enumerate(events) if event.tick == LEFT + 6) + 1
    assert not any(vote.tick > LEFT + 6 for vote in votes_of([*events[:index], undone, *events[index:]]))


def test_an_operators_rollback_is_not_undone() -> None:
    wish = Decision.model_validate(
        {
            "id": f"{LEFT}", "ballot": "", "actuator": "run.rollback", "verdict": "adopted", "value": 40, "reason": "",
            "tally": (), "tick": LEFT, "apply_at_tick": LEFT, "expires_at_tick": LEFT + 9, "command": "c-1",
        }
    )  # fmt: skip
    events = course(FELL)
    index = next(i for i, event in enumerate(events) if isinstance(event, Receipt))
    assert wanted(events) and not wanted([*events[:index], wish, *events[index:]])


def test_steps_between_a_rollback_and_its_undoing_do_not_count() -> None:
    steps = [*range(1, 61), *range(41, 46), *range(61, 71)]
    seen = [runs.seen(tick, {"loss": float(tick)}, step) for tick, step in enumerate(steps, 1)]
    jumps = [
        runs.receipt(60, "run.rollback", 60.0, 40.0),
        runs.receipt(65, "run.undo_rollback", 45.0, 60.0),
    ]
    knobs = {spec.name: Knob(spec, spec.value) for spec in BOTH.actuators}
    window = Window(BOTH, seen, knobs, jumps, {})
    assert [tick for tick, _ in window.surviving_series("loss")] == [*range(1, 61), *range(66, 76)]
    assert window.last_change_tick("run.rollback") == 65
