"""One agent's part in one run, as a pure fold: events in, votes, alerts and statuses out. The host adds the bus."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Mapping, Sequence

from oven_agents import memory_limit
from oven_agents.sdk.agent import Agent, Notice, Said
from oven_agents.sdk.alert_edges import AlertEdges
from oven_agents.sdk.alternative_plans import Alternatives, Plan, spoken
from oven_agents.sdk.topic_shares import TopicShares
from oven_agents.sdk.window import Knob, WindowMaker, plain_window
from oven_core.mesh.actuator_values import show
from oven_core.mesh.change_requirements import change
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, with_announced
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import (
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

KEPT = 512
"""Observations that a window holds at most."""
HEARTBEAT_TICKS = 10
"""An agent with nothing to say still says so this often; the mesh counts it as lost after `silent_ticks`."""
SAID_ALREADY = "said already"
"""Why a proposal is held back that is in the log as it is: on an open ballot, or refused a moment ago."""
PATIENCE = 20
"""Windows in a row on which an agent may raise before it says that it cannot fire."""


class Session:
    """`absorb` events in any number, then `react` once: that is how a slow agent skips windows instead of queuing."""

    def __init__(
        self,
        agent: Agent,
        name: str,
        *,
        shadow: bool = False,
        windows: WindowMaker = plain_window,
    ) -> None:
        """`shadow`: it says of itself that its votes shall not count; the run's rules may say so of others. `windows`
        makes what the agent votes on."""
        self.agent = agent
        self.name = name
        self.shadow = shadow
        self.problems: list[str] = []
        """Tracebacks of the agent's own code, for the process log; the host empties it."""
        self._windows = windows
        self._run: RunStarted | None = None
        self._reason: str | None = None
        self._observations: deque[Observation] = deque(maxlen=KEPT)
        self._knobs: dict[str, Knob] = {}
        self._receipts: list[Receipt] = []
        self._ballots: dict[str, BallotOpened] = {}
        self._in_flight: dict[str, Decision] = {}  # by actuator: adopted, without a receipt
        self._answered: set[str] = set()  # decisions with a receipt
        self._changed: dict[str, Decision] = {}  # by actuator: the newest that began a cool-down
        self._turned_down: dict[str, Decision] = {}  # by actuator: the newest that left a proposal of its own undone
        self._alerts = AlertEdges()
        self._noticed_about = ""  # what the last notice was about
        self._latest: dict[str, tuple[int, int]] = {}  # subject → (incarnation, n) of the newest learner message on it
        self._decided = ""  # id of the newest decision: one may come twice, live and from history
        self._closed: set[str] = set()  # ballots that were decided
        self._commanded: set[str] = set()  # decisions that an operator set or approved
        self._over = False
        self._voted_tick = -1
        self._told: set[str] = set()  # ballots answered
        self._cast: dict[str, int] = {}  # actuator → tick of the newest vote on it, until a decision
        self._seen = ""
        self._said_tick = -HEARTBEAT_TICKS
        self._failures = 0
        self._spent = ""  # why it takes no part any more, whatever begins
        self._announce = True

    def absorb(self, body: LogMessage | Malformed) -> None:
        """Take an event in. Duplicates (by incarnation and n, or by id) change nothing. An alert is taken for its own:
        what it said before it started again.

        Each subject's events come in order; between subjects they may overtake one another (each subscription has its
        own queue), so a receipt may come before its decision, and a decision before its ballot.
        """
        if isinstance(body, RunStarted | RunEnded | ActuatorAnnounced | Observation | Receipt):
            subject = "run" if isinstance(body, RunStarted | RunEnded | ActuatorAnnounced) else body.type
            if (body.incarnation, body.n) <= self._latest.get(subject, (0, -1)):
                return
            self._latest[subject] = (body.incarnation, body.n)
        match body:
            case RunStarted():
                self._begin(body)
            case ActuatorAnnounced():
                self._anew(body)
            case RunEnded():
                self._ballots.clear()
                self._over = True
            case Observation():
                self._observations.append(body)
            case Receipt():
                self._take_receipt(body)
            case BallotOpened():
                self._take_ballot(body)
            case Decision():
                if body.id > self._decided:
                    self._take_decision(body)
            case Alert():
                self._alerts.recall(body)
            case _:
                pass

    def _take_ballot(self, ballot: BallotOpened) -> None:
        if ballot.id > self._seen:
            self._seen = ballot.id
            if ballot.id not in self._closed:
                self._ballots[ballot.actuator] = ballot

    def _take_receipt(self, receipt: Receipt) -> None:
        knob = self._knobs.get(receipt.actuator)
        if not receipt.decision_id and (knob is None or knob.spec.kind == "action"):
            return  # of a hold, a resume or a stop: no setting has changed
        self._receipts.append(receipt)
        self._answered.add(receipt.decision_id)
        self._in_flight = {a: d for a, d in self._in_flight.items() if d.id != receipt.decision_id}
        self._apply_receipt(receipt)

    def _take_decision(self, decision: Decision) -> None:
        actuator = decision.actuator
        self._decided = decision.id
        self._closed.add(decision.ballot)
        if decision.command:
            self._commanded.add(decision.id)
        own = self._cast.pop(actuator, None) is not None
        if (ballot := self._ballots.get(actuator)) is not None and ballot.id == decision.ballot:
            del self._ballots[actuator]
        if decision.verdict == "adopted" and decision.id not in self._answered:
            self._in_flight[actuator] = decision
        if decision.verdict == "adopted":
            self._changed[actuator] = decision
        elif own or any(line.agent == self.name and line.stance == "propose" for line in decision.tally):
            self._turned_down[actuator] = decision

    def react(self) -> list[Vote | AgentStatus | Alert | Plan | Alternatives | TopicShares]:
        """What to say now: the status on joining, votes on a new tick, answers to new ballots, signs of life. Of
        alternatives one plan is to be published (oven_agents.runtime.kg_client)."""
        out: list[Vote | AgentStatus | Alert | Plan | Alternatives | TopicShares] = []
        if self._announce:
            out.append(self._status("joined"))
            self._announce = False
            if self._reason:
                out.append(self._status("cannot_fire", self._reason))
        if self._run is None or not self._observations:
            return out
        tick = self._observations[-1].tick
        news = tick > self._voted_tick
        ballots = [ballot for ballot in self._ballots.values() if ballot.id not in self._told]
        if news or ballots:
            out.extend(self._votes(news, ballots))
        self._voted_tick = tick
        self._told.update(ballot.id for ballot in ballots)
        unanswered = [ballot for ballot in ballots if self._run.lockstep or not self._answers(ballot)]
        beats = self._run.lockstep or tick >= self._said_tick + HEARTBEAT_TICKS
        if unanswered or (news and beats):
            out.append(self._status("done"))
            self._said_tick = tick
        return out

    @property
    def awaited(self) -> AgentStatus | None:
        """In lockstep: what the mesh waits for, to be said again if nothing comes of it (the votes stream drops what
        exceeds its limits silently)."""
        if self._run is None or self._over or not self._run.lockstep or self._voted_tick < 0:
            return None
        return self._status("done")

    def announce(self) -> None:
        """Join again with the next reaction: the word of it may have been lost with the connection."""
        self._announce = True

    @property
    def run(self) -> RunStarted | None:
        """The run's newest announcement; None before the first."""
        return self._run

    @property
    def knobs(self) -> Mapping[str, Knob]:
        """The run's actuators by name, as the last receipts left them."""
        return self._knobs

    @property
    def in_flight(self) -> list[str]:
        """Changes adopted, without a receipt and not lapsed, spelt like "optimizer.lr_scale:down"."""
        tick = self._observations[-1].tick if self._observations else 0
        flying = (decision for decision in self._in_flight.values() if tick <= decision.expires_at_tick)
        return [change(decision.actuator, decision.before, decision.value) for decision in flying]

    def leave(self, reason: str = "") -> AgentStatus:
        """The status with which it takes its leave."""
        return self._status("left", reason)

    def _begin(self, run: RunStarted) -> None:
        if self._run is not None and run.training != self._run.training:
            self._forget(run.incarnation)
        self._run, self._over = run, False
        changed = {name: knob.changed_at for name, knob in self._knobs.items()}
        self._knobs = {spec.name: Knob(spec, spec.value, changed.get(spec.name)) for spec in run.actuators}
        for receipt in self._receipts:
            if receipt.incarnation == run.incarnation:
                self._apply_receipt(receipt)
        # What is in flight or open stays: the new incarnation answers the one, and the mesh closes the other.
        self._announce = True
        if not self._spent:
            self._reason = self._cannot_fire(run)

    def _cannot_fire(self, run: RunStarted) -> str | None:
        try:
            return self.agent.cannot_fire(run)
        except (Exception, SystemExit) as error:
            self.problems.append(traceback.format_exc())
            return f"cannot_fire raised {type(error).__name__}: {error}"

    def _anew(self, said: ActuatorAnnounced) -> None:
        """An actuator came, or has other choices or bounds: what could not fire may now, or the other way round."""
        if self._run is None or (run := with_announced(self._run, said)) is self._run:
            return
        self._run, spec = run, said.actuator
        known = self._knobs.get(spec.name)
        self._knobs = {**self._knobs, spec.name: Knob(spec, spec.value, known.changed_at if known else None)}
        for receipt in self._receipts:  # a receipt may have overtaken it
            if receipt.actuator == spec.name and (receipt.incarnation, receipt.n) > (said.incarnation, said.n):
                self._apply_receipt(receipt)
        if self._spent or self._failures >= PATIENCE:
            return
        before, self._reason = self._reason, self._cannot_fire(run)
        if bool(before) != bool(self._reason):
            self._announce, self._voted_tick = True, -1

    def _forget(self, incarnation: int) -> None:
        """Another training of the script begins: what was measured and done in the one before says nothing of it.
        Outcomes that are known already, ahead of its announcement, stay."""
        kept = [o for o in self._observations if o.incarnation >= incarnation]
        self._observations = deque(kept, maxlen=KEPT)
        self._receipts = [receipt for receipt in self._receipts if receipt.incarnation >= incarnation]
        self._knobs, self._in_flight, self._changed, self._turned_down = {}, {}, {}, {}
        self._commanded.clear()
        self._noticed_about, self._failures = "", 0
        self._alerts = AlertEdges()

    def _apply_receipt(self, receipt: Receipt) -> None:
        if receipt.status not in ("applied", "noop") or receipt.actuator not in self._knobs:
            return
        knob = self._knobs[receipt.actuator]
        changed = receipt.tick if receipt.status == "applied" else knob.changed_at
        value = knob.value if knob.spec.kind == "action" else receipt.after
        self._knobs[receipt.actuator] = Knob(knob.spec, value, changed)

    def _votes(
        self, news: bool, ballots: Sequence[BallotOpened]
    ) -> list[Vote | AgentStatus | Alert | Plan | Alternatives | TopicShares]:
        if self._reason:
            return []
        assert self._run is not None
        window = self._windows(
            self._run, self._observations, self._knobs, self._receipts, self._ballots, self._commanded
        )
        try:
            alerts = self._alerts.changed(self.agent.alerts(window), window) if news else []
            said = self.agent.vote(window) if news else None
            plans, proposals, told = self._sorted(said, window.tick)
            answers = [self.agent.review(b, window) for b in ballots if b.opened_by != self.name]
            votes = [*proposals, *(answer for answer in answers if answer is not None)]
            cast = [*votes, *(vote for vote in spoken(plans) if isinstance(vote, Vote))]
            self._cast.update((vote.actuator, vote.tick) for vote in cast)  # raises where that is no vote
        except MemoryError:
            vars(self.agent).clear()  # what it hoards; without it, not even this could be said
            self._spent = self._reason = memory_limit.reached(self.name)
            self.problems.append(self._spent)
            return [self._status("cannot_fire", self._spent)]
        except (Exception, SystemExit) as error:
            self.problems.append(traceback.format_exc())
            self._failures += 1
            if self._failures < PATIENCE:
                return []
            self._reason = f"raised on {PATIENCE} windows in a row, last {type(error).__name__}: {error}"
            return [self._status("cannot_fire", self._reason[:2000])]
        self._failures = 0
        self._alerts.take(alerts)
        return [*alerts, *self._noticed(told), *plans, *votes]

    def _sorted(
        self, said: Said, tick: int
    ) -> tuple[list[Plan | Alternatives | TopicShares], list[Vote], Notice | None]:
        """Plans and proposals that may be cast now, and what is to be told: a notice, or why they may not."""
        if isinstance(said, Notice):
            return [], [], said
        if isinstance(said, Alternatives | Plan):
            plans = said.plans if isinstance(said, Alternatives) else (said,)
            why = self._obstacle([vote for plan in plans for vote in plan.votes], tick)
            return ([], [], _held_back(plans[0].votes, why)) if why else ([said], [], None)
        if isinstance(said, TopicShares):
            own, why = said.decided(None), self._obstacle([said.vote], tick)
            return ([], [], _held_back([own], why) if own else None) if why else ([said], [], None)
        proposals = [said] if isinstance(said, Vote) else list(said or ())
        kept = [(vote, self._is_redundant(vote, tick)) for vote in proposals]
        told = next((notice for vote, why in kept if (notice := _held_back([vote], why))), None)
        return [], [vote for vote, why in kept if not why], told

    def _obstacle(self, votes: Sequence[Vote], tick: int) -> str:
        """Why one of the votes would only fill the log now; empty if none would."""
        return next((why for vote in votes if (why := self._is_redundant(vote, tick))), "")

    def _noticed(self, notice: Notice | None) -> list[AgentStatus]:
        """Once; again when something else was told in between."""
        if notice is None or notice.about == self._noticed_about:
            return []
        self._noticed_about = notice.about
        return [self._status("notice", notice.text[:2000])]

    def _answers(self, ballot: BallotOpened) -> bool:
        """Whether a vote of this agent counts in the ballot already, so that no one waits for it to be done."""
        return ballot.opened_by == self.name or self._cast.get(ballot.actuator, -1) >= ballot.tick

    def _is_redundant(self, vote: Vote, tick: int) -> str:
        """Why a proposal would only fill the log now; empty if it would not. An actuator cools down after any
        change, and after a refusal of what this agent itself proposed, or advice; what was refused to somebody else
        is not a reason to be silent."""
        if vote.stance != "propose":
            return ""
        ballot = self._ballots.get(vote.actuator)
        if ballot is not None:
            return SAID_ALREADY if ballot.opened_by == self.name else ""
        assert self._run is not None
        flying = self._in_flight.get(vote.actuator)
        if flying is not None and tick <= flying.expires_at_tick:
            return f"decision {flying.id} on {vote.actuator} has no receipt yet"
        cooldown = self._run.rules.cooldown_ticks
        changed, refused = self._changed.get(vote.actuator), self._turned_down.get(vote.actuator)
        if changed is not None and tick < changed.tick + cooldown:
            return f"{vote.actuator} cools down until tick {changed.tick + cooldown}, after decision {changed.id}"
        if refused is not None and tick < refused.tick + cooldown:
            return SAID_ALREADY
        return ""

    def _status(self, state: str, reason: str = "") -> AgentStatus:
        tick = self._observations[-1].tick if self._observations else 0
        if state == "done":
            return AgentStatus(state="done", tick=tick, seen=self._seen)
        return AgentStatus.model_validate(
            {
                "state": state,
                "tick": tick,
                "seen": self._seen,
                "reason": reason,
                "version": self.agent.version,
                "needs": self.agent.needs,
                "moves": self.agent.moves,
                "speciality": self.agent.speciality,
                "shadow": self.shadow,
            }
        )


def _held_back(votes: Sequence[Vote], why: str) -> Notice | None:
    """That the votes are not cast, and why; None where they are, or are in the log as they are."""
    if not why or why == SAID_ALREADY:
        return None
    wanted = " and ".join(v.actuator if v.value is None else f"{show(v.value)} for {v.actuator}" for v in votes)
    return Notice(f"held back: {wanted}", f"held back: {wanted}, because {votes[0].rationale}; {why}")
