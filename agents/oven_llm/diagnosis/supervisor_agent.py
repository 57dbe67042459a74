"""The agent `supervisor`, which has a language model diagnose the run with programs, and votes accordingly."""

from __future__ import annotations

import logging
import math
from collections.abc import Coroutine
from statistics import fmean
from typing import Any, Final

from oven_agents.diagnosis.detectors import Alarm, find_alarms
from oven_agents.runtime.companion import RunContext
from oven_agents.sdk.agent import Answer, Notice
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import held_out_metric, objective
from oven_core.mesh.actuator_values import show
from oven_core.protocol.evidence import SYMPTOM_PREFIX
from oven_core.protocol.messages import RunStarted, Vote
from oven_llm.diagnosis.background_diagnosis import DiagnosisCompanion
from oven_llm.diagnosis.diagnosis_store import DiagnosisRequest, DiagnosisStore
from oven_llm.diagnosis.model_answer import NONE, Diagnosis, ProposedChange
from oven_llm.diagnosis.model_diagnosis import DiagnosisResult, changeable_knobs
from oven_llm.language_models.model_agent_base import ModelAgent
from oven_llm.providers.failures import ModelFailure, format_counts
from oven_runs.settings.language_models import SupervisorSettings

log = logging.getLogger("oven.agent")

CHECK_INTERVAL: Final = 5
"""Ticks between two checks for alarms. A check takes milliseconds, and an alarm needs at least five readings."""
MIN_OBSERVATIONS: Final = 40
"""Minimum observations before the first check: 30 for the detectors' reference, and ten to compare with it."""
HORIZON: Final = 40
"""Ticks until a change's effect is measured. In the gym (oven_bench.gym), remedies take this long."""
REVERT_READINGS: Final = 5
"""Number of readings to average for revert_if, so that one outlier does not revert a change."""
REVERT_CONFIDENCE: Final = 0.6
"""Confidence of a vote that reverts a change."""
RECOVERED_SHARE: Final = 0.5
"""Share of the target's deterioration that a change is forecast to recover within the horizon."""
FORECAST_READINGS: Final = 10
"""Number of readings of the target to average before and after the onset for this forecast."""


