"""The agent `supervisor`. A language model writes programs to analyse the log, and the agent votes on the diagnosis."""

from __future__ import annotations

import logging
import math
from collections.abc import Coroutine
from statistics import fmean
from typing import Any, Final

from oven_agents.runtime.companion import Surroundings
from oven_agents.sdk.agent import Answer, Notice
from oven_agents.sdk.alternative_plans import SYMPTOM
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import held_out, objective
from oven_core.mesh.actuator_values import show
from oven_core.protocol.messages import RunStarted, Vote
from oven_llm.diagnosis.companion import DiagnosisCompanion, DiagnosisRequest, DiagnosisStore
from oven_llm.diagnosis.detectors import Alarm, alarms
from oven_llm.diagnosis.diagnosing import DiagnosisResult, votable
from oven_llm.diagnosis.model_answer import NONE, Diagnosis, ProposedChange
from oven_llm.language_models.model_agent import ModelAgent
from oven_llm.language_models.question_desk import counted
from oven_llm.providers.failures import ModelFailure
from oven_runs.settings.language_models import SupervisorSettings

log = logging.getLogger("oven.agent")

LOOK: Final = 5
"""Ticks between two checks of the alarms. A check costs milliseconds, and an alarm takes five readings anyway."""
LEAST: Final = 40
"""Observations before the first check: 30 for the detectors' reference, and ten to compare with it."""
HORIZON: Final = 40
"""Ticks within which a change must show an effect, and may be reverted. The gym's remedies take as long."""
RECENT: Final = 5
"""Number of readings to average for revert_if, so that one outlier does not revert a change."""
RECOVERED: Final = 0.5
"""Share of the loss that a change is forecast to recover within the horizon."""


class Supervisor(ModelAgent[SupervisorSettings, DiagnosisRequest, DiagnosisResult]):
    """Signals: statistical alarms on the run's metrics (a lasting change, a spike, NaN, diverging judges). A new alarm
    is a reason to ask the model, which then reads the whole log: settings, observations, votes, decisions, receipts,
    outcomes, commands and the knowledge graph's view of the alarms.

    Actions: one value for one setting of `supervisor.actuators`, or a notice with only the cause. The host recomputes
    the evidence from the log and refuses an answer with a wrong figure. The vote is cast at a later tick, so training
    never waits. The answer expires after `supervisor.expires` ticks, or if the knob has changed since. If the run then
    meets the answer's revert_if, the agent proposes the former value again.

    False alarms: they differ between models (for a script: docs/experiments.md). So the agent is a shadow, and not
    trusted, unless the settings say otherwise.

    Limits: the loop of programs over a text is Zhang et al.'s (arXiv 2512.24601). A failure is an abstention, counted
    by kind and reported in its status. It asks at most `supervisor.diagnoses` times per run, within its budget, and
    never without an alarm."""

    unrepeatable = (
        "asks a language model, whose answers are not in the log: `diagnoses/` in the run's folder has what it was told"
    )

    def __init__(self) -> None:
        super().__init__("supervisor", SupervisorSettings(), "model")
        self._diagnoses: DiagnosisCompanion | None = None
        self._checked_tick = -1
        self._asked_about: dict[tuple[str, str], int] = {}  # metric and symptom → tick of the newest question
        self._standing: ProposedChange | None = None

    def _companion(self, around: Surroundings, settings: SupervisorSettings) -> Coroutine[Any, Any, None]:
        self._diagnoses = DiagnosisCompanion(around, settings, self.desk)
        self._standing = DiagnosisStore(around.folder).newest_change()
        return self._diagnoses.serve()

    def _lacks(self, run: RunStarted) -> str | None:
        if not votable(run, self.moves):
            return f"the run announces none of {', '.join(self.moves)} as a setting"
        if not any(spec.better != "neither" for spec in run.metrics):
            return "the run announces no metric with a better direction, so that no vote could name its target"
        return None

    def vote(self, window: Window) -> Answer:
        settled = self.desk.collect()
        if settled is None:
            return self._revert(window) or self._ask_if_due(window)
        before = self._standing
        if isinstance(settled.result, ModelFailure):
            answer: Answer = self._abstains(settled.result)
        else:
            answer = self._vote_on(settled.question, settled.result, window)
        if self._diagnoses is not None:
            change = self._standing if self._standing is not before else None
            self._diagnoses.used(settled.question.number, window.tick, change)
        return answer

    def _vote_on(self, request: DiagnosisRequest, result: DiagnosisResult, window: Window) -> Answer:
        """Return the vote for an answer, or the reason why there is none."""
        if result.diagnosis is None:
            return Notice(result.kind, f"abstains: {result.why} (diagnosis {request.number}); so far {self._status}")
        diagnosis = result.diagnosis
        if diagnosis.cause == NONE:
            return Notice("none", f"diagnosis {request.number} of tick {request.tick}: nothing is wrong")
        if not diagnosis.knob:
            return Notice(diagnosis.cause, f"{_text(diagnosis)}; no knob would help (diagnosis {request.number})")
        if window.tick > request.tick + self._settings.expires:
            return self._discard(
                "expired", f"the answer to the question of tick {request.tick} came at tick {window.tick}"
            )
        knob = window.knobs.get(diagnosis.knob)
        if knob is None or knob.value != request.values.get(diagnosis.knob):
            return self._discard("superseded", f"{diagnosis.knob} has changed since tick {request.tick}")
        if diagnosis.value == knob.value:
            return self._discard("superseded", f"{diagnosis.knob} has the proposed value already")
        if diagnosis.revert_if is not None:
            self._standing = ProposedChange(
                knob=diagnosis.knob, value=diagnosis.value, before=knob.value, tick=window.tick,
                revert_if=diagnosis.revert_if, cause=diagnosis.cause,
            )  # fmt: skip
        return _proposal(window, diagnosis, f"diagnosis {request.number}, asked at tick {request.tick}")

    def _ask_if_due(self, window: Window) -> Notice | None:
        companion = self._diagnoses
        if companion is None or len(window.observations) < LEAST or window.tick < self._checked_tick + LOOK:
            return None
        if not self.desk.is_due(window.tick, self._settings.every):
            return None
        self._checked_tick = window.tick
        # A metric that recovers and goes wrong again has a new onset, after the question about its first one.
        onsets = {(alarm.metric, alarm.symptom): alarm.onset for alarm in _alarms(window)}
        if all(onset <= self._asked_about.get(about, -1) for about, onset in onsets.items()):
            return None
        if companion.exhausted:
            return Notice(
                "diagnoses", f"all {self._settings.diagnoses} of supervisor.diagnoses are used: {self._status}"
            )
        self._asked_about |= dict.fromkeys(onsets, window.tick)
        values = {name: knob.value for name, knob in window.knobs.items() if name in self.moves}
        self.desk.post(DiagnosisRequest(companion.next_number, window.tick, values), window.tick)
        return None

    def _revert(self, window: Window) -> Vote | None:
        """Propose the former value if a proposed change was made and its revert_if has come true."""
        standing = self._standing
        if standing is None or window.tick > standing.tick + 2 * HORIZON:
            self._standing = None
            return None
        knob = window.knobs.get(standing.knob)
        if knob is None or knob.changed_at is None or knob.changed_at < standing.tick or knob.value != standing.value:
            return None
        readings = window.series(standing.revert_if.metric, after=knob.changed_at)[-RECENT:]
        if len(readings) < min(RECENT, window.tick - knob.changed_at) or not readings:
            return None
        if not standing.revert_if.holds(fmean(readings)):
            return None
        self._standing = None
        target = _target(window)
        return window.propose(
            standing.knob,
            standing.before,
            confidence=0.6,
            why=(
                f"{standing.revert_if.metric} is {fmean(readings):.4g}, and the diagnosis {standing.cause} asks to "
                f"revert if {standing.revert_if.text()}"
            ),
            target=target,
            horizon=HORIZON,
        )

    @property
    def _status(self) -> str:
        diagnoses = f"{self._diagnoses.summary}; " if self._diagnoses else ""
        return f"{diagnoses}unused: {counted(self.unused)}"


