"""One decision with all that the log says of it: its receipt, its trial and its outcome. A pure fold."""

from __future__ import annotations

from dataclasses import dataclass, field

from oven_controller.log.trial_findings import Trial, Trials
from oven_controller.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_controller.protocol.events import Event
from oven_controller.protocol.messages import Decision, Outcome, Receipt


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision and its outcome."""

    decision: Decision
    receipt: Receipt | None
    outcome: Outcome | None
    trial: Trial | None
    arm: int
    """Of the trial."""
    announced: ActuatorAnnounced | None = None
    """Its actuator, where the learner had announced it anew before."""
    injected: tuple[PromptsInjected, ...] = ()
    """Prompts that were added from its tick on until it was judged: a change of the data beside its own."""
    later: Receipt | None = None
    """What the learner said of the actuator by itself after the decision was carried out: which weights the run ended
    with (run.best), or that a loop undid its change."""


@dataclass
class Explanations:
    """Feed it the log's events in order, judged."""

    decisions: dict[str, Decision] = field(default_factory=dict)
    _receipts: dict[str, Receipt] = field(default_factory=dict)
    _newest: dict[str, str] = field(default_factory=dict)  # actuator → the decision that was carried out last
    _later: dict[str, Receipt] = field(default_factory=dict)
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _trials: Trials = field(default_factory=Trials)
    _of: dict[str, tuple[str, int]] = field(default_factory=dict)  # decision → its trial and arm
    _announced: dict[str, ActuatorAnnounced] = field(default_factory=dict)  # actuator → its newest
    _before: dict[str, ActuatorAnnounced] = field(default_factory=dict)  # decision → its actuator's newest then
    _injected: list[PromptsInjected] = field(default_factory=list)
    _known: dict[str, Trial] = field(default_factory=dict)  # all trials: the fold lets the oldest go

    def feed(self, event: Event) -> None:
        """Take the next event in."""
        match event.body:
            case Decision() as decision:
                self.decisions[decision.id] = decision
                if (announced := self._announced.get(decision.actuator)) is not None:
                    self._before[decision.id] = announced
            case ActuatorAnnounced() as announced:
                self._announced[announced.actuator.name] = announced
            case PromptsInjected() as injected:
                self._injected.append(injected)
            case Receipt() as receipt if receipt.decision_id:
                self._receipts[receipt.decision_id] = receipt
                if receipt.status == "applied":
                    self._newest[receipt.actuator] = receipt.decision_id
            case Receipt() as receipt:
                if not receipt.command and (made := self._newest.get(receipt.actuator)) is not None:
                    self._later[made] = receipt
            case Outcome() as outcome:
                self._outcomes[outcome.decision_id] = outcome
            case body:
                if (trial := self._trials.feed(body)) is not None:
                    self._known[trial.started.id] = trial
                    for index, arm in enumerate(trial.started.arms):
                        self._of.update({id_: (trial.started.id, index) for id_ in arm.decisions})

    def find(self, name: str) -> Explanation | None:
        """Of the decision with this id, or on this ballot; else the newest that passed on this actuator, else the
        newest on it. None where there is none."""
        named = [d for d in self.decisions.values() if name in (d.id, d.ballot)]
        of = [d for d in self.decisions.values() if d.actuator == name]
        passed = [d for d in of if d.verdict != "rejected"]
        found = next((choice[-1] for choice in (named, passed, of) if choice), None)
        if found is None:
            return None
        trial, arm = self._of.get(found.id, ("", 0))
        outcome = self._outcomes.get(found.id)
        judged = outcome.tick if outcome is not None else found.tick + max(found.horizon, 1)
        return Explanation(
            found,
            self._receipts.get(found.id),
            outcome,
            self._known.get(trial),
            arm,
            self._before.get(found.id),
            tuple(one for one in self._injected if found.tick <= one.tick <= judged),
            self._later.get(found.id),
        )
