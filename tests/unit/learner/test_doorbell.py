"""When the relay is woken for new messages: soon, and not at each look."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from oven_learner.link.doorbell import Doorbell, look_pause_s, ring
from oven_learner.link.pipes import SharedNumbers


@pytest.mark.parametrize(
    ("silent_s", "pause_s"), [(0, 0.0005), (0.01, 0.0005), (0.1, 0.002), (0.25, 0.005), (60, 0.005)]
)
def test_a_message_waits_for_a_small_share_of_a_step(silent_s: float, pause_s: float) -> None:
    assert look_pause_s(silent_s) == pytest.approx(pause_s)


def test_it_rings_once_per_message_and_ends_with_its_reader() -> None:
    numbers = SharedNumbers()
    bell_in, bell_out = os.pipe()
    bell = Doorbell(bell_in)
    thread = threading.Thread(target=ring, args=(numbers, bell_out, 0.0), daemon=True)
    thread.start()
    for _ in range(3):
        numbers.cells[numbers.HAS_SENT] = 1
        assert select.select([bell_in], [], [], 60)[0], "it rang"
        assert not numbers.cells[numbers.HAS_SENT]
        bell.wait(60)
        assert not select.select([bell_in], [], [], 0)[0], "it rang once"
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
