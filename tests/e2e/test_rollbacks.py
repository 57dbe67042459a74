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


def of(events: list[Event], kind: type[T]) -> list[T]:
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
            "rules.reversals=1000000",
            "rules.harm_charge=0",
            *rules,
            f"agents={SCRIPT}",
        )
        for part in ("--set", rule)
    ]
    code, said = oven("run", "--run", run, *settings, "--", sys.executable, str(SCRIPT), str(output), str(limit))
    assert code == 0, said
    return oven.events(run), said


@pytest.mark.parametrize("restart", [False, True])
def test_a_run_goes_on_rightly_after_it_was_sent_back(oven: Oven, tmp_path: Path, restart: bool) -> None:
    run = f"back-{restart}".lower()
    events, said = sent(oven, run, tmp_path, 0 if restart else 1_000_000)
    assert said.count("trained to the end") == 1, "what follows the training waits for its end"

    [back] = [receipt for receipt in of(events, Receipt) if receipt.actuator == "run.rollback"]
    assert back.status == "applied" and isinstance(back.after, float) and isinstance(back.before, float)
    assert back.after <= sent_back.BACK_TO < back.before
    seen = of(events, Observation)
    assert [one.tick for one in seen] == list(range(1, sent_back.STEPS + 1)), "the budget counts what was thrown away"
    ahead, behind = int(back.before), int(back.after)
    assert [one.step for one in seen] == [*range(1, ahead + 1), *range(behind + 1, behind + len(seen) - ahead + 1)]
    assert len(seen) - ahead > 100

    starts, ends = of(events, RunStarted), of(events, RunEnded)
    if restart:
        assert [(one.incarnation, one.tick, one.step) for one in starts] == [(1, 0, 0), (2, ahead, behind)]
        assert ends[0].reason == "stopped" and f"rolled back from step {ahead} to step {behind}" in ends[0].detail
        assert "the learner is restarted" in said
        clips = [receipt for receipt in of(events, Receipt) if receipt.actuator == "grad.clip"]
        last = [one.after for one in clips if one.incarnation == 1 and one.status == "applied"][-1]
        assert {spec.name: spec.value for spec in starts[1].actuators}["grad.clip"] == last, "knobs stay"
    assert len(starts) == len(ends) == 1 + restart and ends[-1].reason == "completed"

    adopted = [one for one in of(events, Decision) if one.verdict == "adopted"]
    answered = Counter(receipt.decision_id for receipt in of(events, Receipt))
    assert answered == Counter(one.id for one in adopted), "each once"
    late = [receipt for receipt in of(events, Receipt) if receipt.status == "expired"]
    assert all(one.tick in (ahead, sent_back.STEPS) for one in late), "only what was on its way at an end"
    assert any(one.tick == ahead for one in late) == restart
    for one in adopted:
        receipt = next(receipt for receipt in of(events, Receipt) if receipt.decision_id == one.id)
        assert receipt.tick + 1 >= one.apply_at_tick or receipt.status == "expired"

    clip = [one.tick for one in adopted if one.actuator == "grad.clip"]
    cooldown = starts[0].rules.cooldown_ticks
    assert all(later - earlier >= cooldown for earlier, later in itertools.pairwise(clip))
    assert any(
        earlier <= ahead < later <= earlier + 2 * cooldown + DELAY for earlier, later in itertools.pairwise(clip)
    ), "and one of them across the rollback"
    assert len([tick for tick in clip if tick > ahead]) > 5

    opened = of(events, BallotOpened)
    closed = Counter(one.ballot for one in of(events, Decision) if one.ballot)
    assert {ballot.id for ballot in opened} == set(closed) and set(closed.values()) == {1}
    assert replay(events, run).same, "byte for byte"
