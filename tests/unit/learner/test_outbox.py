"""The outbox against a model of it: order, bounds, what is dropped and what never is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.protocol.messages import LearnerMessage, Observation, Receipt
from oven_learner.link.outbox import BUILD_BATCH, MAX_BATCH, OVERHEAD_BYTES, LearnerOutbox, QueuedMessage

WIRE = 100


def observation(n: int) -> Callable[[], LearnerMessage]:
    return lambda: Observation(incarnation=1, n=n, tick=n, step=n, progress=0.0, metrics={})


def receipt(n: int) -> Callable[[], LearnerMessage]:
    return lambda: Receipt(incarnation=1, n=n, actuator="rate", status="applied", tick=n, step=n)


def write(factory: Callable[[], LearnerMessage]) -> QueuedMessage:
    message = factory()
    return QueuedMessage("subject", bytes(WIRE), f"1-{message.n}", 1, message.n, None)


def outbox(limit: int = 1000) -> LearnerOutbox:
    return LearnerOutbox(write, limit * (WIRE + OVERHEAD_BYTES))


def collect(box: LearnerOutbox) -> None:
    while box.collect():
        pass


Moves = st.lists(st.sampled_from(["observe", "receipt", "collect", "take", "settle", "settle half"]), max_size=80)


@given(moves=Moves, limit=st.integers(1, 6))
def test_the_outbox_keeps_order_and_drops_only_the_oldest_observations(moves: list[str], limit: int) -> None:
    box, number, lasting, settled = outbox(limit), 0, set[int](), list[int]()
    waiting: list[int] = []  # made, in order
    unmade: list[int] = []
    flying: list[int] = []
    dropped_count = 0
    for move in moves:
        match move:
            case "observe" | "receipt":
                number += 1
                unmade.append(number)
                if move == "receipt":
                    lasting.add(number)
                box.put((receipt if move == "receipt" else observation)(number), move == "observe")
            case "collect":
                collect(box)
                for n in unmade:
                    waiting.append(n)
                    observations = [m for m in waiting if m not in lasting]
                    if len(observations) > limit:
                        waiting.remove(observations[0])
                        dropped_count += 1
                unmade = []
            case "take":
                if not flying:
                    flying, waiting = waiting, []
                assert [letter.n for letter in box.take()] == flying
            case "settle" | "settle half" if flying:
                through = flying[-1] if move == "settle" else flying[len(flying) // 2]
                box.settle(through)
                settled += [n for n in flying if n <= through]
                flying = [n for n in flying if n > through]
        assert box.dropped_count == dropped_count
        assert len(box) == len(waiting) + len(unmade) + len(flying)
    collect(box)
    while letters := box.take():
        settled += [letter.n for letter in letters]
        box.settle(letters[-1].n)
    assert settled == sorted(set(settled)), "once, and in order"
    assert lasting <= set(settled)
    assert number == len(settled) + box.dropped_count


def test_messages_in_flight_are_handed_out_again_until_settled() -> None:
    box = outbox(limit=2)
    for n in range(1, 4 * MAX_BATCH):
        box.put(receipt(n), False)
    collect(box)
    first = box.take()
    assert [letter.n for letter in first] == list(range(1, MAX_BATCH + 1))
    for n in range(1000, 1100):
        box.put(observation(n), True)
    collect(box)
    assert box.dropped_count == 98
    assert box.take() is first
    box.settle(MAX_BATCH - 1)
    assert [letter.n for letter in box.take()] == [MAX_BATCH]
    box.settle(MAX_BATCH)
    assert [letter.n for letter in box.take()][:1] == [MAX_BATCH + 1]


def test_a_message_that_cannot_be_made_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    box = outbox()

    def broken() -> LearnerMessage:
        raise ValueError("no number")

    for factory in (observation(1), broken, observation(3)):
        box.put(factory, True)
    collect(box)
    assert [letter.n for letter in box.take()] == [1, 3]
    assert "cannot build a message, so it is omitted: no number" in caplog.text


def test_unbuilt_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_learner.link.outbox.MAX_UNBUILT", 10)
    box = outbox()
    for n in range(1, 101):
        box.put(receipt(n) if n == 50 else observation(n), n != 50)
    assert box.collect() == BUILD_BATCH
    collect(box)
    sent = [letter.n for letter in box.take()]
    assert sent == [*range(1, BUILD_BATCH + 1), 50, *range(91, 101)]
    assert box.dropped_count == 100 - len(sent)


def test_a_large_message_ends_a_batch() -> None:
    box = LearnerOutbox(lambda factory: QueuedMessage("subject", bytes(200_000), "1-1", 1, factory().n, None))
    for n in range(1, 20):
        box.put(observation(n), True)
    collect(box)
    assert len(box.take()) == 6
