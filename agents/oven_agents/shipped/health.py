"""Reports what is wrong with a run, by the rules of `oven-controller review`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from oven_agents.diagnosis.finding import MIN_ACT_CONFIDENCE, MIN_ADVICE_CONFIDENCE, Evidence
from oven_agents.diagnosis.interventions import TREATMENTS
from oven_agents.diagnosis.kinds import remedy_of
from oven_agents.diagnosis.rules import read_curves
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.diagnosis.window_record import record_of
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import firm_confidence, tentative_confidence
from oven_agents.stats.objective import objective
from oven_agents.stats.reviews import OBJECTION_CONFIDENCE, effect_of
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, Vote

HARMS: Final = frozenset({"nan", "diverged", "reward_collapse", "overfit", "reward_hacked"})
"""Kinds of findings that speak for a change that protects the run, and against one that pushes it harder."""


class Health(Agent):
    """Signals: the rules that judge the curves of a finished run (oven_agents.diagnosis.rules), applied to the newest
    512 ticks and all held-out readings.

    Actions: an alert with the figures and what to change, for as long as the finding lasts. The agent has no knob of
    its own, so it works in every run, whatever the trainer lets others change. It answers the ballots of other agents:
    if it has found harm, it is for a rollback or a gentler training, and against a harder push. It is for new weights
    of the reward if the policy games the reward.

    False alarms: on labelled logs of other people's runs, see docs/benchmarks.md.

    Limits: rules on the whole run, such as "the loss never fell", are silent once its beginning has left the window,
    and before a quarter of the planned steps or 400 readings. A loss that falls only later, e.g. in a second epoch, is
    called stuck until then. A loss that spikes for a tenth of the run is called diverged until it comes back.
    """

    EVERY_TICKS = 10
    """Number of ticks between two looks. The rules need many readings, so that one tick changes little."""

    def __init__(self) -> None:
        self._look_tick = -self.EVERY_TICKS
        self._alerts: list[Alert] = []

    def alerts(self, window: Window) -> Sequence[Alert]:
        if not 0 <= window.tick - self._look_tick < self.EVERY_TICKS:  # the ticks of a new training may start again
            self._look_tick = window.tick
            self._alerts = self._find_alerts(window)
        return self._alerts

    def vote(self, window: Window) -> None:
        return None

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        effect = effect_of(ballot, window)
        if effect is None:
            return None
        for evidence in _findings(record_of(window)):
            is_treatment = any(
                treatment.kind == evidence.kind and treatment.actuator == ballot.actuator for treatment in TREATMENTS
            )
            if evidence.kind not in HARMS or (effect == "redirects" and not is_treatment):
                continue
            stance, confidence = "for", tentative_confidence(window.run)
            if effect == "pushes":
                stance, confidence = "against", OBJECTION_CONFIDENCE
            elif evidence.weight >= MIN_ACT_CONFIDENCE:
                confidence = firm_confidence(window.run)
            metric = evidence.metric or objective(window.run).name
            return window.answer(ballot, stance, confidence=confidence, why=evidence.text, reads=(metric,))
        return None

    def _find_alerts(self, window: Window) -> list[Alert]:
        record = record_of(window)
        return [self._alert(evidence, record, window) for evidence in _findings(record)]

    def _alert(self, evidence: Evidence, record: RunRecord, window: Window) -> Alert:
        assert evidence.level is not None and evidence.bound is not None  # every rule that gives advice sets them
        remedy = evidence.remedy or remedy_of(evidence.kind, record.step_at(evidence.tick), record.steps[0])
        metric = evidence.metric or objective(window.run).name
        why = f"{evidence.text}; remedy: {remedy}"
        return window.alert(evidence.kind, metric, value=evidence.level, expected=evidence.bound, why=why)


def _findings(record: RunRecord) -> Iterator[Evidence]:
    """Yield what the curves show with enough confidence for advice."""
    return (evidence for evidence in read_curves(record) if evidence.weight >= MIN_ADVICE_CONFIDENCE)
