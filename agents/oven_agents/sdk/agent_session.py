"""The session of one agent in one run, without a bus. It turns events into votes, alerts and statuses."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oven_agents import memory_limit
from oven_agents.sdk.active_symptoms import ActiveSymptoms
from oven_agents.sdk.agent import Agent, Answer, Notice
from oven_agents.sdk.alternative_plans import (
    Alternatives,
    GraphReview,
    Plan,
    TopicShares,
    UnsentMessage,
    without_graph,
)
from oven_agents.sdk.window import Knob, Window
from oven_core.mesh.actuator_values import show
from oven_core.mesh.change_requirements import change_between
from oven_core.mesh.state import main_held_out_metric
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, with_announced
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import (
    WITHHELD_PREFIX,
    AgentStatus,
    BallotOpened,
    Decision,
    LogMessage,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    Vote,
)

WINDOW_LENGTH = 512
"""Maximum number of observations in a window."""
HEARTBEATS = 5
"""Number of heartbeats (`done` statuses) in `rules.silent_ticks`, after which the mesh stops waiting for an agent."""
ALREADY_LOGGED = "already logged"
"""The reason for withholding a proposal that is on an open ballot already, or was rejected recently."""
MAX_FAILURES = 20
"""Number of consecutive windows on which an agent raises an exception before the session stops calling it."""


class Session:
    """The state of one agent in one run. Call `absorb` with any number of events, then `react` once."""

    def __init__(
        self, agent: Agent, name: str, *, shadow: bool = False, create_window: Callable[..., Window] | None = None
    ) -> None:
        """Create a session. The votes of a `shadow` agent do not count. `create_window` takes the same arguments as
        `plain_window`, the default."""
        self.agent = agent
        self.name = name
        self.shadow = shadow
        self.problems: list[str] = []
        """Tracebacks from the agent's code, for the process log. The host clears the list."""
        self._create_window = create_window or plain_window
        self._run: RunStarted | None = None
        self._cannot_fire_reason: str | None = None
        self._can_review = False
        self._has_failed = False  # whether the reason is an error in the agent's code, so that it is not called again
        self._observations: deque[Observation] = deque(maxlen=WINDOW_LENGTH)
        self._earlier: deque[tuple[int, int, float]] = deque(maxlen=WINDOW_LENGTH)  # `Window.earlier`
        self._knobs: dict[str, Knob] = {}
        self._receipts: list[Receipt] = []
        self._ballots: dict[str, BallotOpened] = {}
        self._in_flight: dict[str, Decision] = {}  # adopted decisions without a receipt, by actuator
        self._answered_ids: set[str] = set()  # ids of decisions with a receipt
        self._adopted: dict[str, Decision] = {}  # the newest adopted decision, by actuator
        self._rejections: dict[str, Decision] = {}  # the newest decision against a proposal of this agent, by actuator
        self._alerts = ActiveSymptoms()
        self._last_notice = ""  # the topic of the last notice
        self._latest_messages: dict[str, tuple[int, int]] = {}  # id of the newest learner message, by subject
        self._latest_decision = ""  # id of the newest decision, because one may arrive twice, live and from history
        self._closed_ballots: set[str] = set()  # ids of decided ballots
        self._commanded_ids: set[str] = set()  # ids of decisions that an operator set or approved
        self._ended = False
        self._voted_tick = -1
        self._reviewed_ballots: set[str] = set()  # ids of ballots that the agent has reviewed
        self._cast_ticks: dict[str, int] = {}  # tick of the newest undecided vote, by actuator
        self._open_proposals: set[str] = set()  # actuators for which a proposal of this agent is undecided
        self._latest_ballot = ""  # id of the newest ballot
        self._heartbeat_tick: int | None = None
        self._failures = 0  # number of consecutive windows on which the agent raised
        self._out_of_memory = ""  # the reason, if the agent ran out of memory and can never vote again
        self._must_announce = True

    def absorb(self, body: LogMessage | Malformed) -> None:
        """Add an event. Duplicates change nothing. A learner message is identified by its incarnation (the number of
        learner starts) and its number `n`, other messages by their id. Only this agent's own alerts may be added. They
        restore its active symptoms after a restart. Only events of the same subject arrive in order, because each
        subscription has its own queue. A receipt may arrive before its decision, and a decision before its ballot."""
        if isinstance(body, RunStarted | RunEnded | ActuatorAnnounced | Observation | Receipt):
            subject = "run" if isinstance(body, RunStarted | RunEnded | ActuatorAnnounced) else body.type
            if (body.incarnation, body.n) <= self._latest_messages.get(subject, (0, -1)):
                return
            self._latest_messages[subject] = (body.incarnation, body.n)
        match body:
            case RunStarted():
                self._begin(body)
            case ActuatorAnnounced():
                self._absorb_actuator(body)
            case RunEnded():
                self._ballots.clear()
                self._ended = True
            case Observation():
                self._absorb_observation(body)
            case Receipt():
                self._absorb_receipt(body)
            case BallotOpened():
                self._absorb_ballot(body)
            case Decision():
                if body.id > self._latest_decision:
                    self._absorb_decision(body)
            case Alert():
                self._alerts.record(body)
            case _:
                pass

    def _absorb_observation(self, observation: Observation) -> None:
        """Add an observation, and keep the held-out reading of the observation that leaves the window."""
        if len(self._observations) == WINDOW_LENGTH:
            oldest = self._observations[0]
            while self._earlier and self._earlier[-1][1] >= oldest.step:  # a rollback discarded the reading
                self._earlier.pop()
            metric = main_held_out_metric(self._run.metrics) if self._run is not None else None
            if metric is not None and metric.name in oldest.metrics:
                self._earlier.append((oldest.tick, oldest.step, oldest.metrics[metric.name]))
        self._observations.append(observation)

    def _absorb_ballot(self, ballot: BallotOpened) -> None:
        if ballot.id > self._latest_ballot:
            self._latest_ballot = ballot.id
            if ballot.id not in self._closed_ballots:
                self._ballots[ballot.actuator] = ballot

    def _absorb_receipt(self, receipt: Receipt) -> None:
        knob = self._knobs.get(receipt.actuator)
        if not receipt.decision_id and (knob is None or knob.spec.kind == "action"):
            return  # a pause, a resume or a stop changes no setting
        self._receipts.append(receipt)
        self._answered_ids.add(receipt.decision_id)
        self._in_flight = {
            key: pending for key, pending in self._in_flight.items() if pending.id != receipt.decision_id
        }
        self._apply_receipt(receipt)

    def _absorb_decision(self, decision: Decision) -> None:
        actuator = decision.actuator
        self._latest_decision = decision.id
        self._closed_ballots.add(decision.ballot)
        if decision.command:
            self._commanded_ids.add(decision.id)
        has_proposed = actuator in self._open_proposals
        self._open_proposals.discard(actuator)
        self._cast_ticks.pop(actuator, None)
        if (ballot := self._ballots.get(actuator)) is not None and ballot.id == decision.ballot:
            del self._ballots[actuator]
        if decision.verdict == "adopted" and decision.id not in self._answered_ids:
            self._in_flight[actuator] = decision
        if decision.verdict == "adopted":
            self._adopted[actuator] = decision
        elif has_proposed or any(entry.agent == self.name and entry.stance == "propose" for entry in decision.tally):
            self._rejections[actuator] = decision

    def react(self) -> list[UnsentMessage]:
        """Return the agent's new messages: its status when it joins, votes on a new tick, votes on new ballots, and
        heartbeats. The caller chooses one plan of `Alternatives` (oven_agents.runtime.kg_client)."""
        messages: list[UnsentMessage] = []
        if self._must_announce:
            self._must_announce, reason = False, self._cannot_fire_reason or ""
            only_reviews = f"only reviews, because {reason}" if reason and not self._is_idle else ""
            messages.append(self._status("joined", only_reviews))
            if self._is_idle:
                messages.append(self._status("failed" if self._has_failed else "cannot_fire", reason))
        if self._run is None or not self._observations:
            return messages
        tick = self._observations[-1].tick
        is_new_tick = tick > self._voted_tick
        ballots = [ballot for ballot in self._ballots.values() if ballot.id not in self._reviewed_ballots]
        if is_new_tick or ballots:
            messages.extend(self._call_agent(is_new_tick, ballots))
        self._voted_tick = tick
        self._reviewed_ballots.update(ballot.id for ballot in ballots)
        if self._is_idle:  # the mesh does not wait for this agent
            return messages
        is_awaited = any(self._run.lockstep or not self._has_answered(ballot) for ballot in ballots)
        is_heartbeat_due = self._run.lockstep or self._is_heartbeat_due(self._run.rules.silent_ticks, tick)
        if is_awaited or (is_new_tick and is_heartbeat_due):
            messages.append(self._status("done"))
            self._heartbeat_tick = tick
        return messages

    def _is_heartbeat_due(self, silent_ticks: int, tick: int) -> bool:
        return self._heartbeat_tick is None or tick >= self._heartbeat_tick + silent_ticks / HEARTBEATS

    @property
    def awaited_status(self) -> AgentStatus | None:
        """The status that the mesh waits for in lockstep mode, otherwise None. Repeat it if there is no reaction,
        because the votes stream silently drops messages beyond its limits."""
        if self._run is None or self._ended or not self._run.lockstep or self._voted_tick < 0:
            return None
        return None if self._is_idle else self._status("done")

    @property
    def _is_idle(self) -> bool:
        """Whether the agent neither proposes nor reviews in this run."""
        return bool(self._cannot_fire_reason) and (self._has_failed or not self._can_review)

    def announce(self) -> None:
        """Send the agent's status again with the next messages, because it may have been lost with the connection."""
        self._must_announce = True

    @property
    def run(self) -> RunStarted | None:
        """The run's newest announcement, or None before the first."""
        return self._run

    @property
    def knobs(self) -> Mapping[str, Knob]:
        """The run's actuators by name, with the values of the last receipts."""
        return self._knobs

    @property
    def in_flight(self) -> list[str]:
        """Adopted changes that have no receipt and have not expired, e.g. "optimizer.lr_scale:down"."""
        tick = self._observations[-1].tick if self._observations else 0
        pending = (decision for decision in self._in_flight.values() if tick <= decision.expires_at_tick)
        return [change_between(decision.actuator, decision.before, decision.value) for decision in pending]

    def leave(self, reason: str = "") -> AgentStatus:
        """Return the status with which the agent leaves the run."""
        return self._status("left", reason)

    def _begin(self, run: RunStarted) -> None:
        if self._run is not None and run.training != self._run.training:
            self._forget(run.incarnation)
        self._run, self._ended = run, False
        change_ticks = {name: knob.changed_at for name, knob in self._knobs.items()}
        self._knobs = {spec.name: Knob(spec, spec.value, change_ticks.get(spec.name)) for spec in run.actuators}
        for receipt in self._receipts:
            if receipt.incarnation == run.incarnation:
                self._apply_receipt(receipt)
        # Decisions in flight and open ballots stay: the new incarnation sends receipts, and the mesh closes ballots.
        self._must_announce = True
        if not self._out_of_memory:
            self._cannot_fire_reason = self._cannot_fire(run)

    def _cannot_fire(self, run: RunStarted) -> str | None:
        self._has_failed = False
        try:
            self._can_review = self.agent.can_review(run)
            return self.agent.cannot_fire(run)
        except (Exception, SystemExit) as error:
            self._has_failed = True
            self.problems.append(traceback.format_exc())
            return f"cannot_fire raised {type(error).__name__}: {error}"

    def _absorb_actuator(self, announcement: ActuatorAnnounced) -> None:
        """Handle an actuator that is new or has new choices or bounds. This may change whether the agent can vote."""
        if self._run is None or (run := with_announced(self._run, announcement)) is self._run:
            return
        self._run, spec = run, announcement.actuator
        earlier = self._knobs.get(spec.name)
        self._knobs = {**self._knobs, spec.name: Knob(spec, spec.value, earlier.changed_at if earlier else None)}
        announcement_id = announcement.incarnation, announcement.n
        for receipt in self._receipts:  # a later receipt may have arrived before the announcement
            if receipt.actuator == spec.name and (receipt.incarnation, receipt.n) > announcement_id:
                self._apply_receipt(receipt)
        if self._out_of_memory or self._failures >= MAX_FAILURES:
            return
        before, self._cannot_fire_reason = self._cannot_fire_reason, self._cannot_fire(run)
        if bool(before) != bool(self._cannot_fire_reason):
            self._must_announce, self._voted_tick = True, -1  # call the agent again on the current tick

    def _forget(self, incarnation: int) -> None:
        """Drop the state of the previous training run. Messages of the new incarnation that arrived early are kept."""
        current = (o for o in self._observations if o.incarnation >= incarnation)
        self._observations = deque(current, maxlen=WINDOW_LENGTH)
        self._earlier.clear()
        self._receipts = [receipt for receipt in self._receipts if receipt.incarnation >= incarnation]
        self._knobs, self._in_flight, self._adopted, self._rejections = {}, {}, {}, {}
        self._commanded_ids.clear()
        self._last_notice, self._failures = "", 0
        self._alerts = ActiveSymptoms()

    def _apply_receipt(self, receipt: Receipt) -> None:
        if receipt.status not in ("applied", "noop") or receipt.actuator not in self._knobs:
            return
        knob = self._knobs[receipt.actuator]
        changed_at = receipt.tick if receipt.status == "applied" else knob.changed_at
        value = knob.value if knob.spec.kind == "action" else receipt.after
        self._knobs[receipt.actuator] = Knob(knob.spec, value, changed_at)

    def _call_agent(self, is_new_tick: bool, ballots: Sequence[BallotOpened]) -> list[UnsentMessage]:
        """Ask the agent for alerts, a vote and reviews. Return no votes if it fails. If it keeps failing, stop.

        An agent that cannot propose anything in this run may still review ballots."""
        if self._is_idle or (self._cannot_fire_reason and not ballots):
            return []
        votes_now = is_new_tick and not self._cannot_fire_reason
        assert self._run is not None
        new_ticks = max(1, self._observations[-1].tick - self._voted_tick) if self._voted_tick >= 0 else 1
        window = self._create_window(
            self._run, self._observations, self._knobs, self._receipts, self._ballots, self._commanded_ids, new_ticks,
            tuple(self._earlier), self.agent.reads or self.agent.needs,
        )  # fmt: skip
        try:
            alerts = self._alerts.changes(self.agent.alerts(window), window) if votes_now else []
            answer = self.agent.vote(window) if votes_now else None
            plans, proposals, notice = self._sort_answer(answer, window.tick)
            cast = [*proposals, *(vote for vote in without_graph(plans) if isinstance(vote, Vote))]
            vote_ticks = {vote.actuator: vote.tick for vote in cast}  # fails if an entry is not a vote
            unanswered = [
                ballot
                for ballot in ballots
                if not self._has_answered(ballot) and vote_ticks.get(ballot.actuator, -1) < ballot.tick
            ]
            reviews = [self.agent.review(ballot, window) for ballot in unanswered]
            votes = [*proposals, *(review for review in reviews if isinstance(review, Vote))]
            questions = [review for review in reviews if isinstance(review, GraphReview)]
            self._record_cast([*cast, *votes])
        except MemoryError:
            vars(self.agent).clear()  # frees memory for building the status
            self._has_failed = True
            self._out_of_memory = self._cannot_fire_reason = memory_limit.out_of_memory_message(self.name)
            self.problems.append(self._out_of_memory)
            return [self._status("failed", self._out_of_memory)]
        except (Exception, SystemExit) as error:
            self.problems.append(traceback.format_exc())
            self._failures += 1
            if self._failures < MAX_FAILURES:
                return []
            self._has_failed = True
            self._cannot_fire_reason = (
                f"raised an error on {MAX_FAILURES} consecutive windows, most recently {type(error).__name__}: {error}"
            )
            return [self._status("failed", self._cannot_fire_reason[:2000])]
        self._failures = 0
        for alert in alerts:
            self._alerts.record(alert)
        return [*alerts, *self._notice_status(notice), *plans, *votes, *questions]

    def _record_cast(self, votes: Iterable[Vote]) -> None:
        for vote in votes:
            self._cast_ticks[vote.actuator] = vote.tick
            if vote.stance == "propose":
                self._open_proposals.add(vote.actuator)

    def _sort_answer(
        self, answer: Answer, tick: int
    ) -> tuple[list[Plan | Alternatives | TopicShares], list[Vote], Notice | None]:
        """Return the plans and proposals to cast now, and the agent's notice or the reason for withholding votes."""
        if isinstance(answer, Notice):
            return [], [], answer
        if isinstance(answer, Alternatives | Plan):
            plans = answer.plans if isinstance(answer, Alternatives) else (answer,)
            reason = self._withholding_reason([vote for plan in plans for vote in plan.votes], tick)
            if reason:
                return [], [], _withheld_notice(plans[0].votes, reason)
            return [answer], [], None
        if isinstance(answer, TopicShares):
            vote, reason = answer.resolve(None), self._withholding_reason([answer.vote], tick)
            if reason:
                return [], [], _withheld_notice([vote], reason) if vote else None
            return [answer], [], None
        proposals = [answer] if isinstance(answer, Vote) else list(answer or ())
        reasons = [(vote, self._withholding_reason([vote], tick)) for vote in proposals]
        notices = filter(None, (_withheld_notice([vote], reason) for vote, reason in reasons))
        return [], [vote for vote, reason in reasons if not reason], next(notices, None)

    def _withholding_reason(self, votes: Sequence[Vote], tick: int) -> str:
        """Return the reason for withholding the first redundant vote, or an empty string if there is none."""
        return next((reason for vote in votes if (reason := self._redundancy_reason(vote, tick))), "")

    def _notice_status(self, notice: Notice | None) -> list[AgentStatus]:
        """Return the notice as a status, unless it is about the same topic as the last one."""
        if notice is None or notice.about == self._last_notice:
            return []
        self._last_notice = notice.about
        return [self._status("notice", notice.text[:2000])]

    def _has_answered(self, ballot: BallotOpened) -> bool:
        """Return whether a vote of this agent already counts in the ballot, so that the mesh does not wait for it."""
        return ballot.opened_by == self.name or self._cast_ticks.get(ballot.actuator, -1) >= ballot.tick

    def _redundancy_reason(self, vote: Vote, tick: int) -> str:
        """Return the reason why a proposal is redundant now, or an empty string if it is not. An actuator cools down
        after a change, and after a proposal of this agent (but not of others) was not adopted."""
        if vote.stance != "propose":
            return ""
        ballot = self._ballots.get(vote.actuator)
        if ballot is not None:
            return ALREADY_LOGGED if ballot.opened_by == self.name else ""
        assert self._run is not None
        pending = self._in_flight.get(vote.actuator)
        if pending is not None and tick <= pending.expires_at_tick:
            return f"decision {pending.id} on {vote.actuator} has no receipt yet"
        cooldown = self._run.rules.cooldown_ticks
        adopted, rejection = self._adopted.get(vote.actuator), self._rejections.get(vote.actuator)
        if adopted is not None and tick < adopted.tick + cooldown:
            return f"{vote.actuator} cools down until tick {adopted.tick + cooldown}, after decision {adopted.id}"
        if rejection is not None and tick < rejection.tick + cooldown:
            return ALREADY_LOGGED
        return ""

    def _status(self, state: str, reason: str = "") -> AgentStatus:
        tick = self._observations[-1].tick if self._observations else 0
        if state == "done":
            return AgentStatus(state="done", tick=tick, seen=self._latest_ballot)
        agent = self.agent
        declared = {"version": agent.version, "needs": agent.needs, "moves": agent.moves}
        content = {"state": state, "tick": tick, "seen": self._latest_ballot, "reason": reason, "shadow": self.shadow}
        return AgentStatus.model_validate(content | declared)


def plain_window(run: RunStarted, observations: Sequence[Observation], *fields: Any) -> Window:
    """Return a window with a copy of a session's observations, because the agent may keep it."""
    return Window(run, list(observations), *fields)


def _withheld_notice(votes: Sequence[Vote], reason: str) -> Notice | None:
    """Return a notice with the reason for withholding the votes, or None if they are cast or already logged."""
    if not reason or reason == ALREADY_LOGGED:
        return None
    changes = " and ".join(v.actuator if v.value is None else f"{show(v.value)} for {v.actuator}" for v in votes)
    topic = f"{WITHHELD_PREFIX}{changes}"
    return Notice(topic, f"{topic}, because {reason}. The proposal's reason: {votes[0].rationale}")
