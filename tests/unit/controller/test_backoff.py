"""The back-off's arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oven_runs.process.supervisor import Backoff

policies = st.builds(
    Backoff,
    first_s=st.floats(0.01, 2),
    factor=st.floats(1, 5),
    cap_s=st.floats(2, 60),
    healthy_after_s=st.floats(0.1, 100),
    max_failures=st.integers(1, 20),
)


def test_the_shipped_policy() -> None:
    policy = Backoff()
    assert [policy.delay_s(n) for n in range(1, 11)] == [0.25, 0.5, 1.0, 2.0, *[4.0] * 5, None]


@given(policies)
def test_delays_rise_to_the_cap_and_then_end(policy: Backoff) -> None:
    delays = [policy.delay_s(n) for n in range(1, policy.max_failures + 3)]
    waits = [delay for delay in delays if delay is not None]
    assert delays[len(waits) :] == [None] * 3 and len(waits) == policy.max_failures - 1
    assert all(policy.first_s <= delay <= policy.cap_s for delay in waits)
    assert waits == sorted(waits) and waits[:1] == [policy.first_s][: len(waits)]


@given(policies, st.integers(0, 100))
def test_a_process_that_dies_at_once_is_given_up(policy: Backoff, before: int) -> None:
    failures, starts = policy.count_failure(before, policy.healthy_after_s), 0
    while policy.delay_s(failures) is not None:
        starts += 1
        failures = policy.count_failure(failures, 0.0)
    assert starts == policy.max_failures - 1
