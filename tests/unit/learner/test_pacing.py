"""Copies of the state cost at most their share of wall time, whatever a copy and a step cost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_learner.rollback.memory_snapshots import (
    CREDIT_S,
    INTERVAL_TICKS,
    MAX_TIME_SHARE,
    Snapshots,
    SnapshotSchedule,
    SnapshotTimeBudget,
)

SECONDS = st.floats(1e-5, 1e4, allow_nan=False)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, st.booleans()), min_size=1, max_size=60),
    st.floats(0, 100),
    st.floats(0, 10),
)
def test_snapshots_keep_to_their_share_of_time(
    course: list[tuple[float, float, bool]], expected: float, credit: float
) -> None:
    """Each entry: seconds that pass, what a copy costs if one is due, whether the user saves instead."""
    budget, now, ours, overshoot = SnapshotTimeBudget(0.0, expected_s=expected, credit_s=credit), 0.0, 0.0, 0.0
    for passes, cost, user in course:
        now += passes
        if user:
            now += cost
            budget.charge(now - cost, now, is_scheduled=False)
        elif budget.seconds_until_due(now) == 0:
            overshoot = max(overshoot, cost - budget.expected_s)
            now += cost
            ours += cost
            budget.charge(now - cost, now)
        assert ours <= MAX_TIME_SHARE * now + credit + max(overshoot, 0.0) + 1e-6 * now
    assert abs(budget.spent_s - ours) <= 1e-6 * now


def test_a_save_by_the_user_is_free_and_delays_the_next() -> None:
    budget = SnapshotTimeBudget(0.0, expected_s=2.0)
    budget.charge(99.0, 101.0, is_scheduled=False)
    assert budget.spent_s == 0 and budget.seconds_until_due(102.0) > 98


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(clock: Clock, ticks: int, step_s: float, copy_s: float) -> tuple[Snapshots, list[int]]:
    snapshot_ticks: list[int] = []

    def take() -> tuple[int, None]:
        clock.now += copy_s
        snapshot_ticks.append(tick)
        return tick, None

    tick = 0
    snapshots = Snapshots(take, lambda _: None, clock=clock)
    snapshots.take_if_due(0)
    for tick in range(1, ticks + 1):
        clock.now += step_s
        snapshots.take_if_due(tick)
    return snapshots, snapshot_ticks


@given(st.floats(1e-3, 60), st.floats(1e-5, 600))
def test_snapshots_start_at_once_and_keep_to_their_share(step_s: float, copy_s: float) -> None:
    clock = Clock()
    snapshots, snapshot_ticks = run(clock, 400, step_s, copy_s)
    assert snapshot_ticks[0] == 0
    assert snapshots.budget.spent_s <= MAX_TIME_SHARE * clock.now + CREDIT_S + copy_s, (
        "the first is taken whatever it costs"
    )
    assert all(later - earlier >= INTERVAL_TICKS for earlier, later in itertools.pairwise(snapshot_ticks))


def test_all_ranks_take_snapshots_at_the_same_ticks() -> None:
    words: list[object] = []

    def leads(word: object) -> object:
        words.append(word)
        return word

    def follows(word: object) -> object:
        return words.pop(0)

    clocks = Clock(), Clock()
    first = SnapshotSchedule(SnapshotTimeBudget(0.0, expected_s=1.0), clocks[0], leads)
    second = SnapshotSchedule(SnapshotTimeBudget(0.0, expected_s=50.0), clocks[1], follows)
    for tick in range(400):
        clocks[0].now += 1.0
        clocks[1].now += 7.0
        due = first.is_due(tick)
        assert due == second.is_due(tick)
        if due:
            for turns, clock in zip((first, second), clocks, strict=True):
                turns.budget.charge(clock.now - 1, clock.now)
                turns.on_snapshot(tick)
    assert not words, "they asked at the same ticks"


def test_no_rollback_goes_back_twice_as_far_as_requested() -> None:
    snapshots, _ = run(Clock(), 2000, step_s=1.0, copy_s=1e-6)
    for wanted in (1999, 1990, 1970, 1950, 1900, 1800, 1650):  # each takes those after it away
        restored = snapshots.restore(wanted, 2000).tick
        assert wanted - 2 * (2000 - wanted) - 2 * INTERVAL_TICKS < restored <= wanted
    assert snapshots.restore(3, 2000).tick == 0, "the first is never dropped"


def test_an_agents_rollback_is_refused_beyond_twice_the_distance() -> None:
    snapshots = Snapshots(lambda: (0, None), lambda _: None)
    for tick in (0, 60, 90):
        snapshots.take(tick)
    assert not snapshots.distance_problem(75, 100, exact=False), "40 back instead of 25"
    assert "from tick 0, 100 ticks back; this request may go back at most 98" in snapshots.distance_problem(
        56, 100, exact=False
    )
    assert not snapshots.distance_problem(50, 100, exact=False)


def test_a_rollback_happens_even_if_it_cannot_be_undone() -> None:
    """There may be no memory for one more."""
    broken = [False]

    def take() -> tuple[int, int]:
        if broken[0]:
            raise MemoryError("no room")
        return 3, 30

    restored: list[int] = []
    snapshots = Snapshots(take, restored.append)
    snapshots.take_if_due(0)
    broken[0] = True
    assert snapshots.restore(0, 9).step == 3 and restored == [30]
    with pytest.raises(LookupError, match="could not be copied"):
        snapshots.undo()
