"""An agent over a recorded run, open loop: what it would have said, and what the mesh would have made of it.

It hears what it would have heard: the recording's start, observations and receipts, and the ballots and decisions of a
mesh in which its votes stand in place of those that the recording has under its name. It is asked after every event;
an agent in a process is asked when it has time, so it may have skipped windows that it votes on here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.alternative_plans import spoken
from oven_agents.sdk.session import Session
from oven_core.mesh.outputs import Output
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LogMessage,
    Observation,
    Receipt,
    RunStarted,
    Vote,
)
from oven_core.protocol.rules import Rules
from oven_runs.log.counterfactual import Divergence, OpenLoop
from oven_runs.log.replay import refuse_another_version


@dataclass
class Said:
    """One vote, and its outcome in the backtest and in the recording."""

    vote: Vote
    tick: int
    ballot: str = ""
    decision: Decision | None = None
    carried_out: bool = False
    """The recording has the same decision with a receipt: what happened, happened with its change."""
    before: float | None = None
    """Of the target: mean of its last measurements up to the vote."""
    after: list[float] = field(default_factory=list)
    """Its last measurements within the horizon."""

    @property
    def happened(self) -> float | None:
        """The target's change in the recording, from before the vote to the end of its horizon; None where it was not
        measured on both sides, or the vote names no target or no horizon."""
        return fmean(self.after) - self.before if self.after and self.before is not None else None


@dataclass
class Findings:
    """What a backtest found."""

    agent: str
    run: str
    ticks: int
    said: list[Said]
    cannot_fire: str
    problems: list[str]  # tracebacks of the agent's own code
    notices: list[tuple[int, str]]
    """(tick, text) of what it had to say to people, a proposal that was held back among it."""
    took_part: bool
    same_votes: bool | None
    """Whether the recording has just these votes under its name, the graph's evidence apart; None: it took no part."""
    shadow: bool
    """It was a shadow there, and its votes count here."""
    divergences: list[Divergence]
    ignored_receipts: int
    metrics: tuple[str, ...] = ()
    """What the run publishes."""


