"""Implements `oven-controller backtest AGENT RUN`, which replays a recorded run to one agent."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_agents.review.open_loop_replay import CastVote, OpenLoopReplay
from oven_agents.runtime.agent_loader import load_repeatable
from oven_agents.sdk.agent import Agent
from oven_core.errors import ConfigError
from oven_core.mesh.actuator_values import show
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, Real, Receipt, RunStarted, Value, Vote
from oven_core.protocol.rules import Rules
from oven_core.terminal_text import counted, say, wrapped
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.counterfactual import decision_text
from oven_runs.settings.resolution import with_rules

OPEN_LOOP = (
    "open loop: the recording continues unchanged, whatever is decided here. Only the part before the first divergence "
    "is certain. Confidences are not scored, because the recording does not contain the effects of the changes."
)


class BacktestVote(BaseModel):
    """One vote of the agent, and its outcome in the backtest and in the recording."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    tick: int
    actuator: str
    stance: str
    value: Value
    confidence: Real
    target: str
    expected_change: Real
    horizon: int
    rationale: str
    counted: bool = Field(description="whether the vote counted: it was on a ballot or decided immediately")
    verdict: str | None = Field(description="null if the ballot did not close or the vote did not count")
    decided_value: Value
    reason: str | None
    change_in_recording: float | None = Field(
        description="the target's change in the recording up to the vote's horizon; null if it was not measured"
    )
    carried_out_in_recording: bool


class BacktestNotice(BaseModel):
    """A message from the agent to people."""

    model_config = ConfigDict(frozen=True)

    tick: int
    text: str


class BacktestDivergence(BaseModel):
    """The first decision that differs from the recorded one."""

    model_config = ConfigDict(frozen=True)

    tick: int
    actuator: str
    logged: str
    computed: str


class BacktestReport(BaseModel):
    """The report of a backtest. The recording continues unchanged, whatever the backtest decides (open loop)."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    agent: str
    run: str
    ticks: int
    votes: tuple[BacktestVote, ...]
    votes_left_out: int = Field(
        default=0, description="number of older votes omitted because of the report's vote limit"
    )
    proposals: int
    proposals_per_1000_ticks: float | None
    decisions: dict[str, int] = Field(description="verdict → number of decisions on its proposals")
    cannot_fire: str = Field(description="why it cannot fire in this run; empty if it can")
    problems: tuple[str, ...] = Field(description="tracebacks from the agent's code")
    notices: tuple[BacktestNotice, ...]
    took_part: bool = Field(description="whether it took part in the recording")
    same_votes: bool | None = Field(
        description="whether it cast the same votes in the recording; null if it did not take part"
    )
    shadow: bool = Field(description="whether it was a shadow in the recording; its votes count in the backtest")
    divergences: int
    first_divergence: BacktestDivergence | None
    ignored_receipts: int
    open_loop: Literal[True] = True
    rules: dict[str, Any] = Field(description="rules that replaced those of the recording")
    hints: tuple[str, ...] = Field(default=(), description="information that is missing from the recording's metrics")

    def newest(self, limit: int) -> BacktestReport:
        """Return the report with at most `limit` votes, the newest ones."""
        return self.model_copy(update={"votes": self.votes[-limit:], "votes_left_out": len(self.votes[:-limit])})


@dataclass
class RecordedOutcome:
    """The development of a vote's target metric in the recording."""

    before: float | None
    """Mean of the target's last measurements up to the vote."""
    after: deque[float]
    """The target's last measurements within the vote's horizon."""
    carried_out: bool = False
    """Whether the recording has the same decision with a receipt, so this is the outcome of the change."""

    @property
    def change(self) -> float | None:
        """The change up to the end of the horizon, or None if the target was not measured before and after."""
        return fmean(self.after) - self.before if self.after and self.before is not None else None