class Supervisor(ModelAgent[SupervisorSettings, DiagnosisRequest, DiagnosisResult]):
    """Has a language model diagnose the run with programs, and proposes the change that the model suggests.

    Signals: statistical alarms on the run's metrics (lasting changes, spikes, NaN, diverging judges). After a new
    alarm, the agent asks the model, which reads the whole log: settings, observations, votes, decisions, receipts,
    outcomes, commands and the knowledge graph's reply about the alarms.

    Actions: one value for one setting of `supervisor.actuators`, or a notice that states only the cause. The evidence
    is recomputed from the log, and an answer with a wrong figure is rejected. The vote is cast at a later tick, so
    training never waits. The answer expires after `supervisor.expires` ticks, or if the knob has changed since. If the
    answer's revert_if is met after the change, the agent proposes the old value again.

    False alarms: the rate depends on the model, so the agent is an untrusted shadow by default. docs/experiments.md
    states the rate of a script that stands in for the model.

    Limits: the model analyses the log with programs, as in Zhang et al. (arXiv 2512.24601). If the model fails, the
    agent abstains. Failures are counted by kind in its status. It asks at most `supervisor.diagnoses` times per run,
    within its budget, and only after an alarm.
    """

    unrepeatable = (
        "asks a language model whose replies are not in the log, so its votes cannot be reproduced from a recording; "
        "`diagnoses/` in the run's folder contains the replies"
    )

    def __init__(self) -> None:
        super().__init__("supervisor", SupervisorSettings(), "model")
        self._diagnoses: DiagnosisCompanion | None = None
        self._checked_tick = -1
        self._question_ticks: dict[tuple[str, str], int] = {}  # tick of the latest question by metric and symptom
        self._change: ProposedChange | None = None
        """The latest proposed change that may be reverted."""

    def _create_companion(self, run_context: RunContext, settings: SupervisorSettings) -> Coroutine[Any, Any, None]:
        self._diagnoses = DiagnosisCompanion(run_context, settings, self.slot)
        self._change = DiagnosisStore(run_context.folder).latest_change()
        return self._diagnoses.serve()

    def _find_obstacle(self, run: RunStarted) -> str | None:
        if not changeable_knobs(run, self.moves):
            return f"the run announces none of these as a setting: {', '.join(self.moves)}"
        if not any(spec.better != "neither" for spec in run.metrics):
            return "the run announces no metric with a better direction, so a vote could not name a target"
        return None

    def vote(self, window: Window) -> Answer:
        reply = self.slot.collect()
        if reply is None:
            return self._propose_revert(window) or self._ask_if_due(window)
        previous_change = self._change
        if isinstance(reply.result, ModelFailure):
            answer: Answer = self._abstain(reply.result)
        else:
            answer = self._vote_on(reply.question, reply.result, window)
        if self._diagnoses is not None:
            change = self._change if self._change is not previous_change else None
            self._diagnoses.record_use(reply.question.number, window.tick, change)
        return answer

    def _vote_on(self, request: DiagnosisRequest, result: DiagnosisResult, window: Window) -> Answer:
        """Return the vote for an answer, or a notice with the reason why there is no vote."""
        if result.diagnosis is None:
            failure = f"{result.failure_reason} (diagnosis {request.number})"
            return Notice(result.failure_kind, f"abstains: {failure}; so far {self._status}")
        diagnosis = result.diagnosis
        if diagnosis.cause == NONE:
            return Notice("none", f"diagnosis {request.number} of tick {request.tick}: nothing is wrong")
        if not diagnosis.knob:
            return Notice(diagnosis.cause, f"{_describe(diagnosis)}; no knob would help (diagnosis {request.number})")
        if window.tick > request.tick + self._settings.expires:
            return self._discard_reply(
                "expired", f"the reply to the question of tick {request.tick} arrived at tick {window.tick}"
            )
        knob = window.knobs.get(diagnosis.knob)
        if knob is None or knob.value != request.values.get(diagnosis.knob):
            return self._discard_reply("superseded", f"{diagnosis.knob} has changed since tick {request.tick}")
        if diagnosis.value == knob.value:
            return self._discard_reply("superseded", f"{diagnosis.knob} already has the proposed value")
        if diagnosis.revert_if is not None:
            self._change = ProposedChange(
                knob=diagnosis.knob, value=diagnosis.value, before=knob.value, tick=window.tick,
                revert_if=diagnosis.revert_if, cause=diagnosis.cause,
            )  # fmt: skip
        return _propose(window, diagnosis, f"diagnosis {request.number}, asked at tick {request.tick}")

    def _ask_if_due(self, window: Window) -> Notice | None:
        companion = self._diagnoses
        if companion is None or len(window.observations) < MIN_OBSERVATIONS:
            return None
        if window.tick < self._checked_tick + CHECK_INTERVAL or not self.slot.is_due(window.tick, self._settings.every):
            return None
        self._checked_tick = window.tick
        # If a metric recovers and deteriorates again, its new onset is later than the latest question about it.
        onsets = {(alarm.metric, alarm.symptom): alarm.onset for alarm in _find_window_alarms(window)}
        if all(onset <= self._question_ticks.get(key, -1) for key, onset in onsets.items()):
            return None
        if companion.is_exhausted:
            return Notice(
                "diagnoses", f"reached supervisor.diagnoses, {self._settings.diagnoses} diagnoses: {self._status}"
            )
        self._question_ticks |= dict.fromkeys(onsets, window.tick)
        values = {name: knob.value for name, knob in window.knobs.items() if name in self.moves}
        self.slot.post(DiagnosisRequest(companion.next_number, window.tick, values), window.tick)
        return None

    def _propose_revert(self, window: Window) -> Vote | None:
        """Propose the old value if the proposed change was made and its revert_if is met."""
        change = self._change
        if change is None or window.tick > change.tick + 2 * HORIZON:  # revert_if no longer applies
            self._change = None
            return None
        knob = window.knobs.get(change.knob)
        if knob is None or knob.changed_at is None:
            return None
        if knob.changed_at < change.tick or knob.value != change.value:  # the mesh has not made the proposed change
            return None
        readings = window.series(change.revert_if.metric, after=knob.changed_at)[-REVERT_READINGS:]
        expected_readings = min(REVERT_READINGS, window.tick - knob.changed_at)
        if not readings or len(readings) < expected_readings or not change.revert_if.is_met(fmean(readings)):
            return None
        self._change = None
        return window.propose(
            change.knob,
            change.before,
            confidence=REVERT_CONFIDENCE,
            why=(
                f"{change.revert_if.metric} is {fmean(readings):.4g}, and the diagnosis {change.cause} says to "
                f"revert the change if {change.revert_if.describe()}"
            ),
            target=_target_name(window),
            horizon=HORIZON,
        )

    @property
    def _status(self) -> str:
        diagnoses = f"{self._diagnoses.summary}; " if self._diagnoses else ""
        return f"{diagnoses}unused: {format_counts(self.unused_counts)}"


