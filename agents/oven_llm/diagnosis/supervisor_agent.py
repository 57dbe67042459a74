"""The agent `supervisor`: a language model writes programs over the run's log, and the agent votes on its diagnosis."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from pydantic import ValidationError

from oven_agents.runtime.companion import Surroundings
from oven_agents.sdk.agent import Agent, Answer, Notice
from oven_agents.sdk.alternative_plans import SYMPTOM
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import held_out, objective
from oven_core.errors import ConfigError
from oven_core.mesh.actuator_values import show
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted, Value, Vote
from oven_llm.diagnosis.companion import DiagnosisCompanion
from oven_llm.diagnosis.detectors import Alarm, alarms
from oven_llm.diagnosis.diagnosing import DiagnosisResult, votable
from oven_llm.diagnosis.diagnosis_store import DiagnosisRequest, DiagnosisStore, StoredDiagnosis, repeat
from oven_llm.diagnosis.log_context import shown_settings
from oven_llm.diagnosis.model_answer import NONE, Diagnosis, RevertIf
from oven_llm.language_models.desk import Desk, counted
from oven_llm.providers.failures import ModelFailure
from oven_runs.settings.language_models import SupervisorSettings

log = logging.getLogger("oven.agent")

OFF: Final = "no model is configured: set supervisor.model, e.g. supervisor: {model: {provider: claude, model: NAME}}"
LOOK: Final = 5
"""Ticks between two checks of the alarms. A check costs milliseconds, and an alarm takes five readings anyway."""
LEAST: Final = 40
"""Observations before the first check: 30 for the detectors' reference, and ten to compare with it."""
HORIZON: Final = 40
"""Ticks within which a change must show an effect, and may be reverted. The gym's remedies take as long."""
RECENT: Final = 5
"""Readings whose mean is compared with revert_if, so that one outlier reverts nothing."""
RECOVERED: Final = 0.5
"""Share of the loss that a change is forecast to recover within the horizon."""


@dataclass(frozen=True)
class ProposedChange:
    """A change that the agent proposed, and the condition for reverting it."""

    knob: str
    value: Value
    before: Value
    tick: int
    revert_if: RevertIf
    cause: str


