"""How long a command waits: by steps that end, by a person's limit, or by a bound where nothing moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oven_runs.operator.operator_client import AWAITED_BOUNDARIES, MAX_STEP_WAIT_S, MIN_WAIT_S, SETTLE_S, ReceiptWait


def test_a_long_step_is_waited_for_and_two_of_them_are_enough() -> None:
    wait = ReceiptWait(100.0)
    assert wait.deadline == 100.0 + MAX_STEP_WAIT_S
    wait.record_boundary(7, 150.0)
    wait.record_boundary(7, 155.0)  # the same step, heard twice
    assert wait.deadline == 150.0 + MAX_STEP_WAIT_S
    wait.record_boundary(8, 205.0)
    assert wait.deadline == 205.0 + SETTLE_S
    assert wait.describe_wait() == "within 2 steps" and not wait.waits_for_step


def test_steps_of_milliseconds_do_not_shorten_the_wait() -> None:
    wait = ReceiptWait(0.0)
    for tick in range(AWAITED_BOUNDARIES):
        wait.record_boundary(tick, 0.01 * tick)
    assert wait.deadline == MIN_WAIT_S


@given(st.floats(0.1, 1e4), st.lists(st.integers(0, 50), max_size=20))
def test_a_configured_limit_is_the_deadline(limit: float, ticks: list[int]) -> None:
    wait = ReceiptWait(0.0, limit)
    for tick in ticks:
        wait.record_boundary(tick, float(tick))
    assert wait.deadline == limit and not wait.waits_for_step and wait.describe_wait() == f"within {limit:g} s"
