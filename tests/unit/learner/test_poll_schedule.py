"""When the link looks: seldom, and just when a message is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oven_learner.link.poll_schedule import LAG_S, PollSchedule

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
            schedule.record_steps(arrived[-1], len(arrived))
        now += schedule.pause_s(now)
    return late, count


@given(st.floats(0.006, 0.2))
def test_a_steady_step_is_found_at_once_with_few_looks(period_s: float) -> None:
    steps = 200
    late, count = looks([period_s * n for n in range(1, steps)])
    settled = sorted(late[40:])
    assert settled[len(settled) * 9 // 10] <= 2.5 * LAG_S
    assert count <= steps * (period_s / LEISURE_S + 2)


@given(st.lists(st.floats(0.0001, 0.5), min_size=1, max_size=60))
def test_no_message_waits_longer_than_four_usual_pauses(gaps: list[float]) -> None:
    times, now = [], 0.0
    for gap in gaps:
        now += gap
        times.append(now)
    late, _ = looks(times)
    assert len(late) == len(times) and max(late) <= 4 * LEISURE_S + 1e-9


@given(st.floats(0.0055, 0.009))
def test_a_steady_step_that_is_a_little_longer_has_one_look(period_s: float) -> None:
    late, count = looks([period_s * n for n in range(1, 400)])
    assert count <= 1.1 * len(late)


@given(st.floats(0.0001, 0.005))
def test_steps_shorter_than_the_usual_pause_share_a_look(period_s: float) -> None:
    late, count = looks([period_s * n for n in range(1, 400)])
    assert max(late) <= 2 * LEISURE_S + 1e-9
    assert count <= 400 * period_s / LEISURE_S + 10


def test_an_irregular_step_waits_at_most_a_usual_pause() -> None:
    gaps = [0.03 + 0.01 * (-1) ** n for n in range(200)]
    late, _ = looks([sum(gaps[:n]) for n in range(1, 200)])
    assert max(late[20:]) <= LEISURE_S + 1e-9
