"""Trials: which changes are measured on a branch before they are kept, what they may cost, and their outcome.

The learner plays the next steps from one state, without a change and with it, on the same batches and random numbers,
and continues with the better end; so what a trial says of a change is measured, and a wrong one costs steps and nothing
else. The order goes out as a TrialStarted with the decisions' ids, the answer comes as a TrialEnded, and then each
decision has its receipt.

Tried is what `rules.trials` asks for, where the learner has announced that it can. A passing change that no trial can
measure now (another is under way, the steps for trials are spent, the run ends before) is adopted as it would be
without; a proposal that lacks nothing but a quorum is tried for as long as there are steps left: that is where
exploring comes from. What has lost is not asked again on the same evidence: for so many ticks as outcomes take, twice
as many after each further loss, neither tried nor adopted, and from then on not adopted untried, unless another change
was kept meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from oven_core.mesh.actuator_values import number, show
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.joint_proposals import Ruled
from oven_core.mesh.state import State
from oven_core.protocol.actions import ROLLBACK
from oven_core.protocol.messages import ActuatorSpec, Value
from oven_core.protocol.trial_messages import TrialArm, TrialEnded, TrialStarted

RECENT_TICKS = 200
"""`rules.trial_share` holds of these, too, so that a run does not spend all its trials at its beginning."""
CHANGES = 3
"""Arms beside the control, at most."""
COOLED = 1
"""The same where they are read after a cool-down. While a copy of an arm in the middle cools down, three copies would
have to be kept beside it: where the trial began, the best end so far and this arm's own. A learner keeps two."""
_Change = tuple[str, str]
"""Actuator and direction."""


@dataclass(slots=True)
class Lost:
    """A change that a trial measured, and did not keep."""

    until_tick: int
    times: int
    told: str


