"""When going back once more would be more of the same."""

from __future__ import annotations

import math

import pytest
from tests.support import runs

from oven_agents.sdk.window import Knob, Window
from oven_agents.stats.rollback_success import (
    MAX_ROLLBACKS,
    last_rollback_failed,
    recovered_shares,
    rollbacks_exhausted,
)
from oven_core.protocol.actuators import ACTUATORS

KNOBS = {name: Knob(ACTUATORS[name], None) for name in ("run.rollback", "run.undo_rollback")}
FALLEN = {20: 2.9, 40: 2.6, 60: 3.1}


def window(backs: int, readings: dict[int, float]) -> Window:
    """Of a run that went back so often after tick 41, each time to before its newest reading."""
    seen = [runs.seen(tick, {"eval/loss": readings[tick]} if tick in readings else {"loss": 2.5}) for tick in range(90)]
    receipts = [runs.receipt(61 + i, "run.rollback", 60.0, 41.0) for i in range(backs)]
    return Window(runs.pretraining(), seen, KNOBS, receipts, {})


def test_rollbacks_stop_without_a_new_best() -> None:
    assert [
        rollbacks_exhausted(window(backs, FALLEN)) for backs in (0, MAX_ROLLBACKS - 1, MAX_ROLLBACKS, MAX_ROLLBACKS + 4)
    ] == [
        False,
        False,
        True,
        True,
    ]


def test_a_new_best_reading_resets_the_count() -> None:
    assert not rollbacks_exhausted(window(MAX_ROLLBACKS, {**FALLEN, 80: 2.5}))


def after(readings: dict[int, float], *jumps: tuple[int, str], reward: bool = False) -> Window:
    """A run that went back from tick 60 to 40, read 2.6, 3.0 and then what `readings` say."""
    known = {40: 2.6, 60: 3.0, **readings}
    run, name = (runs.grpo(), "eval/accuracy") if reward else (runs.pretraining(), "eval/loss")
    steps = [tick if tick <= 60 else tick - 20 for tick in range(1, 100)]
    seen = [
        runs.seen(tick, {name: -known[tick] if reward else known[tick]} if tick in known else {}, step)
        for tick, step in enumerate(steps, 1)
        if tick <= max(known)
    ]
    done = {"run.rollback": (60.0, 40.0), "run.undo_rollback": (46.0, 60.0)}
    receipts = [runs.receipt(tick, name, *done[name]) for tick, name in jumps or ((60, "run.rollback"),)]
    return Window(run, seen, KNOBS, receipts, {})


def test_the_share_regained_by_a_rollback_is_relative_to_the_loss_before_it() -> None:
    window = after({65: 2.9, 70: 2.6, 75: math.nan})
    shares = recovered_shares(window, window.receipts[-1]) or []
    assert [tick for tick, _ in shares] == [65, 70, 75]
    assert [share for _, share in shares] == pytest.approx([0.25, 1.0, -math.inf])
    assert recovered_shares(after({60: 2.5}), window.receipts[-1]) is None, "nothing had been lost"


def test_after_an_undone_rollback_no_agent_rolls_back_until_a_new_best() -> None:
    undone = ((60, "run.rollback"), (66, "run.undo_rollback"))
    assert last_rollback_failed(after({65: 2.95, 80: 2.9}, *undone))
    assert not last_rollback_failed(after({65: 2.95, 80: 2.5}, *undone))
