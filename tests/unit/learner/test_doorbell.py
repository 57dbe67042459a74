"""When the relay is woken for new messages: soon, and not at each look."""

from __future__ import annotations

import os
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from oven_learner.link.doorbell import LOOK_S, LOOK_SHARE, MAX_LOOK_S, Doorbell, look_pause_s, ring
from oven_learner.link.pipes import SharedNumbers


@given(st.floats(0, 1e6))
def test_a_message_waits_for_a_small_share_of_a_step(silent_s: float) -> None:
    assert LOOK_S <= look_pause_s(silent_s) <= min(max(LOOK_S, LOOK_SHARE * silent_s), MAX_LOOK_S)


def test_it_rings_once_per_message_and_ends_with_its_reader() -> None:
    numbers = SharedNumbers()
    bell_in, bell_out = os.pipe()
    bell = Doorbell(bell_in)
    thread = threading.Thread(target=ring, args=(numbers, bell_out, 0.0), daemon=True)
    thread.start()
    for _ in range(3):
        numbers.cells[numbers.HAS_SENT] = 1
        start = time.monotonic()
        bell.wait(60)
        assert time.monotonic() - start < 60 and not numbers.cells[numbers.HAS_SENT], "it rang, and was reset"
    bell.wait(0.01)  # nothing rings, so this returns after the timeout
    bell.close()
    numbers.cells[numbers.HAS_SENT] = 1
    thread.join(60)
    assert not thread.is_alive()
    os.close(bell_out)
    numbers.close()


def test_a_bell_without_a_worker_only_waits() -> None:
    bell_in, bell_out = os.pipe()
    bell = Doorbell(bell_in)
    os.close(bell_out)
    start = time.monotonic()
    bell.wait(0.02)
    assert time.monotonic() - start >= 0.02
    bell.close()
