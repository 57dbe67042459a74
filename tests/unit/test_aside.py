"""What makes way for training does so, and starts all the same where it may not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from oven_controller.stack import aside

SHOW = """
import os
from oven_controller.stack.aside import give_way
before = len(os.sched_getaffinity(0))
give_way()
print(os.nice(0), os.sched_getscheduler(0), before, len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_a_process_of_the_stack_gives_way() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True)
    niceness, scheduler, before, after = map(int, done.stdout.split())
    assert niceness == min(19, os.nice(0) + aside.NICENESS) and scheduler == os.SCHED_BATCH
    assert after == max(1, before // 2)


def test_a_sandbox_that_forbids_it_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "nice", forbidden)
    monkeypatch.setattr(os, "sched_setaffinity", forbidden, raising=False)
    aside.give_way()
