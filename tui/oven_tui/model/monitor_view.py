"""The monitor's view: a fold over the log's events in bounded memory, without a clock or I/O.

Curves: oven_tui.model.metric_series. Decisions: the newest ENTRIES. Votes: the last of each agent per actuator, until
its ballot closes. Names from outside (metrics, agents, open ballots) are counted, and dropped beyond a limit.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    Vote,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.log.active_alerts import alert_text
from oven_runs.log.announcement_text import describe_actuator, describe_prompts
from oven_runs.log.run_summary import RunSummary, training_signal
from oven_tui.model.braille_chart import Style
from oven_tui.model.commands_given import CommandsGiven, request_text
from oven_tui.model.decisions import Decided, Entry, Note, Open
from oven_tui.model.mesh_state import MeshState
from oven_tui.model.metric_series import WAITING, Series

ENTRIES = 2000
METRICS = 256
AGENTS = 64
OPEN = 64
MARKS = 256
STALLED_S = 15.0

State = Literal["waiting", "live", "held", "stalled", "ended"]
Standing = Literal["live", "silent", "left"]


class MonitorView:
    """Add the log's events in order with `feed`. Known events are ignored."""

    def __init__(self) -> None:
        self.run = RunSummary()
        self.series: dict[str, Series] = {}
        self.steps = Series()
        self.entries: list[Entry] = []
        self.forgotten = 0
        """Entries before the first of `entries`."""
        self.open: dict[str, Open] = {}
        self.marks: dict[str, tuple[int, str, str]] = {}
        """Decision (or command) id → tick, author, fate: the marks of charts."""
        self.marked = 0
        """Grows with every mark."""
        self.agents: list[str] = []
        """Agents in the order of their first messages, which is also the order of their glyphs."""
        self.reputations: dict[str, float] = {}
        """Agent → its weight after the last outcome; absent before the first."""
        self.commands = CommandsGiven()
        self.mesh = MeshState()
        self.left_out = 0
        self.preview = False
        """Whether the view was made from unverified samples of a long log, so that its counts are wrong."""
        self.pace_s = 0.0
        """Seconds between observations, as a moving average."""
        self.version = 0
        """Grows with every event of the list of decisions."""
        self._votes: dict[str, dict[str, Vote]] = {}
        self._index: dict[str, int] = {}
        self._closed: deque[str] = deque(maxlen=OPEN)  # a repeated ballot may arrive after its decision
        self._unsettled = 0  # measurements since all series were last settled
        self._observed: datetime | None = None

    def feed(self, event: Event) -> None:
        if event.seq <= self.run.seq:
            return
        self.run.feed(event)
        for name in self.run.agents.keys() - set(self.agents) if len(self.run.agents) > len(self.agents) else ():
            self._agent(name)
        self.commands.feed(event)
        self.mesh.feed(event)
        match event.body:
            case Observation() as body:
                self._observation(event, body)
            case Vote() as body:
                self._vote(event.author, body)
            case BallotOpened() as body:
                self._ballot(event, body)
            case Decision() as body:
                self._decision(event, body)
            case Receipt() as body:
                self._receipt(body)
            case Outcome() as body:
                self._outcome(body)
            case _:
                self._noted(event)

    def _noted(self, event: Event) -> None:
        """Add events that become notes in the list: of the learner, the agents and the operators."""
        step = self.run.step
        match event.body:
            case RunStarted() as body:
                again = f" again (incarnation {body.incarnation})" if body.incarnation > 1 and self.entries else ""
                self._knobs()
                self._enter(Note(event.seq, body.step, "learner", f"{body.recipe} started{again} at step {body.step}"))
            case ActuatorAnnounced() as body:
                self._knobs()
                self._enter(Note(event.seq, body.step, "learner", describe_actuator(body)))
            case PromptsInjected() as body:
                self._enter(Note(event.seq, body.step, "learner", describe_prompts(body)))
            case RunEnded() as body:
                detail = f": {body.detail}" if body.detail else ""
                self._measure(max(self.run.tick, body.tick), body.metrics)
                self._enter(Note(event.seq, body.step, "learner", f"{body.reason} at step {body.step}{detail}"))
            case Alert() as body if self.run.alert is not None:
                self._enter(Note(event.seq, step, event.author, alert_text(body)))
            case AgentStatus(state="notice") as body:
                self._enter(Note(event.seq, step, event.author, body.reason))
            case OperatorCommand() as body:
                self._mark(f"operator-{event.seq}", self.run.tick, event.author, "operator")
                self._enter(Note(event.seq, step, f"operator {event.author}", request_text(body), body.id))
            case _:
                pass

    def _ballot(self, event: Event, body: BallotOpened) -> None:
        if len(self.open) >= OPEN or body.id in self._closed:
            return
        votes = self._votes.get(body.actuator, {})
        mine = {name: vote for name, vote in votes.items() if name in body.eligible}
        self.open[body.id] = Open(event.seq, self.run.step, body, mine)
        self.version += 1

    def _agent(self, name: str) -> None:
        if len(self.agents) < AGENTS:
            self.agents.append(name)
        else:
            del self.run.agents[name]
            self.left_out += 1

    def _observation(self, event: Event, body: Observation) -> None:
        if self._observed is not None:
            gap = max(0.0, (event.time - self._observed).total_seconds())
            self.pace_s = gap if not self.pace_s else self.pace_s + (gap - self.pace_s) / 10
        self._observed = event.time
        self.steps.add(self.run.tick, body.step)
        self._measure(self.run.tick, body.metrics)

    def _measure(self, tick: int, metrics: dict[str, float]) -> None:
        known = self.series
        for name, value in metrics.items():
            if name in known:
                known[name].waiting.append((tick, value))
            elif len(known) >= METRICS:
                self.left_out += 1
            else:
                known[name] = Series()
                known[name].add(tick, value)
        self._unsettled += 1
        if self._unsettled >= WAITING:
            self._unsettled = 0
            for series in known.values():
                series.settle()

    def _knobs(self) -> None:
        """Scalar settings are curves too: a point for each change."""
        values = {spec.name: self.run.knobs.get(spec.name) for spec in self.run.specs if spec.kind == "scalar"}
        self._measure(self.run.tick, {name: value for name, value in values.items() if isinstance(value, float | int)})

    def _vote(self, agent: str, vote: Vote) -> None:
        known = self.run.started is None or any(spec.name == vote.actuator for spec in self.run.specs)
        if not known or agent not in self.run.agents:
            return  # no ballot will open on it
        self._votes.setdefault(vote.actuator, {})[agent] = vote
        for ballot_id, ballot in self.open.items():
            meant = ballot.opened.actuator == vote.actuator and vote.ballot in ("", ballot_id)
            if meant and agent in ballot.opened.eligible:
                self.open[ballot_id] = replace(ballot, votes={**ballot.votes, agent: vote})
                self.version += 1

    def _decision(self, event: Event, body: Decision) -> None:
        ballot = self.open.pop(body.ballot, None)
        self._closed.append(body.ballot)
        opened = ballot.opened if ballot else None
        voters = {line.agent for line in body.tally if line.stance != "silent"}
        votes = ballot.votes if ballot else self._votes.get(body.actuator, {})
        self._votes.pop(body.actuator, None)
        entry = Decided(event.seq, self.run.step, body, opened, {a: vote for a, vote in votes.items() if a in voters})
        self._index[body.id] = self.forgotten + len(self.entries)
        self._enter(entry)
        if body.verdict == "adopted":
            self._mark(body.id, body.apply_at_tick, entry.proposer, entry.fate)
        if body.approves:
            self._amend(body.approves, approved=True)

    def _receipt(self, body: Receipt) -> None:
        self._knobs()
        entry = self._amend(body.decision_id, receipt=body)
        if entry is not None:
            self._mark(body.decision_id, body.tick, entry.proposer, entry.fate)

    def _outcome(self, body: Outcome) -> None:
        for line in body.lines:
            if line.agent in self.run.agents:
                self.reputations[line.agent] = line.after
        self._amend(body.decision_id, outcome=body)

    def _amend(self, decision_id: str, **change: Any) -> Decided | None:
        """Add the outcome of a decision that is still in the list."""
        index = self._index.get(decision_id)
        if index is None:
            return None
        decided = self.entries[index - self.forgotten]
        assert isinstance(decided, Decided)
        self.entries[index - self.forgotten] = entry = replace(decided, **change)
        self.version += 1
        return entry

    def _enter(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.version += 1
        if len(self.entries) > ENTRIES + 256:  # some at a time: each cut moves the whole list
            old, self.entries = self.entries[:256], self.entries[256:]
            self.forgotten += len(old)
            for gone in old:
                if isinstance(gone, Decided) and self._index.get(gone.decision.id, 0) < self.forgotten:
                    self._index.pop(gone.decision.id, None)

    def _mark(self, key: str, tick: int, author: str, fate: str) -> None:
        self.marks[key] = (tick, author, fate)
        self.marked += 1
        if len(self.marks) > MARKS:
            del self.marks[next(iter(self.marks))]

    def rows(self) -> list[Entry]:
        """Return the list of decisions: closed ones, then open ones, then commands that were just sent."""
        step = self.run.step
        waiting = (
            Note(0, step, "you", request_text(result.command), id) for id, result in self.commands.unlogged.items()
        )
        return [*self.entries, *self.open.values(), *waiting]

    def list_version(self) -> tuple[int, int]:
        """A value that changes whenever the list of decisions does."""
        return self.version, self.commands.version

    def state(self, silent_s: float) -> State:
        """Return the run's state. `silent_s` is the seconds since the last event, by the reader's clock."""
        if self.run.started is None:
            return "waiting"
        if self.run.ended is not None:
            return "ended"
        if self.run.held:
            return "held"
        return "stalled" if silent_s > max(STALLED_S, 10 * self.pace_s) else "live"

    def standing(self, agent: str) -> Standing:
        """Return an agent's standing. `silent`: longer than the run's rules allow, so the mesh has lost it."""
        seen = self.run.agents[agent]
        if not seen.live:
            return "left"
        limit = self.run.started.rules.silent_ticks if self.run.started else 0
        return "silent" if limit and self.run.tick - seen.last_tick > limit else "live"

    def charted(self) -> list[str]:
        """Return all curves, the most important first: the training signal, the held-out metric, the learning rate and
        the gradient norm, each if the run has it, then KL and entropy, then the rest by name."""
        declared = [spec.name for spec in self.run.started.metrics] if self.run.started else []
        names = list(dict.fromkeys([*self.series, *(declared if not self.series else [])]))
        rate = next((name for name in ("learning_rate", "optimizer.lr_scale") if name in names), None)
        wanted = [
            training_signal(names),
            self.run.target(),
            *self.run.held_out()[:1],
            rate,
            *("grad_norm", "kl", "entropy", "loss"),
        ]
        return list(dict.fromkeys([*(name for name in wanted if name in names), *sorted(names)]))

    def style(self, name: str) -> Style:
        if name in self.run.knobs or name == "learning_rate":
            return "set"
        return "measured" if name in self.run.held_out() else "noisy"

    def end_tick(self) -> int | None:
        """Return the tick of the last step, if nothing is repeated from here on; unknown without a horizon in steps."""
        most = self.run.max_steps
        return self.run.tick + max(0, most - self.run.step) if most is not None else None

    def step_at(self, tick: int) -> int:
        """Return the optimizer step at a tick; beyond the newest, one step per tick."""
        if not self.steps.count:
            return tick
        if tick > self.steps.last_tick:
            return self.run.step + tick - self.steps.last_tick
        step = self.steps.value_at(tick)
        return int(step) if step == step else 0

    def frozen(self) -> MonitorView:
        """Return a copy that does not change while this one continues."""
        copied: MonitorView = pickle.loads(pickle.dumps(self, 5))
        return copied
