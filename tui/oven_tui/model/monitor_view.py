"""The monitor's view of a run, which contains everything that the monitor shows. Events update it one by one. It needs
neither a clock nor I/O, and its memory is bounded.

The view contains the metrics, the newest decisions, and the last vote of each agent on each actuator until the ballot
closes. If there are too many metrics, agents or open ballots, the rest are ignored."""

from __future__ import annotations

import math
import pickle
from collections import deque
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    WITHHELD_PREFIX,
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
from oven_tui.model.braille_chart import CurveStyle
from oven_tui.model.command_progress import CommandProgress, request_text
from oven_tui.model.decision_entries import DecisionEntry, Entry, Note, OpenBallot
from oven_tui.model.metric_series import MAX_WAITING, Series
from oven_tui.model.participants import Participants

if TYPE_CHECKING:
    from oven_tui.model.mesh_state import MeshState

MAX_ENTRIES = 2000
MAX_METRICS = 256
MAX_AGENTS = 64
MAX_OPEN_BALLOTS = 64
MAX_MARKS = 256
DROPPED_ENTRIES = 256  # entries to drop at a time, because each time the whole list is copied
STALLED_S = 15.0  # minimum time without an event before a run counts as stalled
RunState = Literal["waiting", "live", "held", "stalled", "ended"]
AgentStanding = Literal["live", "idle", "failed", "silent", "left"]