class Backtest:
    """Feed it the recorded events in order, judged, then ask for `findings`."""

    def __init__(
        self, agent: Agent, name: str, run: str, rules: Callable[[Rules], Rules] = lambda rules: rules
    ) -> None:
        """`rules` makes those to decide by from those of the recording."""
        self.name, self.run = name, run
        self._given = rules
        self._session = Session(agent, name)
        self._loop = OpenLoop(run, self._counting)
        self._on = names.Subjects(run)
        self._said: list[Said] = []
        self._watching: list[Said] = []  # those whose horizon lasts
        self._on_ballot: dict[str, list[Said]] = {}  # open ballot → the votes on it
        self._recorded: list[Vote] = []
        self._notices: list[tuple[int, str]] = []
        self._recent: dict[str, deque[float]] = {}
        self._samples = Rules().outcome_samples
        self._ticks = 0
        self._metrics: tuple[str, ...] = ()
        self._cannot_fire = ""
        self._took_part = self._shadow = False

    def take(self, event: Event) -> None:
        """Raises ConfigError on a log of another schema version."""
        refuse_another_version(event)
        if event.subject in (self._on.vote(self.name), self._on.agent(self.name), self._on.alert(self.name)):
            self._note(event.body)
            return
        heard, outputs = self._loop.take(event)
        if heard is not None:
            self._look(heard)
            if not isinstance(heard, Alert):  # another agent's
                self._session.absorb(heard)
        self._hear(outputs)
        if heard is not None or outputs:
            self._react(event)

    def findings(self) -> Findings:
        recorded = [_apart(vote) for vote in self._recorded]
        return Findings(
            agent=self.name,
            run=self.run,
            ticks=self._ticks,
            said=self._said,
            cannot_fire=self._cannot_fire,
            problems=self._session.problems,
            notices=self._notices,
            took_part=self._took_part,
            same_votes=recorded == [_apart(said.vote) for said in self._said] if self._took_part else None,
            shadow=self._shadow,
            divergences=self._loop.divergences(),
            ignored_receipts=self._loop.ignored_receipts,
            metrics=self._metrics,
        )

    @property
    def started(self) -> bool:
        return self._loop.started

    @property
    def tick(self) -> int:
        """Of the recording, as far as it was read."""
        return self._loop.tick

    def _counting(self, rules: Rules) -> Rules:
        """The recording's rules; a shadow's votes count, and a newcomer's, since what they would do is the question."""
        rules = self._given(rules)
        self._shadow |= self.name in rules.shadow
        shadow = tuple(name for name in rules.shadow if name != self.name)
        return rules.trusting([self.name]).model_copy(update={"shadow": shadow})

    def _note(self, body: object) -> None:
        self._took_part = True
        if isinstance(body, Vote):
            self._recorded.append(body)
        elif isinstance(body, AgentStatus):
            self._shadow |= body.shadow

    def _react(self, event: Event) -> None:
        """Until it has nothing more to say to what its own words led to."""
        while said := self._session.react():
            for message in spoken(said):
                if isinstance(message, Vote):
                    self._vote(message, event)
                    continue
                if isinstance(message, Alert):
                    self._notices.append((self._loop.tick, f"{message.symptom} {message.state}: {message.reason}"))
                    continue
                if message.state == "cannot_fire":
                    self._cannot_fire = message.reason
                elif message.state == "notice":
                    self._notices.append((self._loop.tick, message.reason))
                counting = message.model_copy(update={"shadow": False})
                self._hear(self._loop.add(self._on.agent(self.name), counting, event))

    def _vote(self, vote: Vote, event: Event) -> None:
        recent = self._recent.get(vote.target)
        said = Said(vote, self._loop.tick, self._loop.ballot(vote.actuator), before=fmean(recent) if recent else None)
        self._said.append(said)
        if vote.stance == "propose" and vote.target and vote.horizon:
            self._watching.append(said)
        outputs = self._loop.add(self._on.vote(self.name), vote, event)
        for output in outputs:
            if isinstance(output.message, BallotOpened):
                said.ballot = output.message.id
            elif isinstance(output.message, Decision) and not output.message.ballot:
                said.decision = output.message  # refused on the spot
        if said.ballot:
            self._on_ballot.setdefault(said.ballot, []).append(said)
        self._hear(outputs)

    def _hear(self, outputs: Sequence[Output]) -> None:
        """What the mesh says, as the agent hears it."""
        for body in (output.message for output in outputs):
            if isinstance(body, BallotOpened | Decision):
                self._session.absorb(body)
            if isinstance(body, Decision):
                for said in self._on_ballot.pop(body.ballot, ()):
                    said.decision = body

    def _look(self, body: LogMessage) -> None:
        """Keep what a forecast is held against."""
        if isinstance(body, RunStarted):
            self._samples = body.rules.outcome_samples
            self._metrics = tuple(spec.name for spec in body.metrics)
        elif isinstance(body, Observation):
            self._ticks += 1
            for name, value in body.metrics.items():
                self._recent.setdefault(name, deque(maxlen=self._samples)).append(value)
            self._watching = [said for said in self._watching if body.tick <= said.tick + said.vote.horizon]
            for said in self._watching:
                if said.vote.target in body.metrics:
                    said.after = [*said.after, body.metrics[said.vote.target]][-self._samples :]
        elif isinstance(body, Receipt) and body.status == "applied":
            for said in self._said:
                if said.decision is not None and said.decision.id == body.decision_id:
                    said.carried_out = True


def _apart(vote: Vote) -> Vote:
    """Without what is added on the way: the graph's evidence, and what the agent would try next."""
    return vote.model_copy(update={"evidence": (), "otherwise": ()})
