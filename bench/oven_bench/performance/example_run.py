"""The messages of an example run, for a live feed or a log of any length.

Each tick has an observation of METRICS metrics. Now and then agents vote, and a decision is adopted and applied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    Horizon,
    Message,
    MetricSpec,
    Observation,
    Receipt,
    RunStarted,
    StepClosed,
    TallyLine,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer
from oven_runs.home.run_folder import RunFolder

SCALE = "optimizer.lr_scale"
AGENTS = ("curriculum", "lr", "prior")
METRICS = 26
"""As many as the GRPO recipe publishes."""


class Entry(NamedTuple):
    """A message with its subject. The author is `learner`, `mesh`, or empty for an agent."""

    author: str
    subject: str
    message: Message


class ExampleRun:
    """Builds the messages in order. `slowness` is the number of ticks over which the reward rises."""

    def __init__(self, run: str, slowness: float) -> None:
        self.on = Subjects(run)
        self.n = 0
        """Messages of the learner so far."""
        self._slowness = slowness

    def begin(self, horizon: Horizon, keys: Mapping[str, str] | None = None) -> Iterator[Entry]:
        spec = ActuatorSpec(name=SCALE, kind="scalar", scale="log", low=0.01, high=100, value=1.0)
        metrics = (MetricSpec(name="reward", better="up"), MetricSpec(name="eval/accuracy", held_out=True))
        started = RunStarted(
            **self.stamp(), recipe="bench", horizon=horizon, actuators=(spec,), metrics=metrics, keys=keys or {}
        )
        yield Entry("learner", self.on.run, started)
        for name in AGENTS:
            yield Entry("", self.on.agent(name), AgentStatus(state="joined", moves=(SCALE,)))

    def observation(self, tick: int) -> Entry:
        level = 1 - math.exp(-tick / self._slowness)
        metrics = {f"gauge/{n}": level + 0.1 * math.sin(tick * (n + 1)) for n in range(METRICS - 4)}
        metrics |= {"reward": level, "loss": -level, "grad_norm": 1.0 + math.sin(tick), "learning_rate": 2e-5}
        if tick % 20 == 0:
            metrics["eval/accuracy"] = level
        observation = Observation(**self.stamp(), tick=tick, step=tick, progress=0.5, metrics=metrics)
        return Entry("learner", self.on.observation, observation)

    def decision(self, tick: int, index: int, before: float, value: float) -> Iterator[Entry]:
        """A vote, a ballot, the decision and its receipt."""
        ballot = f"{tick:012d}-{index:02d}"
        vote = Vote(actuator=SCALE, stance="propose", value=value, tick=tick, confidence=0.9, rationale="as measured")
        yield Entry("", self.on.vote("lr"), vote)
        closes = {"closes_at_tick": tick + 3, "eligible": AGENTS}
        opened = BallotOpened(id=ballot, actuator=SCALE, proposal=value, opened_by="lr", tick=tick, **closes)
        yield Entry("mesh", self.on.ballot(ballot), opened)
        decision = Decision(
            id=ballot,
            ballot=ballot,
            actuator=SCALE,
            verdict="adopted",
            value=value,
            before=before,
            reason="three agents of three were for it",
            tally=tuple(TallyLine(agent=name, stance="for", confidence=0.9, weight=0.9) for name in AGENTS),
            tick=tick,
            apply_at_tick=tick + 1,
            expires_at_tick=tick + 20,
        )
        yield Entry("mesh", self.on.decision(ballot), decision)
        receipt = Receipt(
            **self.stamp(),
            decision_id=ballot,
            actuator=SCALE,
            status="applied",
            before=before,
            after=value,
            tick=tick,
            step=tick,
        )
        yield Entry("learner", self.on.receipt, receipt)

    def stamp(self) -> dict[str, int]:
        """Return the number of the learner's next message."""
        self.n += 1
        return {"incarnation": 1, "n": self.n}


class LongLog:
    """A signed log.jsonl as a GRPO run of hours leaves it. The keys are the run's own, so signatures are checked."""

    CYCLE = 100
    """Ticks between two decisions."""
    DECISION_EVENTS = 4
    BEGIN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._run = ExampleRun(folder.run, slowness=100_000)
        self._signers = {role: Signer(Credentials.load(folder.add_user(role, role))) for role in ("learner", "mesh")}

    def write(self, events: int) -> None:
        with self._folder.export.open("w") as out:
            out.writelines(line + "\n" for line in islice(self.lines(), events))
        self._folder.write_info(replace(self._folder.info(), ended="completed"))

    def lines(self) -> Iterator[str]:
        """The log's lines, without end."""
        for seq, entry in enumerate(self._entries(), 1):
            data = entry.message.wire()
            message_id = f"1-{self._run.n}" if entry.author == "learner" else ""
            signer = self._signers.get(entry.author)
            signature = signer.sign(entry.subject, message_id, data) if signer else ""
            time = self.BEGIN + timedelta(milliseconds=50 * seq)
            event = Event(seq, entry.subject, data, time, entry.message, message_id=message_id, signature=signature)  # type: ignore[arg-type]
            yield event.line()

    def _entries(self) -> Iterator[Entry]:
        run = self._run
        yield from run.begin(Horizon(), {role: signer.public for role, signer in self._signers.items()})
        value, tick = 1.0, 0
        while True:
            tick += 1
            yield run.observation(tick)
            yield Entry("mesh", run.on.step(tick), StepClosed(tick=tick))
            if tick % self.CYCLE == 0:
                before, value = value, round(math.exp(math.sin(tick / self.CYCLE)), 3)
                yield from run.decision(tick, 0, before, value)

    @classmethod
    def last_step(cls, events: int) -> int:
        """The step of the last observation in a log of this length."""
        cycles, rest = divmod(events - 1 - len(AGENTS), 2 * cls.CYCLE + cls.DECISION_EVENTS)
        return cycles * cls.CYCLE + min(cls.CYCLE, (rest + 1) // 2)

    @classmethod
    def decisions(cls, events: int) -> int:
        """The number of decisions in a log of this length."""
        return max(0, events - len(AGENTS)) // (2 * cls.CYCLE + cls.DECISION_EVENTS)
