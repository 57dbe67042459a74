"""A learner that is killed in the middle of a trial, twice, and a server that is away during a third: real processes,
one log. What the change tried is never what goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven
from tests.support import trial_learner
from tests.support.learner_side import RUN, Process, off_loop, serving
from tests.support.trial_learner import RATE, SAVED, STEPS, gate

from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    LearnerMessage,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
)
from oven_core.protocol.rules import Rules
from oven_core.protocol.trial_messages import BranchObservation, TrialEnded, TrialStarted
from oven_runs.log.replay import replay

pytestmark = pytest.mark.e2e

STEPS_TRIED, COOLED = 4, 2
CONTROL, CHANGE = 3, STEPS_TRIED + COOLED + 3
"""The third step of each arm, as its trial counts them."""
RULES = Rules(
    autonomy="auto", newcomers="full", trials="all", trial_share=1.0, trial_cooldown=COOLED,
    trial_steps={"scalar": STEPS_TRIED}, cooldown_ticks=0,
)  # fmt: skip
TENFOLD = f'''
"""Asks for a tenfold rate, soon after the loop has saved."""
from oven_agents import Agent

class Tenfold(Agent):
    moves = ("{RATE}",)
    speciality = ("{RATE}",)

    def vote(self, window):
        if not {SAVED} < window.last.step < {SAVED} + 3:
            return None
        return window.propose("{RATE}", 10.0, confidence=0.95, why="it is tried")
'''


@dataclass(frozen=True)
class Story:
    """What happened."""

    events: Sequence[Event]
    incarnations: Sequence[Sequence[LearnerMessage]]
    """What each of the learner's processes said."""
    weights: str
    """A digest, of the last one's end."""
    untouched: str
    """That of the same training without a controller."""


@pytest.fixture(scope="module")
def story(oven: Oven, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("story")
    alone = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVEN_MODE", "disabled")
        untouched = trial_learner.train(alone)
    events, weights = asyncio.run(_played(oven, folder))
    said = [event.body for event in events if isinstance(event.body, LearnerMessage)]
    incarnations = [[body for body in said if body.incarnation == number] for number in (1, 2, 3)]
    assert sum(map(len, incarnations)) == len(said)
    return Story(events, incarnations, weights, untouched)


async def _played(oven: Oven, folder: Path) -> tuple[Sequence[Event], str]:
    (folder / "config.json").write_text(json.dumps({"lockstep": True, "rules": RULES.model_dump()}))
    (folder / "tenfold.py").write_text(TENFOLD)
    host = f"from oven_agents.runtime.host import main; main([{str(folder / 'tenfold.py')!r}])"
    started: list[Process] = []
    async with serving(folder, ("tenfold",)) as server:

        def start(args: list[str], role: str, name: str) -> Process:
            env = server.env(role) | {"OVEN_RUN_DIR": str(folder)}
            started.append(Process(args, env, folder / f"{name}.log", oven.popen))
            return started[-1]

        def learner(number: int, *gates: int) -> tuple[Process, Path]:
            own = folder / f"gates-{number}"
            own.mkdir()
            if (folder / trial_learner.SAVE).exists():
                (own / trial_learner.SAVE).write_bytes((folder / trial_learner.SAVE).read_bytes())
            line = ["-m", "tests.support.trial_learner", str(own), ",".join(map(str, gates))]
            return start(line, "learner", f"learner-{number}"), own

        try:
            start(["-c", "from oven_core.replica.service import main; main([])"], "mesh", "mesh")
            start(["-c", host], "tenfold", "tenfold")
            await server.logged(lambda event: isinstance(event.body, AgentStatus) and event.body.state == "joined")
            for number, arm, played in ((1, 0, CONTROL), (2, 1, CHANGE)):
                process, own = learner(number, played)
                await server.logged(_played_step(number, arm, 2))
                process.kill()
                (folder / trial_learner.SAVE).write_bytes((own / trial_learner.SAVE).read_bytes())
            process, own = learner(3, CONTROL, CHANGE)
            await server.logged(_played_step(3, 0, 2))
            await server.kill()
            with await off_loop(gate(own, CONTROL).open, "wb"):
                pass
            with await off_loop(gate(own, CHANGE).open, "wb"):  # it is there: it has played on without a server
                await server.start()
            assert await process.ended() == 0, process.said()
            await server.logged(lambda event: isinstance(event.body, RunEnded))
            return await server.events(), process.said().split()[-1]
        finally:
            for process in started:
                process.kill()


def _played_step(incarnation: int, arm: int, count: int) -> Callable[[Event], bool]:
    """Whether the log has so many steps of an arm, as it is read."""
    seen = 0

    def wanted(event: Event) -> bool:
        nonlocal seen
        body = event.body
        seen += isinstance(body, BranchObservation) and body.incarnation == incarnation and body.arm == arm
        return seen == count

    return wanted


def test_each_resumed_run_begins_at_what_was_saved_before_the_trial(story: Story) -> None:
    starts = [body for body in (event.body for event in story.events) if isinstance(body, RunStarted)]
    assert [(body.incarnation, body.step) for body in starts] == [(1, 0), (2, SAVED), (3, SAVED)]
    orders = [body for body in (event.body for event in story.events) if isinstance(body, TrialStarted)]
    assert len(orders) == 3, "it was tried anew each time"


def test_the_end_is_bit_equal_to_a_training_that_nobody_touched(story: Story) -> None:
    assert story.weights == story.untouched


def test_a_trial_that_was_killed_has_no_end_and_no_outcome_and_its_decision_an_unknown_one(story: Story) -> None:
    bodies = [event.body for event in story.events]
    ended = [body for body in bodies if isinstance(body, TrialEnded)]
    orders = [body for body in bodies if isinstance(body, TrialStarted)]
    assert [(body.incarnation, body.trial, body.status, body.kept) for body in ended] == [
        (3, orders[2].id, "completed", 0)
    ]
    receipts = {body.decision_id: body.status for body in bodies if isinstance(body, Receipt)}
    tried = [order.arms[1].decisions[0] for order in orders]
    assert [receipts.get(id) for id in tried] == ["unknown", "unknown", "skipped"]
    outcomes = [body.decision_id for body in bodies if isinstance(body, Outcome)]
    assert outcomes == [tried[2]]


def test_the_branches_are_told_as_far_as_they_were_played(story: Story) -> None:
    def arms(messages: Sequence[LearnerMessage]) -> list[int]:
        return [body.arm for body in messages if isinstance(body, BranchObservation)]

    control = [0] * STEPS_TRIED
    assert [arms(messages) for messages in story.incarnations] == [
        [0, 0], [*control, 1, 1], [*control, *[1] * STEPS_TRIED],
    ]  # fmt: skip


def test_the_log_is_whole_and_replays_byte_for_byte(story: Story) -> None:
    for messages in story.incarnations:
        numbers = [body.n for body in messages]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))], "nothing lost, nothing twice, in order"
    (end,) = (body for body in story.incarnations[2] if isinstance(body, RunEnded))
    assert (end.reason, end.step, end.dropped_observations) == ("completed", STEPS, 0)
    ticks = [event.body.tick for event in story.events if isinstance(event.body, Observation)]
    assert ticks == sorted(set(ticks)), "no branch's ticks among the run's"
    assert [event.seq for event in story.events] == [*range(1, len(story.events) + 1)]
    report = replay(story.events, RUN)
    assert report.same and not report.pending