@dataclass
class Backtest:
    """A backtest of one agent over a recording. Call `add` with each verified event in order, then `report`."""

    agent: Agent
    name: str
    run: str
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Rules that replace the rules of the recording."""

    def __post_init__(self) -> None:
        self.replay = OpenLoopReplay(self.run, {self.name: self.agent}, self._replay_rules)
        self.outcomes: list[RecordedOutcome] = []  # one per vote of the replay
        self.ticks = 0
        self.metrics: tuple[str, ...] = ()
        """The metrics that the run publishes."""
        self._shadow = False
        self._outcome_samples = Rules().outcome_samples
        self._recent_values: dict[str, deque[float]] = {}  # the newest measurements, by metric
        self._pending: list[tuple[CastVote, RecordedOutcome]] = []  # votes whose horizon has not ended

    def add(self, event: Event) -> None:
        """Add an event. Raises ConfigError for a log of another schema version."""
        if isinstance(event.body, Observation):
            self._measure(event.body)
        message = self.replay.add(event)
        if isinstance(message, RunStarted):
            self._outcome_samples = message.rules.outcome_samples
            self.metrics = tuple(spec.name for spec in message.metrics)
        elif isinstance(message, Receipt) and message.status == "applied":
            for cast, outcome in self.votes:
                outcome.carried_out |= cast.decision is not None and cast.decision.id == message.decision_id
        for cast in self.replay.votes[len(self.outcomes) :]:  # votes that this event caused
            recent = self._recent_values.get(cast.vote.target)
            before = fmean(recent) if recent else None
            self.outcomes.append(RecordedOutcome(before, deque(maxlen=self._outcome_samples)))
            if cast.vote.stance == "propose" and cast.vote.target and cast.vote.horizon:
                self._pending.append((cast, self.outcomes[-1]))

    @property
    def votes(self) -> list[tuple[CastVote, RecordedOutcome]]:
        return list(zip(self.replay.votes, self.outcomes, strict=False))

    @property
    def same_votes(self) -> bool | None:
        """Whether the recorded votes were the same, apart from the graph's evidence. None if the agent took no part."""
        recorded_votes = self.replay.recorded_votes.get(self.name)
        if recorded_votes is None:
            return None
        return list(map(_without_graph_evidence, recorded_votes)) == [
            _without_graph_evidence(cast.vote) for cast in self.replay.votes
        ]

    @property
    def shadow(self) -> bool:
        """Whether the agent was a shadow in the recording. In a backtest its votes count."""
        return self._shadow or self.name in self.replay.shadows

    def report(self, hints: Sequence[str] = ()) -> BacktestReport:
        """Return the report, with `hints` added."""
        divergences = self.replay.divergences
        first_divergence = None
        if divergences:
            first = divergences[0]
            logged, computed = decision_text(first.logged), decision_text(first.computed)
            first_divergence = BacktestDivergence(
                tick=first.tick, actuator=first.actuator, logged=logged, computed=computed
            )
        proposals = self.replay.proposals
        verdicts = Counter({cast.decision.id: cast.decision.verdict for cast in proposals if cast.decision}.values())
        return BacktestReport(
            agent=self.name, run=self.run, ticks=self.ticks,
            votes=tuple(_to_backtest_vote(cast, outcome) for cast, outcome in self.votes), proposals=len(proposals),
            proposals_per_1000_ticks=round(1000 * len(proposals) / self.ticks, 3) if self.ticks else None,
            decisions=dict(sorted(verdicts.items())), cannot_fire=self.replay.cannot_fire.get(self.name, ""),
            problems=tuple(self.replay.problems.get(self.name, ())),
            notices=tuple(BacktestNotice(tick=notice.tick, text=notice.text) for notice in self.replay.notices),
            took_part=self.name in self.replay.recorded_votes, same_votes=self.same_votes, shadow=self.shadow,
            divergences=len(divergences), first_divergence=first_divergence,
            ignored_receipts=self.replay.ignored_receipts, rules=dict(self.rules), hints=tuple(hints),
        )  # fmt: skip

    def _replay_rules(self, recorded: Rules) -> Rules:
        """Return the replay's rules. They trust the agent with all actuators, and its votes count."""
        rules = with_rules(recorded, self.rules)
        self._shadow |= self.name in rules.shadow
        shadow = tuple(name for name in rules.shadow if name != self.name)
        return rules.with_grants_for([self.name]).model_copy(update={"shadow": shadow})

    def _measure(self, observation: Observation) -> None:
        self.ticks += 1
        for name, value in observation.metrics.items():
            self._recent_values.setdefault(name, deque(maxlen=self._outcome_samples)).append(value)
        tick = observation.tick
        self._pending = [(cast, outcome) for cast, outcome in self._pending if tick <= cast.tick + cast.vote.horizon]
        for cast, outcome in self._pending:
            if cast.vote.target in observation.metrics:
                outcome.after.append(observation.metrics[cast.vote.target])


def main(
    agent: str,
    folder: RunFolder,
    *,
    until: int | None,
    as_json: bool,
    rules: Mapping[str, Any] | None = None,
    hints: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
) -> int:
    """Print a backtest and return the exit code. `rules` replace the rules of the recording. `hints` returns hints
    about missing information, given the recording's metrics. Raises ConfigError, and the errors of reading a log."""
    events = LocalRun(folder).events(exact=True, until=until)
    test = asyncio.run(backtest(agent, folder.run, events, rules or {}))
    report = test.report(hints(test.metrics))
    if as_json:
        print(report.model_dump_json(ensure_ascii=True))
    else:
        say(*(line for text in text_lines(report) for line in wrapped(text)))
    return 0


