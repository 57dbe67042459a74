"""The attacks of `bench sandbox` against the real sandbox, and one of each goal against the control first."""

from __future__ import annotations

from typing import get_args

import pytest

from oven_bench.sandbox.attack import KINDS, OWN, PROGRAMS, Attack, Goal
from oven_bench.sandbox.command import WITH_CTYPES, honest, shown, stopped
from oven_llm.sandbox.backend_detection import detect_support
from oven_llm.sandbox.profiles import REPL

BACKENDS = detect_support().backends
pytestmark = pytest.mark.skipif(not BACKENDS, reason="this machine has no backend of the sandbox")
ATTACKS = [*KINDS, *OWN]
ANYWHERE = {
    "read a file", "write a file", "list a folder", "TCP", "endless loop", "output flood", "FINAL swallowed", "removal",
    "a signal as a file's owner", "sudden exit",
}  # fmt: skip
"""One attack of each goal, of those that a plain child can do in a container without privileges, too."""


def test_the_control_is_broken_into_by_an_attack_of_every_goal() -> None:
    """So what is stopped below would have got through."""
    of_each = [attack for attack in ATTACKS if attack.name in ANYWHERE]
    assert {attack.goal for attack in of_each} == set(get_args(Goal))
    there, not_here = shown(of_each)
    assert not_here == [] and there == of_each


def test_an_attack_that_reaches_its_goal_is_seen() -> None:
    allowed = Attack("prints", "held", "print('HELD')")
    assert not stopped(allowed, WITH_CTYPES, BACKENDS[0])
    harmless = Attack("harmless", "secret", "print(1)")
    assert shown([harmless]) == ([], ["harmless"])


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_the_strongest_backend_stops_it(attack: Attack) -> None:
    assert stopped(attack, WITH_CTYPES, BACKENDS[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_honest_programs_run(backend: str) -> None:
    lacking = {"numpy"}
    if backend == "monty":
        lacking |= {"generators", "statistics", "heapq", "textwrap", "io.StringIO"}
    assert set(honest(REPL, backend)) >= {program.name for program in PROGRAMS} - lacking
