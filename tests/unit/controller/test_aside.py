"""What makes way for training does so, and starts all the same where it may not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core import cpu_affinity
from oven_core.cpu_affinity import CoreSplit

SHOW = """
import os
from oven_core.cpu_affinity import yield_cpu_to_training
before = len(os.sched_getaffinity(0))
yield_cpu_to_training()
print(os.nice(0), os.sched_getscheduler(0), before, len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_a_process_of_the_stack_has_a_lower_priority() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True)
    niceness, scheduler, before, after = map(int, done.stdout.split())
    assert niceness == min(19, os.nice(0) + cpu_affinity.NICENESS) and scheduler == os.SCHED_BATCH
    assert after == max(1, before // 2)


def test_a_sandbox_that_forbids_priorities_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "nice", forbidden)
    monkeypatch.setattr(os, "sched_setaffinity", forbidden, raising=False)
    cpu_affinity.yield_cpu_to_training()


@given(st.sets(st.integers(0, 200), min_size=1))
def test_every_core_belongs_to_the_trainer_or_the_stack(cores: set[int]) -> None:
    split = CoreSplit.split(cores)
    assert split.training | split.stack == cores and not split.training & split.stack
    assert split.stack, "the stack always has one"
    assert len(cores) == 1 or 0 <= len(split.training) - len(split.stack) <= 1


THEN = """\
cpu  300 50 60 1000 5 0 5 0 0 0
cpu0 200 10 30 400 5 0 5 0 0 0
cpu1 100 40 30 600 0 0 0 0 0 0
intr 12345 0 0
"""
NOW = """\
cpu  380 130 60 1040 5 0 5 0 0 0
cpu0 280 20 30 410 5 0 5 0 0 0
cpu1 100 110 30 630 0 0 0 0 0 0
intr 12345 0 0
"""


def test_niced_processes_do_not_count_as_load() -> None:
    assert cpu_affinity.core_load(THEN, NOW, [0]) == 0.8
    assert cpu_affinity.core_load(THEN, NOW, [1]) == 0.0, "70 of its 100 ticks were niced"
    assert cpu_affinity.core_load(THEN, NOW, [0, 1]) == 0.4
    assert cpu_affinity.core_load(THEN, THEN, [0]) == cpu_affinity.core_load(THEN, NOW, [7]) == 1.0, (
        "not counted: nobody may count on it"
    )


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_the_stack_uses_the_trainers_cores_while_they_are_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sleeping process is moved there, and off again, by what a file in the form of /proc/stat says."""
    stat = tmp_path / "stat"
    user = {core: 0 for core in os.sched_getaffinity(0)}
    total = dict(user)

    def say(busy: int) -> None:
        for core in user:
            user[core], total[core] = user[core] + busy, total[core] + 100
        lines = (f"cpu{core} {user[core]} 0 0 {total[core] - user[core]} 0 0 0 0" for core in user)
        (tmp_path / "new").write_text("\n".join(lines))
        (tmp_path / "new").rename(stat)

    def settle(busy: int, cores: frozenset[int]) -> None:
        deadline = time.monotonic() + 60
        while os.sched_getaffinity(child.pid) != cores:
            assert time.monotonic() < deadline
            say(busy)
            time.sleep(0.001)

    say(0)
    monkeypatch.setattr(cpu_affinity, "_STAT", stat)
    monkeypatch.setattr(cpu_affinity, "MEASURE_INTERVAL_S", 0.001)
    monkeypatch.setattr(cpu_affinity, "SUFFICIENT_CORES", 1 << 20)
    split = CoreSplit.split(user)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.sched_setaffinity(child.pid, split.stack)
        cpu_affinity.follow_trainer_load(child.pid, split)
        settle(0, split.training | split.stack)
        settle(100, split.stack)
        settle(0, split.training | split.stack)
        child.communicate(b"\n")
