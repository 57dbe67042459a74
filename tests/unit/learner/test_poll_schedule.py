"""When the link looks: seldom, and just when a message is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oven_learner.link.poll_schedule import DUE_PAUSE_S, MAX_SHORT_PAUSES, PollSchedule

LEISURE_S = 0.005


def looks(times: list[float], leisure_s: float = LEISURE_S) -> tuple[list[float], int]:
    """(how late each message at these times was found, looks in all), with a clock that only the pauses move."""
    schedule, now, late, count, waiting = PollSchedule(leisure_s), 0.0, list[float](), 0, list(times)
    while waiting:
        count += 1
        arrived = [due for due in waiting if due <= now]
        if arrived:
            late += [now - due for due in arrived]
            waiting = waiting[len(arrived) :]
            schedule.record_message(arrived[-1])
        now += schedule.pause_s(now)
    return late, count


@given(st.floats(0.006, 0.2))
def test_a_steady_step_is_found_at_once_with_few_looks(period_s: float) -> None:
    steps = 200
    late, count = looks([period_s * n for n in range(1, steps)])
    settled = sorted(late[40:])
    assert settled[len(settled) * 9 // 10] <= 2.5 * DUE_PAUSE_S
    assert count <= steps * (period_s / LEISURE_S + MAX_SHORT_PAUSES + 2)


@given(st.lists(st.floats(0.0001, 0.5), min_size=1, max_size=60))
def test_no_message_waits_longer_than_the_idle_pause(gaps: list[float]) -> None:
    times, now = [], 0.0
    for gap in gaps:
        now += gap
        times.append(now)
    late, _ = looks(times)
    assert len(late) == len(times) and max(late) <= LEISURE_S + DUE_PAUSE_S + 1e-9


def test_receipts_do_not_change_the_estimated_pace() -> None:
    alone = looks([0.01 * n for n in range(1, 100)])[0]
    with_receipts = looks(sorted([0.01 * n for n in range(1, 100)] + [0.01 * n + 0.0001 for n in range(1, 100, 3)]))[0]
    assert max(with_receipts[60:]) <= max(alone[40:]) + 2 * DUE_PAUSE_S


def test_in_lockstep_the_pause_is_constant() -> None:
    schedule = PollSchedule(DUE_PAUSE_S)
    schedule.record_message(0.0)
    schedule.record_message(0.02)
    assert schedule.pause_s(0.02) == schedule.pause_s(0.03) == DUE_PAUSE_S
