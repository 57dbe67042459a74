"""The outbox of a recipient: at most one message per kind and minute, no notice lost, bounded memory."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oven_controller.notify.message import Message, Notice
from oven_controller.notify.outbox import GAP_S, MAX_KEYS, MAX_WAITING, Outbox
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
    notices = outbox.next_batch(now)
    assert notices
    message = Message("run", notices, outbox.omitted)
    outbox.mark_sent(notices, outbox.omitted, now)
    return message


def test_the_first_notice_is_sent_at_once_and_those_of_the_next_minute_are_merged() -> None:
    outbox = Outbox()
    outbox.add(notice(0))
    assert send(outbox, 0.0).other_count == 0
    for number in range(1, 31):
        outbox.add(notice(number))
    assert outbox.next_batch(59.9) == []
    message = send(outbox, 60.0)
    assert (message.notice.key, message.other_count, len(message.notices)) == ("k30", 29, MAX_WAITING)
    assert message.text.splitlines()[:4] == ["text 30", "command 30", "and 29 more:", "- title 26 (command 26)"]
    assert message.text.splitlines()[-1] == "- 25 older notices"
    assert message.fields == {
        "run": "run", "merged": 29, "key": "k30", "kind": "applied", "severity": "info", "step": 30,
        "command": "command 30",
    }  # fmt: skip


def test_a_message_includes_all_notices_that_wait_and_the_most_severe_one_leads() -> None:
    outbox = Outbox()
    outbox.add(notice(0))
    send(outbox, 0.0)
    for number in (1, 2):
        outbox.add(notice(number))
    outbox.add(notice(8, "died", "error"))
    outbox.add(notice(9, "held", "warning"))
    message = send(outbox, 1.0)
    assert [n.key for n in message.notices] == ["k1", "k2", "k9", "k8"] and outbox.count() == 0


def test_after_a_failure_nothing_is_sent_for_a_minute() -> None:
    outbox = Outbox()
    outbox.add(notice(0))
    outbox.failed_at = 10.0
    outbox.add(notice(1, "held"))
    assert outbox.next_batch(69.0) == []
    assert [n.key for n in outbox.next_batch(70.0)] == ["k0", "k1"]


def test_severe_notices_are_listed_longest() -> None:
    outbox = Outbox()
    outbox.add(notice(0, "advice", "warning"))
    for number in range(1, 40):
        outbox.add(notice(number))
    assert "k0" in [n.key for n in outbox.next_batch(0.0)]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_at_most_one_message_per_kind_and_minute_no_notice_lost_and_bounded_memory(data: Any) -> None:
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
            if not outbox.next_batch(now):
                continue
            if step == "fail":
                outbox.failed_at = now
                continue
            message = send(outbox, now)
            kinds = {n.kind for n in message.notices}
            assert any(now - sent_at.get(kind, -1e9) >= GAP_S - 1e-6 for kind in kinds)
            sent_at.update(dict.fromkeys(kinds, now))
            arrived += 1 + message.other_count
        assert arrived + outbox.count() == added
        assert len(outbox.waiting) <= MAX_WAITING and len(outbox.keys) <= MAX_KEYS