async def backtest(
    agent: str,
    run: str,
    events: AsyncIterable[Event],
    rules: Mapping[str, Any],
    progress: Callable[[int, int], object] = lambda _events, _tick: None,
) -> Backtest:
    """Run an agent (the name of an entry point, or a file) over the verified events of a run. `progress` is called with
    (events, tick) after each event, and may raise to end the backtest. Raises ConfigError if the run never started."""
    name, loaded = load_repeatable(agent)
    test = Backtest(loaded, names.validate("agent", name), run, rules)
    count = 0
    async for event in events:
        test.add(event)
        count += 1
        progress(count, test.replay.tick)
    if not test.replay.started:
        raise ConfigError(f"run {run!r} never started: its log has no RunStarted in the part that was read")
    return test


def _without_graph_evidence(vote: Vote) -> Vote:
    """Return the vote without what the graph may change: the evidence and the alternative plans."""
    return vote.model_copy(update={"evidence": (), "otherwise": ()})


def _to_backtest_vote(cast: CastVote, outcome: RecordedOutcome) -> BacktestVote:
    vote, decision = cast.vote, cast.decision
    return BacktestVote(
        tick=cast.tick, actuator=vote.actuator, stance=vote.stance, value=vote.value, confidence=vote.confidence,
        target=vote.target, expected_change=vote.expected_change, horizon=vote.horizon, rationale=vote.rationale,
        counted=bool(cast.ballot or decision), verdict=decision.verdict if decision else None,
        decided_value=decision.value if decision else None, reason=decision.reason if decision else None,
        change_in_recording=outcome.change, carried_out_in_recording=outcome.carried_out,
    )  # fmt: skip


def text_lines(report: BacktestReport) -> list[str]:
    """Return the report as unwrapped lines."""
    output = [f"{report.agent} over {report.run}, {report.ticks} ticks"]
    if report.cannot_fire:
        output.append(f"cannot fire: {report.cannot_fire}")
    for vote in report.votes:
        output += _vote_lines(vote)
    votes, proposals = len(report.votes), report.proposals
    rate = f", {report.proposals_per_1000_ticks:g} per 1000 ticks" if report.proposals_per_1000_ticks else ""
    decisions = ", ".join(f"{count} {verdict}" for verdict, count in report.decisions.items()) or "none decided"
    noun = "a proposal" if proposals == 1 else "proposals"
    details = f" ({decisions})" if proposals else ""
    output.append(f"{counted(votes, 'vote')}, {proposals} of them {noun}{details}{rate}")
    if report.took_part:
        comparison = "cast the same votes" if report.same_votes else "voted differently"
        note = " (ignoring graph evidence)" if votes else ""
        output.append(f"it also took part in the recorded run and {comparison}{note}")
    if report.shadow:
        output.append("it was a shadow in the recording, but its votes count here")
    output += [f"notice at tick {notice.tick}: {notice.text}" for notice in report.notices]
    if report.problems:
        times = {1: "once", 2: "twice"}.get(len(report.problems), f"{len(report.problems)} times")
        output.append(f"it raised an exception {times}, first: {report.problems[0].strip().splitlines()[-1]}")
    if (first := report.first_divergence) is not None:
        output += [
            f"first divergence: tick {first.tick}, {first.actuator}",
            f"  recorded: {first.logged}",
            f"  here: {first.computed}",
        ]
    else:
        output.append("no divergence: all decisions are the same as in the recording")
    if any(vote.change_in_recording is not None for vote in report.votes):
        output.append(
            "* observed change in the target over the vote's horizon. The vote was not applied in the recording, "
            "except where marked †"
        )
    return [*output, *report.hints, OPEN_LOOP]


def _vote_lines(vote: BacktestVote) -> list[str]:
    stance = vote.stance if vote.value is None else f"{vote.stance} {show(vote.value)}"
    verdict = vote.verdict or ("still open" if vote.counted else "not counted")
    why = vote.reason.rsplit("; ", 1)[-1] if vote.reason else ""  # a decision's last reason settled it
    reason = f": {why}" if why else ""
    output = [
        f"tick {vote.tick}: {stance} for {vote.actuator} at {vote.confidence:.2f}; {verdict}{reason}",
        f"  why: {vote.rationale}",
    ]
    if vote.target:
        forecast = f" {vote.expected_change:+.3g} in {vote.horizon} ticks" if vote.horizon else ""
        mark = "†" if vote.carried_out_in_recording else ""
        change = vote.change_in_recording
        recorded = "" if change is None else f"; recorded*: {change:+.3g}{mark}"
        output.append(f"  forecast: {vote.target}{forecast}{recorded}")
    return output
