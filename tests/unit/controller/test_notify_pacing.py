"""Pacing of notifications: at most one a kind and minute, nothing lost, what is kept is bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oven_controller.notify.message import TOLD, Message, Notice
from oven_controller.notify.pacing import GAP_S, REMEMBERED, Pacer, PacerState
from oven_runs.settings.notifications import KINDS, Kind, Severity

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def notice(number: int, kind: Kind = "applied", severity: Severity = "info") -> Notice:
    return Notice(
        key=f"k{number}",
        kind=kind,
        severity=severity,
        seq=number,
        time=NOON + timedelta(minutes=number),
        tick=number,
        step=number,
        title=f"title {number}",
        text=f"text {number}",
        command=f"command {number}",
    )


def taken(pacer: Pacer, now: float) -> Message:
    message = pacer.take(now)
    assert message is not None
    return message


def test_the_first_goes_at_once_and_those_of_the_next_minute_go_together() -> None:
    pacer = Pacer("run")
    pacer.offer(notice(0))
    assert (pacer.wait_s(0.0), taken(pacer, 0.0).more) == (0.0, 0)
    pacer.sent()
    for number in range(1, 16):
        pacer.offer(notice(number))
    assert pacer.take(59.9) is None and pacer.wait_s(20.0) == 40.0
    message = taken(pacer, 60.0)
    assert (message.notice.key, message.more, len(message.others)) == ("k15", 14, TOLD - 1)
    assert message.text.splitlines()[:3] == ["text 15", "command 15", "and 14 more since 12:01 UTC:"]
    assert message.text.splitlines()[-1] == "- 10 older"


def test_kinds_do_not_wait_for_each_other_and_the_worst_goes_first() -> None:
    pacer = Pacer("run")
    for number, (kind, severity) in enumerate([("applied", "info"), ("judge", "warning"), ("budget", "error")]):
        pacer.offer(notice(number, kind, severity))  # type: ignore[arg-type]
    order = []
    for _ in range(3):
        order.append(taken(pacer, 5.0).notice.kind)
        assert pacer.take(5.0) is None, "one at a time"
        pacer.sent()
    assert order == ["budget", "judge", "applied"]


def test_a_run_that_ends_takes_along_what_waits() -> None:
    pacer = Pacer("run")
    for number in range(3):
        pacer.offer(notice(number))
        if not number:
            pacer.take(0.0)
            pacer.sent()
    pacer.offer(notice(9, "ended"))
    message = taken(pacer, 1.0)
    assert (message.notice.kind, message.more, [one.key for one in message.others]) == ("ended", 2, ["k1", "k2"])


def test_a_dead_address_is_left_alone_for_a_minute_or_for_as_long_as_it_asks() -> None:
    pacer = Pacer("run")
    pacer.offer(notice(0))
    pacer.take(0.0)
    pacer.failed(10.0)
    pacer.offer(notice(1, "held"))
    assert pacer.take(69.0) is None, "no kind tries it"
    assert taken(pacer, 70.0).notice.key in ("k0", "k1")
    pacer.failed(70.0, rest_s=300.0)
    assert (pacer.take(369.0), pacer.wait_s(369.0)) == (None, 1.0)


def test_the_same_thing_is_told_once_and_a_clock_set_back_silences_nobody() -> None:
    pacer = Pacer("run")
    assert pacer.offer(notice(0)) and not pacer.offer(notice(0))
    pacer.take(1e6)
    pacer.failed(1e6, rest_s=1e9)
    assert pacer.take(1e6 + GAP_S) is None
    pacer.state.resting_until = 1e9  # written down by a clock that was wrong
    assert pacer.take(10.0) is not None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_one_a_kind_and_minute_none_lost_and_bounded_memory(data: Any) -> None:
    pacer, now, offered, arrived, doubtful = Pacer("run"), 0.0, 0, 0, 0
    attempts: dict[str, float] = {}
    steps = st.sampled_from(["offer", "burst", "wait", "sent", "failed", "again"])
    for step in data.draw(st.lists(steps, max_size=60)):
        if step in ("offer", "burst"):
            for _ in range(1 if step == "offer" else 40):
                kind: Kind = data.draw(st.sampled_from(KINDS)) if step == "offer" else "held"
                offered += pacer.offer(notice(offered, kind))
        elif step == "wait":
            now += data.draw(st.floats(0.0, 200.0))
        elif step == "again":  # the process is killed, and another one continues
            state = PacerState.model_validate_json(pacer.state.model_dump_json())
            pacer = Pacer("run", state)
            lost = state.sending.count if state.sending else 0
            assert len(pacer.in_doubt()) == min(lost, TOLD)
            doubtful += lost
        else:
            due = pacer.wait_s(now)
            message = pacer.take(now)
            assert (message is not None) == (due == 0.0)
            if message is None:
                continue
            said = message.notice.kind
            assert now - attempts.get(said, -1e9) >= GAP_S - 1e-6
            attempts[said] = now
            if not data.draw(st.booleans()):
                continue  # it stays on its way
            if step == "sent":
                arrived += 1 + message.more
                pacer.sent()
            else:
                pacer.failed(now)
        assert arrived + doubtful + pacer.waiting == offered
        assert all(len(bucket.newest) <= TOLD for bucket in pacer.state.waiting.values())
        assert len(pacer.state.keys) <= REMEMBERED
        assert len(pacer.state.waiting) <= len(KINDS)