class Supervisor(Agent):
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

    version = "1"
    unrepeatable = (
        "asks a language model, whose answers are not in the log: `oven-controller backtest supervisor RUN` repeats "
        "those in the run's folder"
    )

    def __init__(self) -> None:
        self.moves: tuple[str, ...] = ()  # type: ignore[misc]
        self.desk: Desk[DiagnosisRequest, DiagnosisResult] = Desk()
        self.unused: Counter[str] = Counter()
        """Answers without a vote, by reason."""
        self._settings = SupervisorSettings()
        self._companion: DiagnosisCompanion | None = None
        self._stored: dict[int, StoredDiagnosis] | None = None  # in a backtest, by the tick of the vote that used it
        self._log: Sequence[Event] = ()
        self._config: dict[str, Any] = {}
        self._off = OFF
        self._name = "supervisor"
        self._checked_tick = -1
        self._asked_about: dict[tuple[str, str], int] = {}  # metric and symptom → tick of the newest question
        self._standing: ProposedChange | None = None

    def begin(self, around: Surroundings) -> Coroutine[Any, Any, None] | None:
        """Read the settings. Return the companion's coroutine if they name a model."""
        self._name = around.name
        try:
            settings = _settings(around.settings)
            if settings.model is None:
                return None
            self._companion = DiagnosisCompanion(around, settings, self.desk)
            self._standing = _newest_change(DiagnosisStore(around.folder).stored(), settings.expires)
        except ConfigError as error:
            self._off = str(error)
            return None
        self._take_settings(settings)
        return self._companion.serve()

    def recall(self, folder: Path, events: Sequence[Event], config: Mapping[str, Any]) -> None:
        """Prepare a backtest: vote as the stored diagnoses of the run in `folder`, whose log is `events`. Raises
        ConfigError if there are none."""
        stored = DiagnosisStore(folder).stored()
        if not stored:
            raise ConfigError(
                f"{folder} has no diagnosis: the supervisor asked nothing in this run, or this is not its folder"
            )
        settings = _settings(dict(config))
        self._take_settings(settings)
        self._stored = {item.used_at: item for item in stored if item.used_at is not None}
        self._log, self._config = events, shown_settings(config)

    def _take_settings(self, settings: SupervisorSettings) -> None:
        self._settings, self._off = settings, ""
        self.moves = settings.actuators  # type: ignore[misc]
        if settings.model is not None:
            self.version = f"1 ({settings.model.model})"  # type: ignore[misc]

    def cannot_fire(self, run: RunStarted) -> str | None:
        if self._off:
            return self._off
        if not votable(run, self.moves):
            return f"the run announces none of {', '.join(self.moves)} as a setting"
        if not any(spec.better != "neither" for spec in run.metrics):
            return "the run announces no metric with a better direction, so that no vote could name its target"
        return None

    def vote(self, window: Window) -> Answer:
        if self._stored is not None:
            return self._repeated_vote(window)
        settled = self.desk.collect()
        if settled is None:
            return self._revert(window) or self._ask_if_due(window)
        if self._companion is not None:
            self._companion.used(settled.question.number, window.tick)
        if isinstance(settled.result, ModelFailure):
            return Notice(settled.result.kind, f"abstains: {settled.result}; so far {self._summary()}")
        return self._vote_on(settled.question, settled.result, window)

    def _vote_on(self, request: DiagnosisRequest, result: DiagnosisResult, window: Window) -> Answer:
        """Return the vote for an answer, or the reason why there is none."""
        if result.diagnosis is None:
            return Notice(result.kind, f"abstains: {result.why} (diagnosis {request.number}); so far {self._summary()}")
        diagnosis = result.diagnosis
        if diagnosis.cause == NONE:
            return Notice("none", f"diagnosis {request.number} of tick {request.tick}: nothing is wrong")
        if not diagnosis.knob:
            return Notice(diagnosis.cause, f"{_text(diagnosis)}; no knob would help (diagnosis {request.number})")
        if window.tick > request.tick + self._settings.expires:
            return self._unused(
                "expired", f"the answer to the question of tick {request.tick} came at tick {window.tick}"
            )
        knob = window.knobs.get(diagnosis.knob)
        if knob is None or knob.value != request.values.get(diagnosis.knob):
            return self._unused("superseded", f"{diagnosis.knob} has changed since tick {request.tick}")
        if diagnosis.value == knob.value:
            return self._unused("superseded", f"{diagnosis.knob} has the proposed value already")
        if diagnosis.revert_if is not None:
            self._standing = ProposedChange(
                diagnosis.knob, diagnosis.value, knob.value, window.tick, diagnosis.revert_if, diagnosis.cause
            )
        return _proposal(window, diagnosis, f"diagnosis {request.number}, asked at tick {request.tick}")

    def _repeated_vote(self, window: Window) -> Answer:
        """Return the vote for the stored diagnosis that a vote used at this tick."""
        assert self._stored is not None
        stored = self._stored.get(window.tick)
        if stored is None:
            return self._revert(window)
        result = repeat(stored, self._log, self.moves, self._config)
        question = stored.question
        return self._vote_on(DiagnosisRequest(question.number, question.tick, question.values), result, window)

    def _ask_if_due(self, window: Window) -> Notice | None:
        companion = self._companion
        if companion is None or not self.desk.free or len(window.observations) < LEAST:
            return None
        if window.tick < self._checked_tick + LOOK:
            return None
        if self.desk.posted_tick >= 0 and window.tick < self.desk.posted_tick + self._settings.every:
            return None
        self._checked_tick = window.tick
        # A metric that recovers and goes wrong again has a new onset, after the question about its first one.
        onsets = {(alarm.metric, alarm.symptom): alarm.onset for alarm in _alarms(window)}
        if all(onset <= self._asked_about.get(about, -1) for about, onset in onsets.items()):
            return None
        if companion.exhausted:
            return Notice(
                "diagnoses", f"all {self._settings.diagnoses} of supervisor.diagnoses are used: {self._summary()}"
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

    def _unused(self, kind: str, reason: str) -> Notice:
        self.unused[kind] += 1
        return Notice(kind, f"no vote: {reason}; so far {self._summary()}")

    def _summary(self) -> str:
        if self._companion is None:
            return f"unused: {counted(self.unused)}"
        return f"{self._companion.summary}; unused: {counted(self.unused)}"


def _settings(resolved: dict[str, Any]) -> SupervisorSettings:
    try:
        return SupervisorSettings.model_validate(resolved.get("supervisor", {}))
    except ValidationError as error:
        raise ConfigError(
            f"the run's settings of `supervisor` have {error.error_count()} errors; `up` writes valid ones"
        ) from None


def _newest_change(stored: Sequence[StoredDiagnosis], expires: int) -> ProposedChange | None:
    """Return the newest change that a stored diagnosis proposed, for a restarted agent: the window does not contain it.
    Raises ConfigError for an outcome that cannot be read."""
    for item in reversed(stored):
        diagnosis, question = item.outcome.get("diagnosis"), item.question
        if item.used_at is None or not diagnosis or item.used_at > question.tick + expires:
            continue
        if not diagnosis.get("knob") or not diagnosis.get("revert_if"):
            return None
        try:
            bound = RevertIf.model_validate(diagnosis["revert_if"])
            knob = diagnosis["knob"]
            return ProposedChange(
                knob, diagnosis["value"], question.values[knob], item.used_at, bound, diagnosis["cause"]
            )
        except (ValidationError, LookupError) as error:
            raise ConfigError(
                f"{item.folder} does not hold an outcome ({type(error).__name__}); move it away"
            ) from None
    return None


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
    """Return the metric that its proposals are judged by."""
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