def _find_window_alarms(window: Window) -> list[Alarm]:
    """Return the alarms for the window's observations. Using the whole log would be too slow at every check."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for observation in window.observations:
        for name, value in observation.metrics.items():
            ticks, values = series.setdefault(name, ([], []))
            ticks.append(observation.tick)
            values.append(value)
    return find_alarms(series, window.run.metrics)


def _target_name(window: Window) -> str:
    """Return the target metric of the agent's proposals."""
    return (held_out_metric(window.run) or objective(window.run)).name


def _propose(window: Window, diagnosis: Diagnosis, source: str) -> Vote:
    target = _target_name(window)
    symptoms = [alarm.symptom for alarm in _find_window_alarms(window)]
    return window.propose(
        diagnosis.knob,
        diagnosis.value,
        confidence=diagnosis.confidence,
        why=f"{_describe(diagnosis)} ({source})",
        target=target,
        expected_change=_forecast(window, target, diagnosis.onset),
        horizon=HORIZON,
        evidence=[SYMPTOM_PREFIX + symptom for symptom in dict.fromkeys(symptoms)][:8],
    )


def _forecast(window: Window, target: str, onset: int | None) -> float:
    """Return RECOVERED_SHARE of the target's deterioration since the onset; 0 if it has not deteriorated."""
    better = next((spec.better for spec in window.run.metrics if spec.name == target), "neither")
    readings = [
        (observation.tick, observation.metrics[target])
        for observation in window.observations
        if target in observation.metrics and math.isfinite(observation.metrics[target])
    ]
    if onset is None or better == "neither":
        return 0.0
    before = [value for tick, value in readings if tick < onset][-FORECAST_READINGS:]
    after = [value for tick, value in readings if tick >= onset][-FORECAST_READINGS:]
    if not before or not after:
        return 0.0
    change_back = fmean(before) - fmean(after)
    has_deteriorated = (change_back > 0) == (better == "up")
    return float(f"{RECOVERED_SHARE * change_back:.4g}") if has_deteriorated else 0.0


def _describe(diagnosis: Diagnosis) -> str:
    """Return the cause with its figures, e.g. "lr_too_high: optim/update_ratio 0.05 at ticks 126 to 131"."""
    figures = ", ".join(
        f"{item.metric} {show(item.value)} at ticks {item.from_} to {item.to}" for item in diagnosis.evidence[:3]
    )
    revert = f"; revert if {diagnosis.revert_if.describe()}" if diagnosis.revert_if else ""
    return f"{diagnosis.cause}: {figures}{revert}"
