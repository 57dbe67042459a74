"""A long run for measurements: a signed log.jsonl as a GRPO run of hours leaves it, with any number of events.

Each tick has an observation of METRICS metrics and the mesh's StepClosed; every CYCLE ticks a proposal, a ballot, a
decision and a receipt. The keys are the run's own, so readers verify every signature of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

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

LR = "optimizer.lr_scale"
AGENTS = ("curriculum", "lr", "prior")
METRICS = 26
"""As many as the GRPO recipe publishes."""
CYCLE = 100
DECIDED = 4
"""Events of a proposal that is adopted and applied."""
BEGAN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class LongLog:
    """The lines of a run's log, in order."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._on = Subjects(folder.run)
        self._signers = {role: Signer(Credentials.load(folder.add_user(role, role))) for role in ("learner", "mesh")}
        self._seq = self._n = 0

    def write(self, events: int) -> None:
        """Raises OSError where the disk does not take it."""
        with self._folder.export.open("w") as out:
            out.writelines(line + "\n" for line in islice(self.lines(), events))
        self._folder.write_info(self._folder.info().model_copy(update={"ended": "completed"}))

    def lines(self) -> Iterator[str]:
        """Without end."""
        keys = {role: signer.public for role, signer in self._signers.items()}
        spec = ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.01, high=100, value=1.0)
        metrics = (MetricSpec(name="reward", better="up"), MetricSpec(name="eval/accuracy", held_out=True))
        begun = RunStarted(
            **self._learner(), recipe="bench", horizon=Horizon(), actuators=(spec,), metrics=metrics, keys=keys
        )
        yield self._line(self._on.run, begun, "learner")
        for name in AGENTS:
            yield self._line(self._on.agent(name), AgentStatus(state="joined", moves=(LR,), speciality=(LR,)))
        value, tick = 1.0, 0
        while True:
            tick += 1
            yield self._line(self._on.observation, self._observation(tick), "learner")
            yield self._line(self._on.step(tick), StepClosed(tick=tick), "mesh")
            if tick % CYCLE == 0:
                before, value = value, round(math.exp(math.sin(tick / CYCLE)), 3)
                yield from self._decided(tick, before, value)

    @staticmethod
    def last_step(events: int) -> int:
        """The step of the newest observation among so many events."""
        cycle = 2 * CYCLE + DECIDED
        whole, rest = divmod(events - 1 - len(AGENTS), cycle)
        return whole * CYCLE + min(CYCLE, (rest + 1) // 2)

    @staticmethod
    def decided(events: int) -> int:
        """Decisions among so many events."""
        return max(0, events - 1 - len(AGENTS) + 1) // (2 * CYCLE + DECIDED)

    def _observation(self, tick: int) -> Observation:
        level = 1 - math.exp(-tick / 100_000)
        metrics = {f"gauge/{n}": level + 0.1 * math.sin(tick * (n + 1)) for n in range(METRICS - 4)}
        metrics |= {"reward": level, "loss": -level, "grad_norm": 1.0 + math.sin(tick), "learning_rate": 2e-5}
        if tick % 20 == 0:
            metrics["eval/accuracy"] = level
        return Observation(**self._learner(), tick=tick, step=tick, progress=0.5, metrics=metrics)

    def _decided(self, tick: int, before: float, value: float) -> Iterator[str]:
        ballot = f"{tick:012d}-00"
        vote = Vote(actuator=LR, stance="propose", value=value, tick=tick, confidence=0.9, rationale="as measured")
        yield self._line(self._on.vote("lr"), vote)
        opened = BallotOpened(
            id=ballot,
            actuator=LR,
            proposal=value,
            opened_by="lr",
            tick=tick,
            closes_at_tick=tick + 3,
            eligible=AGENTS,
        )
        yield self._line(self._on.ballot(ballot), opened, "mesh")
        tally = tuple(TallyLine(agent=name, stance="for", confidence=0.9, weight=0.9) for name in AGENTS)
        decision = Decision(
            id=ballot,
            ballot=ballot,
            actuator=LR,
            verdict="adopted",
            value=value,
            before=before,
            reason="three agents of three were for it",
            tally=tally,
            tick=tick,
            apply_at_tick=tick + 1,
            expires_at_tick=tick + 20,
        )
        yield self._line(self._on.decision(ballot), decision, "mesh")
        receipt = Receipt(
            **self._learner(),
            decision_id=ballot,
            actuator=LR,
            status="applied",
            before=before,
            after=value,
            tick=tick,
            step=tick,
        )
        yield self._line(self._on.receipt, receipt, "learner")

    def _learner(self) -> dict[str, int]:
        self._n += 1
        return {"incarnation": 1, "n": self._n}

    def _line(self, subject: str, body: Message, by: str = "") -> str:
        self._seq += 1
        data, message_id = body.wire(), f"1-{self._n}" if by == "learner" else ""
        signature = self._signers[by].sign(subject, message_id, data) if by else ""
        at = BEGAN + timedelta(milliseconds=50 * self._seq)
        event = Event(self._seq, subject, data, at, body, message_id=message_id, signature=signature)  # type: ignore[arg-type]
        return event.line()