class MonitorView:
    """The state of a run after the events that were passed to `feed`, in order. Repeated events are ignored."""

    def __init__(self) -> None:
        self.name = ""
        """The run's name; empty before the first event."""
        self.run = RunSummary()
        self.series: dict[str, Series] = {}
        self.steps = Series()
        self.entries: list[Entry] = []
        self.dropped_count = 0
        """Number of dropped entries, all older than `entries`."""
        self.open_ballots: dict[str, OpenBallot] = {}
        self.marks: dict[str, tuple[int, str, str]] = {}
        """The marks in charts: id of the decision or command → tick, author and fate."""
        self.mark_version = 0
        """Increases with every mark."""
        self.agents: list[str] = []
        """Agents in the order of their first messages, which determines their glyphs."""
        self.reputations: dict[str, float] = {}
        """Agent → reputation after the last outcome. Agents without an outcome are missing."""
        self.commands = CommandProgress()
        self.participants = Participants()
        self.omitted_count = 0
        """Number of values and messages that were ignored because there were too many metrics or agents."""
        self.is_preview = False
        """Whether the view is based on unverified parts of a long log, so that its counts are wrong."""
        self.pace_s = 0.0
        """Seconds between observations, as a moving average."""
        self.version = 0
        """Increases with every change of the list of decisions."""
        self._votes: dict[str, dict[str, Vote]] = {}
        self._index: dict[str, int] = {}  # id of a decision → its position, counted from the first entry ever
        self._closed: deque[str] = deque(maxlen=MAX_OPEN_BALLOTS)  # a repeated ballot may arrive late
        self._unsettled = 0  # observations since all series were last settled
        self._observed_at: datetime | None = None

    @cached_property
    def mesh(self) -> MeshState:
        from oven_tui.model.mesh_state import MeshState  # imported late, because the mesh is slow to import

        return MeshState()

    def feed(self, event: Event) -> None:
        if event.seq <= self.run.seq:
            return
        self.name = self.name or event.subject.partition(".")[2].partition(".")[0]
        self.run.feed(event)
        if len(self.run.agents) > len(self.agents):
            for name in self.run.agents.keys() - set(self.agents):
                self._add_agent(name)
        self.commands.feed(event)
        self.mesh.feed(event)
        self.participants.feed(event)
        match event.body:
            case Observation() as body:
                self._add_observation(event, body)
            case Vote() as body:
                self._add_vote(event.author, body)
            case BallotOpened() as body:
                self._add_ballot(event, body)
            case Decision() as body:
                self._add_decision(event, body)
            case Receipt() as body:
                self._add_receipt(body)
            case Outcome() as body:
                self._add_outcome(body)
            case _:
                self._add_note(event)

    def _add_note(self, event: Event) -> None:
        """Add a note to the list for events of the learner, the agents and the operators."""
        step = self.run.step
        match event.body:
            case RunStarted() as body:
                again = f" again (incarnation {body.incarnation})" if body.incarnation > 1 and self.entries else ""
                self._record_knobs()
                self._append(Note(event.seq, body.step, "learner", f"{body.recipe} started{again} at step {body.step}"))
            case ActuatorAnnounced() as body:
                self._record_knobs()
                self._append(Note(event.seq, body.step, "learner", describe_actuator(body)))
            case PromptsInjected() as body:
                self._append(Note(event.seq, body.step, "learner", describe_prompts(body)))
            case RunEnded() as body:
                detail = f": {body.detail}" if body.detail else ""
                self._record(max(self.run.tick, body.tick), body.metrics)
                self._append(Note(event.seq, body.step, "learner", f"{body.reason} at step {body.step}{detail}"))
            case Alert() as body if self.run.alert is not None:
                self._append(Note(event.seq, step, event.author, alert_text(body)))
            case AgentStatus(state="notice") as body if not body.reason.startswith(WITHHELD_PREFIX):
                self._append(Note(event.seq, step, event.author, body.reason))
            case OperatorCommand() as body:
                self._add_mark(f"operator-{event.seq}", self.run.tick, event.author, "operator")
                self._append(Note(event.seq, step, f"operator {event.author}", request_text(body), body.id))

    def _add_ballot(self, event: Event, body: BallotOpened) -> None:
        if len(self.open_ballots) >= MAX_OPEN_BALLOTS or body.id in self._closed:
            return
        votes = self._votes.get(body.actuator, {})
        eligible_votes = {name: vote for name, vote in votes.items() if name in body.eligible}
        self.open_ballots[body.id] = OpenBallot(event.seq, self.run.step, body, eligible_votes)
        self.version += 1

    def _add_agent(self, name: str) -> None:
        if len(self.agents) < MAX_AGENTS:
            self.agents.append(name)
        else:
            del self.run.agents[name]
            self.omitted_count += 1

    def _add_observation(self, event: Event, body: Observation) -> None:
        if self._observed_at is not None:
            gap = max(0.0, (event.time - self._observed_at).total_seconds())
            self.pace_s = gap if not self.pace_s else self.pace_s + (gap - self.pace_s) / 10
        self._observed_at = event.time
        self.steps.add(self.run.tick, body.step)
        self._record(self.run.tick, body.metrics)

    def _record(self, tick: int, metrics: dict[str, float]) -> None:
        series_by_name = self.series
        for name, value in metrics.items():
            if name in series_by_name:
                series_by_name[name].waiting.append((tick, value))
            elif len(series_by_name) >= MAX_METRICS:
                self.omitted_count += 1
            else:
                series_by_name[name] = Series()
                series_by_name[name].add(tick, value)
        self._unsettled += 1
        if self._unsettled >= MAX_WAITING:
            self._unsettled = 0
            for series in series_by_name.values():
                series.settle()

    def _record_knobs(self) -> None:
        """Add the values of all scalar knobs to their curves."""
        values = {spec.name: self.run.knobs.get(spec.name) for spec in self.run.specs if spec.kind == "scalar"}
        self._record(self.run.tick, {name: value for name, value in values.items() if isinstance(value, float | int)})

    def _add_vote(self, agent: str, vote: Vote) -> None:
        is_known = self.run.started is None or any(spec.name == vote.actuator for spec in self.run.specs)
        if not is_known or agent not in self.run.agents:
            return  # the vote cannot count
        self._votes.setdefault(vote.actuator, {})[agent] = vote
        for ballot_id, ballot in self.open_ballots.items():
            is_for_ballot = ballot.opened.actuator == vote.actuator and vote.ballot in ("", ballot_id)
            if is_for_ballot and agent in ballot.opened.eligible:
                self.open_ballots[ballot_id] = replace(ballot, votes={**ballot.votes, agent: vote})
                self.version += 1

    def _add_decision(self, event: Event, body: Decision) -> None:
        ballot = self.open_ballots.pop(body.ballot, None)
        self._closed.append(body.ballot)
        opened = ballot.opened if ballot else None
        voters = {line.agent for line in body.tally if line.stance != "silent"}
        votes = ballot.votes if ballot else self._votes.get(body.actuator, {})
        self._votes.pop(body.actuator, None)
        counted_votes = {agent: vote for agent, vote in votes.items() if agent in voters}
        entry = DecisionEntry(event.seq, self.run.step, body, opened, counted_votes)
        self._index[body.id] = self.dropped_count + len(self.entries)
        self._append(entry)
        if body.verdict == "adopted":
            self._add_mark(body.id, body.apply_at_tick, entry.proposer, entry.fate)
        if body.approves:
            self._amend(body.approves, approved=True)

    def _add_receipt(self, body: Receipt) -> None:
        self._record_knobs()
        entry = self._amend(body.decision_id, receipt=body)
        if entry is not None:
            self._add_mark(body.decision_id, body.tick, entry.proposer, entry.fate)

    def _add_outcome(self, body: Outcome) -> None:
        for line in body.lines:
            if line.agent in self.run.agents:
                self.reputations[line.agent] = line.after
        self._amend(body.decision_id, outcome=body)

    def _amend(self, decision_id: str, **change: Any) -> DecisionEntry | None:
        """Change a decision that is still in the list. Return its new entry."""
        index = self._index.get(decision_id)
        if index is None:
            return None
        old_entry = self.entries[index - self.dropped_count]
        assert isinstance(old_entry, DecisionEntry)
        self.entries[index - self.dropped_count] = entry = replace(old_entry, **change)
        self.version += 1
        return entry

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.version += 1
        if len(self.entries) > MAX_ENTRIES + DROPPED_ENTRIES:
            oldest, self.entries = self.entries[:DROPPED_ENTRIES], self.entries[DROPPED_ENTRIES:]
            self.dropped_count += len(oldest)
            for old in oldest:
                if isinstance(old, DecisionEntry) and self._index.get(old.decision.id, 0) < self.dropped_count:
                    self._index.pop(old.decision.id, None)

    def _add_mark(self, key: str, tick: int, author: str, fate: str) -> None:
        self.marks[key] = (tick, author, fate)
        self.mark_version += 1
        if len(self.marks) > MAX_MARKS:
            del self.marks[next(iter(self.marks))]

    def rows(self) -> list[Entry]:
        """Return the decision list: closed entries, open ballots, and commands that have not been logged."""
        step = self.run.step
        unlogged = self.commands.unlogged_commands.items()
        notes = (Note(0, step, "you", request_text(result.command), command_id) for command_id, result in unlogged)
        return [*self.entries, *self.open_ballots.values(), *notes]

    def list_version(self) -> tuple[int, int]:
        """Return a value that changes with every change of the decision list."""
        return self.version, self.commands.version

    def state(self, silent_s: float) -> RunState:
        """Return the run's state. `silent_s` is the number of seconds since the last event."""
        if self.run.started is None:
            return "waiting"
        if self.run.ended is not None:
            return "ended"
        if self.run.hold_reason:
            return "held"
        return "stalled" if silent_s > max(STALLED_S, 10 * self.pace_s) else "live"

    def standing(self, agent: str) -> AgentStanding:
        """Return an agent's state. It is `silent` if it has been silent for longer than the run's rules allow."""
        record = self.run.agents[agent]
        if not record.is_live:
            return "left"
        if record.failure_reason:
            return "failed"
        if record.idle_reason:
            return "idle"
        limit = self.run.started.rules.silent_ticks if self.run.started else 0
        return "silent" if limit and self.run.tick - record.last_tick > limit else "live"

    def curve_names(self) -> list[str]:
        """Return the names of all curves. The most important come first: the training signal, the target, a held-out
        metric, the learning rate, gradient norm, KL, entropy and loss. The others are sorted by name."""
        declared = [spec.name for spec in self.run.started.metrics] if self.run.started else []
        names = list(self.series) or list(dict.fromkeys(declared))
        rate = next((name for name in ("learning_rate", "optimizer.lr_scale") if name in names), None)
        important = [
            training_signal(names),
            self.run.target(),
            *self.run.held_out()[:1],
            rate,
            *("grad_norm", "kl", "entropy", "loss"),
        ]
        return list(dict.fromkeys([*(name for name in important if name in names), *sorted(names)]))

    def style(self, name: str) -> CurveStyle:
        if name in self.run.knobs or name == "learning_rate":
            return "set"
        return "measured" if name in self.run.held_out() else "noisy"

    def end_tick(self) -> int | None:
        """Return the tick at which the run ends without further rollbacks, or None if its length is unknown."""
        max_steps = self.run.max_steps
        return self.run.tick + max(0, max_steps - self.run.step) if max_steps is not None else None

    def step_at(self, tick: int) -> int:
        """Return the optimizer step at a tick. Future ticks count as one step each."""
        if not self.steps.count:
            return tick
        if tick > self.steps.last_tick:
            return self.run.step + tick - self.steps.last_tick
        step = self.steps.value_at(tick)
        return 0 if math.isnan(step) else int(step)

    def frozen_copy(self) -> MonitorView:
        """Return a copy that later events do not change."""
        copy: MonitorView = pickle.loads(pickle.dumps(self, 5))
        return copy