def _alarms(window: Window) -> list[Alarm]:
    """Return the alarms of the window's observations. The log has more, but this is called often."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for observation in window.observations:
        for name, value in observation.metrics.items():
            ticks, values = series.setdefault(name, ([], []))
            ticks.append(observation.tick)
            values.append(value)
    return alarms(series, window.run.metrics)


def _target(window: Window) -> str:
    """Return the target metric of the agent's proposals."""
    return (held_out(window.run) or objective(window.run)).name


def _proposal(window: Window, diagnosis: Diagnosis, source: str) -> Vote:
    target = _target(window)
    symptoms = [alarm.symptom for alarm in _alarms(window)]
    return window.propose(
        diagnosis.knob,
        diagnosis.value,
        confidence=diagnosis.confidence,
        why=f"{_text(diagnosis)} ({source})",
        target=target,
        expected_change=_forecast(window, target, diagnosis.onset),
        horizon=HORIZON,
        evidence=[SYMPTOM + symptom for symptom in dict.fromkeys(symptoms)][:8],
    )


def _forecast(window: Window, target: str, onset: int | None) -> float:
    """Return the share RECOVERED of the target's loss since the onset, in its own unit; 0 without a measured loss."""
    better = next((spec.better for spec in window.run.metrics if spec.name == target), "neither")
    pairs = [
        (observation.tick, observation.metrics[target])
        for observation in window.observations
        if target in observation.metrics and math.isfinite(observation.metrics[target])
    ]
    before = [value for tick, value in pairs if onset is not None and tick < onset][-10:]
    after = [value for tick, value in pairs if onset is not None and tick >= onset][-10:]
    if not before or not after or better == "neither":
        return 0.0
    lost = fmean(before) - fmean(after)
    return float(f"{RECOVERED * lost:.4g}") if (lost > 0) == (better == "up") else 0.0


def _text(diagnosis: Diagnosis) -> str:
    """Return the cause with its figures: "lr_too_high: optim/update_ratio 0.05 at ticks 126 to 131"."""
    figures = ", ".join(
        f"{item.metric} {show(item.value)} at ticks {item.from_} to {item.to}" for item in diagnosis.evidence[:3]
    )
    back = f"; revert if {diagnosis.revert_if.text()}" if diagnosis.revert_if else ""
    return f"{diagnosis.cause}: {figures}{back}"
