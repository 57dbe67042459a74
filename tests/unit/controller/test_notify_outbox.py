"""The outbox of a recipient: at most one message of a kind per minute, no notice lost, bounded memory."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oven_controller.notify.message import LISTED, Message, Notice
from oven_controller.notify.outbox import GAP_S, REMEMBERED_KEYS, Outbox
from oven_runs.settings.notifications import KINDS, Kind, Severity


def notice(number: int, kind: Kind = "applied", severity: Severity = "info") -> Notice:
    return Notice(
        key=f"k{number}",
        kind=kind,
        severity=severity,
        step=number,
        title=f"title {number}",
        text=f"text {number}",
        command=f"command {number}",
    )


def send(outbox: Outbox, now: float) -> Message:
    notices = outbox.due(now)
    assert notices
    message = Message.of("run", notices, outbox.omitted_with(notices))
    outbox.sent(notices, now)
    return message


def test_the_first_notice_is_sent_at_once_and_those_of_the_next_minute_are_merged() -> None:
    outbox = Outbox()
    outbox.add(notice(0))
    assert (outbox.wait_s(0.0), send(outbox, 0.0).merged) == (0.0, 0)
    for number in range(1, 16):
        outbox.add(notice(number))
    assert outbox.due(59.9) == [] and outbox.wait_s(20.0) == 40.0
    message = send(outbox, 60.0)
    assert (message.notice.key, message.merged, len(message.others)) == ("k15", 14, LISTED - 1)
    assert message.text.splitlines()[:4] == ["text 15", "command 15", "and 14 more:", "- title 11 (command 11)"]
    assert message.text.splitlines()[-1] == "- 10 older"
    assert message.fields == {
        "run": "run", "merged": 14, "key": "k15", "kind": "applied", "severity": "info", "step": 15,
        "command": "command 15",
    }  # fmt: skip


def test_the_message_that_a_run_ended_includes_all_notices_that_wait() -> None:
    outbox = Outbox()
    outbox.add(notice(0))
    send(outbox, 0.0)
    for number in (1, 2):
        outbox.add(notice(number))
    outbox.add(notice(9, "ended"))
    message = send(outbox, 1.0)
    assert (message.notice.kind, [n.key for n in message.others], outbox.count()) == ("ended", ["k1", "k2"], 0)


def test_after_a_failure_nothing_is_sent_for_a_minute() -> None:
    outbox = Outbox()
    outbox.add(notice(0))
    outbox.failed(10.0)
    outbox.add(notice(1, "held"))
    assert outbox.due(69.0) == [] and outbox.wait_s(69.0) == 1.0
    assert [n.key for n in outbox.due(70.0)] == ["k0"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_at_most_one_message_of_a_kind_per_minute_no_notice_lost_and_bounded_memory(data: Any) -> None:
    outbox, now, added, arrived = Outbox(), 0.0, 0, 0
    sent_at: dict[str, float] = {}
    for step in data.draw(st.lists(st.sampled_from(["add", "burst", "wait", "send", "fail", "restart"]), max_size=60)):
        if step in ("add", "burst"):
            for _ in range(1 if step == "add" else 40):
                kind: Kind = data.draw(st.sampled_from(KINDS)) if step == "add" else "held"
                outbox.add(notice(added, kind))
                added += 1
        elif step == "wait":
            now += data.draw(st.floats(0.0, 200.0))
        elif step == "restart":
            outbox = Outbox.model_validate_json(outbox.model_dump_json())
        else:
            assert bool(outbox.due(now)) == (outbox.wait_s(now) == 0)
            if not outbox.due(now):
                continue
            if step == "fail":
                outbox.failed(now)
                continue
            message = send(outbox, now)
            assert now - sent_at.get(message.notice.kind, -1e9) >= GAP_S - 1e-6
            sent_at[message.notice.kind] = now
            arrived += 1 + message.merged
        assert arrived + outbox.count() == added
        assert len(outbox.waiting) <= LISTED * len(KINDS) and len(outbox.keys) <= REMEMBERED_KEYS
