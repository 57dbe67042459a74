"""The bench of swaps in running trainings: its arithmetic, and what it calls wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_bench.performance.live_swaps import Clock, table, timed, verdicts
from oven_bench.performance.swap_stalls import WARM_UP, Swap, lost_and_repeated, stalls


@pytest.mark.parametrize(
    ("published", "trained", "found"),
    [
        ([1, 2, 3], 3, (0, 0)),
        ([0, 1, 2, 3], 3, (0, 0)),  # the first measurement, before a step
        ([1, 3], 3, (1, 0)),
        ([1, 2], 3, (1, 0)),
        ([1, 2, 2, 3, 2], 3, (0, 2)),
        ([], 2, (2, 0)),
    ],
)
def test_steps_that_the_log_lacks_or_has_twice(published: list[int], trained: int, found: tuple[int, int]) -> None:
    assert lost_and_repeated(published, trained) == found


def test_a_stall_is_over_the_medians_of_the_old_and_the_new_teacher() -> None:
    """Steps last 1 s under `a` and 3 s under `b`. The swap at step 6 takes .5 more, the first step under `b` .25."""
    seconds = {step: 1.0 for step in range(2, 7)} | {step: 3.0 for step in range(7, 13)}
    seconds |= {2: 50.0, 6: 1.5, 7: 3.25, 10: 3.125}
    found = stalls(seconds, [Swap(6, "a", "b")], "a")
    assert found.of == {"b": [0.75]} and found.step_s == {"a": 1.0, "b": 3.0}
    assert found.without == [0.0, 0.0, 0.125, 0.125, 0.0], "one pair under `a`, four under `b`; none across the swap"


def test_a_swap_beside_another_or_beside_the_end_tells_nothing() -> None:
    seconds = dict.fromkeys(range(2, 16), 1.0) | {15: 9.0}
    found = stalls(seconds, [Swap(7, "a", "b"), Swap(8, "b", "a"), Swap(15, "a", "b")], "a")
    assert found.of == {} and found.step_s == {"a": 1.0}


def test_steps_with_other_work_count_nowhere() -> None:
    seconds = dict.fromkeys(range(2, 16), 1.0) | {5: 9.0, 12: 9.0}
    swaps = [Swap(8, "a", "b"), Swap(11, "b", "a")]
    assert max(stalls(seconds, swaps, "a").without) == 8.0
    found = stalls(seconds, swaps, "a", {5, 12})
    assert found.of == {"b": [0.0]}, "the other swap's next step is one of them"
    assert set(found.without) == {0.0}


@given(
    st.lists(st.floats(0.01, 10), min_size=40, max_size=40),
    st.sets(st.integers(WARM_UP + 3, 33), max_size=5),
    st.floats(0.5, 8),
)
def test_a_machine_that_is_slower_by_a_factor_has_stalls_longer_by_it(
    took: list[float], at: set[int], factor: float
) -> None:
    swaps = [Swap(step, "ab"[place % 2], "ba"[place % 2]) for place, step in enumerate(sorted(at))]
    one = stalls(dict(enumerate(took, 2)), swaps, "a")
    slower = stalls({step: factor * s for step, s in enumerate(took, 2)}, swaps, "a")
    assert all(stall >= 0 for of in one.of.values() for stall in of) and sum(map(len, one.of.values())) <= len(swaps)
    assert slower.without == pytest.approx([factor * s for s in one.without])
    assert {name: pytest.approx(of) for name, of in slower.of.items()} == {
        name: [factor * s for s in of] for name, of in one.of.items()
    }


def test_the_clock_begins_with_the_second_step() -> None:
    clock = Clock()
    clock.ends = [5.0, 7.0, 7.5]
    assert clock.seconds == {2: 2.0, 3: 0.5}


def test_the_first_teacher_counts_as_resident_and_bytes_count_by_the_hundred_megabytes() -> None:
    seconds = dict.fromkeys(range(2, 30), 1.0) | {10: 1.5, 21: 1.25}
    found = timed(seconds, [Swap(10, "first", "offload"), Swap(20, "offload", "first")], "first",
                  {"first": 200.0, "offload": 250.0, "resident": 250.0})  # fmt: skip
    assert found["floor_s"] == 0.0 and set(found["teachers"]) == {"offload", "resident"}
    assert found["teachers"]["offload"] == {
        "swaps": 1, "megabytes": 250.0, "step_s": 1.0, "stall_s": 0.5, "stall_max_s": 0.5, "stall_s_per_100_mb": 0.2,
        "stall_max_s_per_100_mb": 0.2,
    }  # fmt: skip
    assert found["teachers"]["resident"] == {
        "swaps": 1, "megabytes": 200.0, "step_s": 1.0, "stall_s": 0.25, "stall_max_s": 0.25,
    }  # fmt: skip


def figures(teacher: str = "resident", **of_it: Any) -> dict[str, Any]:
    whole = {"steps": 90, "lost": 0, "repeated": 0, "swaps": 10, "applied": 10, "replay_same": True} | of_it
    of_teacher = {"swaps": 10, "megabytes": 110.0, "step_s": 0.3, "stall_s": 0.1, "stall_max_s": 0.3,
                  "stall_s_per_100_mb": 0.1, "stall_max_s_per_100_mb": 0.3}  # fmt: skip
    return {**whole, "teachers": {teacher: of_teacher}}


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (figures(), ""),
        (figures(lost=1), "text: 1 steps lost and 0 repeated of 90"),
        (figures(repeated=2), "0 steps lost and 2 repeated"),
        (figures(applied=9), "1 of 10 swaps were not applied"),
        (figures(replay_same=False), "the replay computes other bytes"),
        ({**figures(), "teachers": {"resident": {"stall_s": 0.2, "stall_s_per_100_mb": 0.18}}}, "0.20 s, bar 0.2"),
        ({**figures(), "teachers": {"offload": {"stall_s": 2.1, "stall_s_per_100_mb": 1.9}}}, ""),
        ({**figures(), "teachers": {"offload": {"stall_s": 2.2, "stall_s_per_100_mb": 2.0}}}, "2.00 s per 100 MB"),
    ],
)
def test_what_is_not_as_it_has_to_be_is_named(one: dict[str, Any], said: str) -> None:
    found = verdicts({"text": one})
    assert (len(found) == 1 and said in found[0]) if said else not found


def test_a_line_per_training_and_teacher() -> None:
    assert table({"text": figures("offload")}) == [
        ["text", "offload", "10", "110", "0.3", "0.1", "0.3", "0.1", "0.3"]
    ]  # fmt: skip
