"""An attack on an honest run, and the properties that the attack must not change. For the tests of hostile agents."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from tests.support.honest_run import HOSTILE, ON, RUN, HonestRun, Hostile, Played, running

from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    Decision,
    RunEnded,
    Vote,
)
from oven_core.protocol.names import log_stream, votes_stream
from oven_core.protocol.subjects import UNSIGNED

LOG, VOTES = log_stream(RUN), votes_stream(RUN)
FORGED = Decision(
    id="000000000099-00", ballot="b", actuator="rate", verdict="adopted", value=9.0, reason="because", tally=(),
    tick=1, apply_at_tick=1, expires_at_tick=1000,
).wire()  # fmt: skip
DECISION = ON.decision("000000000099-00")
PROTECTED = [ON.run, ON.observation, ON.receipt, DECISION, ON.ballot("b"), ON.step(1), ON.outcome("o"), ON.answer("a")]
PROTECTED += [ON.operator("operator"), ON.vote("steady"), ON.agent("steady"), ON.alert("steady")]
ALLOWED = (ON.vote(HOSTILE), ON.agent(HOSTILE), ON.alert(HOSTILE))
VOTE = Vote(actuator="rate", stance="propose", value=9.0, tick=1, confidence=1.0).wire()

Attack = Callable[[HonestRun, Hostile, int], Awaitable[None]]


class Witness:
    """A client that counts the messages delivered on subjects that do not belong to agents."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.inboxes: list[str] = []
        """Where the learner's and the mesh's acknowledgements go: every agent sees that in the reply subjects."""

    async def hear(self, message: Msg) -> None:
        if message.subject.startswith(f"{ON.base}.") and names.kind(message.subject) not in (*UNSIGNED, "history"):
            self.received[message.subject] += 1
            if message.reply:
                self.inboxes.append(message.reply)


@pytest.fixture
async def plain(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Return the same run without an attack, computed once for all tests."""
    if not _plain:
        async with running(tmp_path_factory.mktemp("plain")) as run:
            _plain.append(await run.play())
    return _plain[0]


_plain: list[Played] = []


@contextlib.asynccontextmanager
async def attacked(folder: Path, attack: Attack, *, kg: bool = False) -> AsyncIterator[tuple[Played, Hostile, Witness]]:
    """Run with the attack before each tick."""
    witness = Witness()
    async with running(folder, kg=kg) as run, run.bus() as admin, run.hostile() as evil:
        await admin.subscribe(ON.all, witness.hear)
        await admin.flush()

        async def before(run: HonestRun, step: int) -> None:
            await attack(run, evil, step)

        played = await run.play(before)
        await admin.flush()
        logged = Counter(event.subject for event in played.events if not _from_agents(event))
        del logged[ON.run]  # the first of them was before the witness
        del witness.received[ON.run]
        assert witness.received == logged, "something was delivered on a protected subject that is not in the log"
        yield played, evil, witness


def _from_agents(event: Event) -> bool:
    return names.kind(event.subject) in UNSIGNED


def unchanged(played: Played, plain: Played) -> None:
    ended = [event.body for event in played.events if isinstance(event.body, RunEnded)]
    assert ended and not ended[-1].lockstep_timeouts, (ended, played.report)
    assert played.accepted == plain.accepted
    assert played.report.same and played.report.finished, played.report
    assert not [event for event in played.events if isinstance(event.body, Malformed) and not _from_agents(event)]
    assert len(plain.applied) > 3, "the run in itself decides nothing: this shows nothing"