@dataclass
class Trials:
    """The trials of one run, as its log tells them."""

    state: State
    open: TrialStarted | None = None
    """Ordered, and not answered yet."""
    extra: int = 0
    """Steps that trials have thrown away."""
    _recent: deque[tuple[int, int]] = field(default_factory=deque)  # tick, steps thrown away
    _arms: list[TrialArm] = field(default_factory=list)  # of the trial that is about to be ordered
    _lost: dict[_Change, Lost] = field(default_factory=dict)
    _ways: dict[str, _Change] = field(default_factory=dict)  # decision of the open trial → what it changes
    _passed: set[str] = field(default_factory=set)  # those of its decisions that would be adopted without it

    def start(self) -> None:
        """The learner began, or began again: a trial of the process before it has no answer any more."""
        self.open, self._arms, self._ways, self._passed = None, [], {}, set()
        self._lost = {}

    @property
    def proposed(self) -> list[str]:
        """The decisions of the arms that are proposed so far."""
        return [id for arm in self._arms for id in arm.decisions]

    @property
    def possible(self) -> bool:
        """Whether this run makes trials at all."""
        return bool(self.state.reading) and self.state.rules.trials != "off"

    def wanted(self, spec: ActuatorSpec, ruled: Ruled) -> bool:
        """Whether the rules ask for a trial of a change that passed."""
        if not self.possible or not spec.has_outcome:
            return False
        rules, risky = self.state.rules, spec.risky or spec.moves_weights
        surest = max((line.confidence for line in ruled.lines if line.weight > 0), default=0.0)
        unsure = rules.trials == "unsure" and surest < rules.sure_confidence
        return rules.trials == "all" or risky or unsure

    def chosen(self, closing: list[tuple[Ballot, Ruled]]) -> list[tuple[Ballot, Ruled]]:
        """Ballots that close together: what would be adopted is tried, all of it together, where that is wanted of any
        part and can be done now; and a ballot by itself that lacks a quorum and nothing else is tried, too."""
        if not self.possible:
            return closing
        told, passing = "a trial measures it first", [pair for pair in closing if pair[1].verdict == "adopted"]
        wanted = any(self.wanted(self.state.specs[ballot.opened.actuator], ruled) for ballot, ruled in passing)
        if not passing and len(closing) == 1 and closing[0][1].explores:
            passing, told = closing, "a trial shows what it is worth"
        elif not wanted:
            return closing
        stands = self.obstacle({ballot.opened.actuator: ruled.value for ballot, ruled in passing})
        if stands and not wanted:
            return closing
        verdict, told = ("adopted", f"not tried: {stands}") if stands else ("tried", told)
        measured = [one.told for ballot, ruled in passing if (one := self._lost.get(_change(ballot, ruled)))]
        if stands and measured:
            verdict, told = "rejected", f"{measured[0]}; and it cannot be tried again now: {stands}"
        tried = {ballot.opened.actuator for ballot, _ in passing}
        return [
            (ballot, replace(ruled, verdict=verdict, reason=f"{ruled.reason}; {told}"))
            if ballot.opened.actuator in tried
            else (ballot, ruled)
            for ballot, ruled in closing
        ]

    def lost(self, actuator: str, way: str) -> str:
        """Why a change is not asked again yet: a trial has measured it. Empty if none has."""
        lost = self._lost.get((actuator, way))
        if lost is None or self.state.tick >= lost.until_tick or not self.possible:
            return ""
        return f"{lost.told}; asked again from tick {lost.until_tick} on"

    def obstacle(self, changes: Mapping[str, Value]) -> str:
        """Why no trial of these changes can be ordered now, with the figures; empty where one can."""
        state, rules = self.state, self.state.rules
        if self.open is not None:
            return f"trial {self.open.id} is under way"
        arms = [*(arm.changes for arm in self._arms), changes]
        rate = any(map(self._rated, arms))
        most = COOLED if rate and rules.trial_cooldown else CHANGES
        if len(arms) > most:
            return f"{len(self._arms)} changes are tried already, {most} can be compared at a time"
        each, back = max(map(self._steps, arms)), [self._way_back(arm) for arm in arms]
        steps, cooldown = each + max(back), rules.trial_cooldown if rate else 0
        cost = each * len(arms) + sum(back) + cooldown * (len(arms) + 1)
        recent = sum(extra for tick, extra in self._recent if tick > state.tick - RECENT_TICKS)
        limit = int(rules.trial_share * RECENT_TICKS)
        if recent + cost > limit:
            spent = f"of the newest {RECENT_TICKS} ticks {recent} of {limit} are spent"
            return f"it would throw away {cost} steps, and {spent}"
        whole = state.max_steps or max(state.tick, RECENT_TICKS)
        if self.extra + cost > rules.trial_share * whole:
            return (
                f"it would throw away {cost} steps, and {self.extra} of {int(rules.trial_share * whole)} are spent on "
                "trials"
            )
        if state.max_steps is not None and state.step + steps + cooldown + cost > state.max_steps:
            return f"it takes {steps + cooldown} steps, and the run ends at step {state.max_steps}"
        return ""

    def propose(self, decisions: Sequence[tuple[str, ActuatorSpec, str, Value]], passed: bool) -> None:
        """One more arm of the trial that is about to be ordered: what these (id, spec, direction, value) change
        together; none: no arm. `passed`: without a trial they would be adopted."""
        if not decisions:
            return
        ids = tuple(id for id, *_ in decisions)
        self._arms.append(TrialArm(decisions=ids, changes={spec.name: value for _, spec, _, value in decisions}))
        self._ways.update({id: (spec.name, way) for id, spec, way, _ in decisions})
        self._passed |= set(ids) if passed else set()

    def order(self, next_id: Callable[[], str]) -> TrialStarted | None:
        """The trial of all that was proposed at this event, with its own id; None where nothing was."""
        if not self._arms:
            return None
        rules, arms = self.state.rules, self._arms
        rate = any(self._rated(arm.changes) for arm in arms)
        self.open = TrialStarted(
            id=next_id(),
            tick=self.state.tick,
            expires_at_tick=self.state.tick + rules.apply_delay_ticks + rules.expire_ticks,
            arms=(TrialArm(), *arms),
            steps=max(self._steps(arm.changes) for arm in arms),
            cooldown=rules.trial_cooldown if rate else 0,
            reading=self.state.reading,
            margin=rules.trial_margin,
        )
        self._arms = []
        return self.open

    def end(self, ended: TrialEnded) -> TrialStarted | None:
        """What the learner answered; the trial that it answers, None where none was open under that id."""
        trial = self.open
        if trial is None or trial.id != ended.trial:
            self.state.counters["trial.not_open"] += 1
            return None
        self.open, ways, self._ways = None, self._ways, {}
        self.extra += ended.extra
        self._recent.append((self.state.tick, ended.extra))
        while self._recent[0][0] <= self.state.tick - RECENT_TICKS:
            self._recent.popleft()
        if ended.status != "completed":
            return trial
        over = set[_Change | None]()  # what has been judged by now: what was kept, and each that lost once
        if ended.kept:
            self._lost.clear()
            over |= {ways.get(id) for id in trial.arms[min(ended.kept, len(trial.arms) - 1)].decisions}
        for arm, reading in list(zip(trial.arms, ended.arms, strict=False))[1:]:
            if reading.gain is None or (ended.kept and reading.gain > max(0.0, trial.margin * (reading.noise or 0.0))):
                continue  # not measured, or better than the control as well
            found = f"{reading.gain:.3g} ± {reading.noise or 0.0:.2g}"
            changes = ", ".join(f"{name} {show(value)}" for name, value in arm.changes.items())
            told = f"a trial at tick {ended.tick} measured {changes}: a gain of {found} in {trial.reading}"
            for change in dict.fromkeys(map(ways.get, arm.decisions)):
                if change not in over:
                    self._lose(change, told)
            over |= {ways.get(id) for id in arm.decisions}
        return trial

    def untried(self, trial: TrialStarted, ended: TrialEnded) -> list[tuple[tuple[str, ...], str]]:
        """Decisions, arm by arm, that passed and that the learner could not try, with its reason: they are adopted as
        they would be in a run without trials."""
        passed, self._passed = self._passed, set()
        if ended.status == "interrupted" or ended.kept:
            return []
        found = []
        for index, arm in enumerate(trial.arms):
            reading = ended.arms[index] if index < len(ended.arms) else None
            why = ended.reason if ended.status == "refused" else reading.reason if reading else ""
            if arm.decisions and passed.issuperset(arm.decisions) and why and (reading is None or reading.gain is None):
                found.append((arm.decisions, why))
        return found

    def _lose(self, change: _Change | None, told: str) -> None:
        if change is None:
            return
        times = self._lost[change].times + 1 if change in self._lost else 1
        wait = self.state.rules.outcome_ticks * 2 ** min(times - 1, 6)
        self._lost[change] = Lost(self.state.tick + wait, times, told)

    def _rated(self, changes: Mapping[str, Value]) -> bool:
        """Whether one of them scales the rate: a lower one looks better after few steps whatever it does in the long
        run (Wu et al. 2018, arXiv:1803.02021)."""
        return any(self.state.spec(name).scales_rate for name in changes)

    def _steps(self, changes: Mapping[str, Value]) -> int:
        """Of an arm with these changes, by the kind of the one that takes longest to show."""
        each = self.state.rules.trial_steps
        return max((each.get(self.state.spec(name).kind, 1) for name in changes), default=1)

    def _way_back(self, changes: Mapping[str, Value]) -> int:
        """Steps more of an arm with a rollback, which has to come back to where the control begins."""
        to = number(changes.get(ROLLBACK))
        return max(0, self.state.tick - int(to)) if to is not None else 0


def _change(ballot: Ballot, ruled: Ruled) -> _Change:
    return ballot.opened.actuator, ruled.direction
