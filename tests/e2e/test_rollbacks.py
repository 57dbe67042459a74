"""A rollback, and more than a hundred steps after it: in place, and by a new process that the stack starts.

Ticks go on while steps go back; windows, cool-downs, expiry and the replay are right across both.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import TypeVar

import pytest
from tests.e2e.conftest import Oven
from tests.support import sent_back

from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    BallotOpened,
    Decision,
    Message,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
)
from oven_runs.log.replay import replay

pytestmark = pytest.mark.e2e
T = TypeVar("T", bound=Message)

SCRIPT = Path(sent_back.__file__)
DELAY = 3


def bodies_of(events: list[Event], kind: type[T]) -> list[T]:
    return [event.body for event in events if isinstance(event.body, kind)]


def sent(oven: Oven, run: str, output: Path, limit: int) -> tuple[list[Event], str]:
    rules = ("rules.autonomy=auto", f"rules.apply_delay_ticks={DELAY}", "rules.max_interventions=1000")
    settings = [
        part
        for rule in (
            "lockstep=true",
            "charge_rollbacks=true",
            "kg=false",
            "rules.newcomers=full",
            "rules.evidence_kinds=1",
            "rules.reversals=1000000",
            "rules.harm_charge=0",
            *rules,
            f"agents={SCRIPT}",
        )
        for part in ("--set", rule)
    ]
    code, text = oven("run", "--run", run, *settings, "--", sys.executable, str(SCRIPT), str(output), str(limit))
    assert code == 0, text
    return oven.events(run), text


@pytest.mark.parametrize("restart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_continues_correctly_after_a_rollback(oven: Oven, tmp_path: Path, restart: bool) -> None:
    run = f"back-{restart}".lower()
    events, text = sent(oven, run, tmp_path, 0 if restart else 1_000_000)
    assert text.count("trained to the end") == 1, "what follows the training waits for its end"

    [back] = [receipt for receipt in bodies_of(events, Receipt) if receipt.actuator == "run.rollback"]
    assert back.status == "applied" and isinstance(back.after, float) and isinstance(back.before, float)
    assert back.after <= sent_back.BACK_TO < back.before
    seen = bodies_of(events, Observation)
    assert [observation.tick for observation in seen] == list(range(1, sent_back.STEPS + 1)), (
        "the budget counts what was thrown away"
    )
    ahead, behind = int(back.before), int(back.after)
    assert [observation.step for observation in seen] == [
        *range(1, ahead + 1),
        *range(behind + 1, behind + len(seen) - ahead + 1),
    ]
    assert len(seen) - ahead > 100

    starts, ends = bodies_of(events, RunStarted), bodies_of(events, RunEnded)
    if restart:
        assert [(start.incarnation, start.tick, start.step) for start in starts] == [(1, 0, 0), (2, ahead, behind)]
        assert ends[0].reason == "stopped" and f"rolled back from step {ahead} to step {behind}" in ends[0].detail
        assert "the learner is restarted" in text
        clips = [receipt for receipt in bodies_of(events, Receipt) if receipt.actuator == "grad.clip"]
        last = [receipt.after for receipt in clips if receipt.incarnation == 1 and receipt.status == "applied"][-1]
        assert {spec.name: spec.value for spec in starts[1].actuators}["grad.clip"] == last, "knobs stay"
    assert len(starts) == len(ends) == 1 + restart and ends[-1].reason == "completed"

    adopted = [decision for decision in bodies_of(events, Decision) if decision.verdict == "adopted"]
    answered = Counter(receipt.decision_id for receipt in bodies_of(events, Receipt))
    assert answered == Counter(decision.id for decision in adopted), "each once"
    late = [receipt for receipt in bodies_of(events, Receipt) if receipt.status == "expired"]
    assert all(receipt.tick in (ahead, sent_back.STEPS) for receipt in late), "only what was on its way at an end"
    assert any(receipt.tick == ahead for receipt in late) == restart
    for decision in adopted:
        receipt = next(receipt for receipt in bodies_of(events, Receipt) if receipt.decision_id == decision.id)
        assert receipt.tick + 1 >= decision.apply_at_tick or receipt.status == "expired"

    clip = [decision.tick for decision in adopted if decision.actuator == "grad.clip"]
    cooldown = starts[0].rules.cooldown_ticks
    assert all(later - earlier >= cooldown for earlier, later in itertools.pairwise(clip))
    assert any(
        earlier <= ahead < later <= earlier + 2 * cooldown + DELAY for earlier, later in itertools.pairwise(clip)
    ), "and one of them across the rollback"
    assert len([tick for tick in clip if tick > ahead]) > 5

    opened = bodies_of(events, BallotOpened)
    closed = Counter(decision.ballot for decision in bodies_of(events, Decision) if decision.ballot)
    assert {ballot.id for ballot in opened} == set(closed) and set(closed.values()) == {1}
    assert replay(events, run).same, "byte for byte"
