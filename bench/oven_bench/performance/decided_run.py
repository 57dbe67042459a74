"""A signed log of any length whose ballots, decisions and outcomes a real mesh computes, so that it can be replayed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from oven_bench.performance.example_run import AGENTS, SCALE, Entry, ExampleRun
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision, Horizon, Receipt, RunStarted, Vote
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer
from oven_runs.home.run_folder import RunFolder

CYCLE: Final = 40
"""Ticks between two proposals."""
RULES: Final = Rules(evidence_kinds=1, max_interventions=1_000_000, reversals=1_000_000).with_grants_for(AGENTS)
"""Rules that allow a decision in every cycle."""
_BEGIN: Final = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class DecidedRun:
    """A run in lockstep. In every tick, each agent reports that it is done. In every cycle, one agent proposes a value,
    the others vote, and the learner applies the decision."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._run = ExampleRun(folder.run, slowness=100_000)
        self._mesh = Mesh(folder.run)
        self._signers = {role: Signer(Credentials.load(folder.add_user(role, role))) for role in ("learner", "mesh")}
        self._seq = 0
        self._decisions: list[Decision] = []  # adopted, and not yet applied
        self._value = 1.0

    def write(self, events: int) -> None:
        """Write the run's first `events` events to its log.jsonl."""
        with self._folder.export.open("w") as out:
            out.writelines(event.line() + "\n" for event in islice(self.events(), events))
        self._folder.write_info(replace(self._folder.info(), ended="completed"))

    def events(self) -> Iterator[Event]:
        """Yield the log's events, without end."""
        for entry in self._inputs():
            event = self._next_event(entry)
            yield event
            outputs = self._mesh.step(event)
            while outputs:
                output = outputs.pop(0)
                if isinstance(output.message, Decision) and output.message.verdict == "adopted":
                    self._decisions.append(output.message)
                event = self._next_event(Entry("mesh", output.subject, output.message))
                yield event
                outputs += self._mesh.step(event)

    def _next_event(self, entry: Entry) -> Event:
        self._seq += 1
        data = entry.message.wire()
        message_id = f"1-{self._run.n}" if entry.author == "learner" else ""
        signer = self._signers.get(entry.author)
        signature = signer.sign(entry.subject, message_id, data) if signer else ""
        time = _BEGIN + timedelta(milliseconds=50 * self._seq)
        return Event(self._seq, entry.subject, data, time, entry.message, "", message_id, signature)  # type: ignore[arg-type]

    def _inputs(self) -> Iterator[Entry]:
        for entry in self._run.begin(Horizon(), {role: signer.public for role, signer in self._signers.items()}):
            if isinstance(entry.message, RunStarted):
                update = {"rules": RULES, "lockstep": True, "mesh_code": mesh_code_hash()}
                yield entry._replace(message=entry.message.model_copy(update=update))
            else:
                yield entry
        tick = 0
        while True:
            tick += 1
            yield self._run.observation(tick)
            if tick % CYCLE == 0:
                yield from self._votes(tick)
            for name in AGENTS:
                yield Entry("", self._run.on.agent(name), AgentStatus(state="done", tick=tick))
            while self._decisions:
                yield self._receipt(self._decisions.pop(0), tick)

    def _votes(self, tick: int) -> Iterator[Entry]:
        proposer = AGENTS[tick // CYCLE % len(AGENTS)]
        value = round(math.exp(math.sin(tick / CYCLE)), 3)
        for name in (proposer, *(name for name in AGENTS if name != proposer)):
            vote = Vote(
                actuator=SCALE,
                stance="propose" if name == proposer else "for",
                value=value if name == proposer else None,
                tick=tick,
                target="reward",
                expected_change=0.00002,
                horizon=20,
                confidence=0.9 if name == proposer else 0.7,
                rationale=f"the reward rose by 0.00001 per tick until tick {tick}, and its noise is 0.1",
                evidence=("signal:trend:reward",),
            )
            yield Entry("", self._run.on.vote(name), vote)

    def _receipt(self, decision: Decision, tick: int) -> Entry:
        before = self._value
        self._value = decision.value if isinstance(decision.value, float) else before
        stamp = self._run.stamp()
        receipt = Receipt(
            **stamp, decision_id=decision.id, actuator=SCALE, status="applied", before=before, after=self._value,
            tick=tick, step=tick,
        )  # fmt: skip
        return Entry("learner", self._run.on.receipt, receipt)
