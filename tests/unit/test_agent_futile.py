"""When going back once more would be more of the same."""

from __future__ import annotations

from tests.unit import runs

from oven_agents.futile import LIMIT, futile
from oven_agents.window import Window

FALLEN = {20: 2.9, 40: 2.6, 60: 3.1}


def window(backs: int, readings: dict[int, float]) -> Window:
    """Of a run that went back so often after tick 41, each time to before its newest reading."""
    seen = [runs.seen(tick, {"eval/loss": readings[tick]} if tick in readings else {"loss": 2.5}) for tick in range(90)]
    receipts = [runs.receipt(61 + i, "run.rollback", 60.0, 41.0) for i in range(backs)]
    return Window(runs.pretraining(), seen, {}, receipts, {})


def test_so_many_rollbacks_without_a_new_best_are_enough() -> None:
    assert [futile(window(backs, FALLEN)) for backs in (0, LIMIT - 1, LIMIT, LIMIT + 4)] == [False, False, True, True]


def test_a_new_best_begins_anew() -> None:
    assert not futile(window(LIMIT, {**FALLEN, 80: 2.5}))


def test_where_nothing_is_held_out_nobody_knows() -> None:
    assert not futile(window(LIMIT, {}))
