"""The agent `supervisor`: a language model that writes programs over the run's log, and votes on what they find."""

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
from oven_llm.diagnosis.detectors import Alarm, alarms
from oven_llm.diagnosis.diagnosing import DiagnosisResult, votable
from oven_llm.diagnosis.enquirer import Enquirer
from oven_llm.diagnosis.log_context import shown_settings
from oven_llm.diagnosis.model_answer import NONE, Diagnosis, RevertIf
from oven_llm.diagnosis.transcripts import DiagnosisRequest, StoredDiagnosis, Transcripts, repeated
from oven_llm.language_models.desk import Desk, counted
from oven_llm.providers.failures import ModelFailure
from oven_runs.settings.language_models import SupervisorSettings

log = logging.getLogger("oven.agent")

OFF: Final = "no model is configured: set supervisor.model, e.g. supervisor: {model: {provider: claude, model: NAME}}"
LOOK: Final = 5
"""Ticks between two looks at the alarms: a look costs milliseconds, and an alarm takes five readings anyway."""
LEAST: Final = 40
"""Observations before the first look: the detectors' 30, and ten to hold against them."""
HORIZON: Final = 40
"""Ticks within which a change has to show, and may be taken back: what the gym's remedies take."""
RECENT: Final = 5
"""Readings of which the mean is held against revert_if: one odd step takes nothing back."""
RECOVERED: Final = 0.5
"""Share of what was lost that a change is forecast to win back within the horizon."""


@dataclass(frozen=True)
class Proposed:
    """A change that it proposed, and when that has to be taken back."""

    knob: str
    value: Value
    before: Value
    tick: int
    revert_if: RevertIf
    cause: str


class Supervisor(Agent):
    """Signals: alarms of plain statistics on the run's metrics (a lasting change, a spike, NaN, judges apart). A new
    one is a reason to ask the model, which then reads the whole log: settings, observations, votes, decisions,
    receipts, outcomes, commands and the knowledge graph's view of the alarms.

    Actions: one value for one setting of `supervisor.actuators`, or a notice with the cause alone. The host computes
    the evidence again from the log and refuses an answer of which one figure differs. The vote is cast at a later
    tick, so that training waits for none, and expires `supervisor.expires` ticks after it was asked for, and where
    the knob has moved since. Where the run then meets the answer's revert_if, the former value is proposed again.

    False alarms: `oven-controller bench supervisor` counts them on healthy runs, for each model another figure (for a
    script: docs/experiments.md). So it is a shadow and not trusted unless the settings say otherwise.

    Limits: the loop of programs over a text is Zhang et al.'s (arXiv 2512.24601). A failure is an abstention, counted
    by kind and told in its status. It asks `supervisor.diagnoses` times in a run, within its budget. Without an alarm
    it asks nothing."""

    version = "1"
    unrepeatable = (
        "asks a language model, whose answers are not in the log: `oven-controller backtest supervisor RUN` repeats "
        "those that the run's folder keeps"
    )

    def __init__(self) -> None:
        self.moves: tuple[str, ...] = ()  # type: ignore[misc]
        self.desk: Desk[DiagnosisRequest, DiagnosisResult] = Desk()
        self.unused: Counter[str] = Counter()
        """Answers that became no vote, by reason."""
        self._settings = SupervisorSettings()
        self._enquirer: Enquirer | None = None
        self._kept: dict[int, StoredDiagnosis] | None = None  # in a backtest: by the tick of the vote that took it
        self._log: Sequence[Event] = ()
        self._config: dict[str, Any] = {}
        self._off = OFF
        self._name = "supervisor"
        self._looked = -1
        self._asked_about: dict[tuple[str, str], int] = {}  # metric and symptom → tick of the newest question
        self._standing: Proposed | None = None

    def begin(self, around: Surroundings) -> Coroutine[Any, Any, None] | None:
        """Read the settings, and ask beside the votes if a model is named there."""
        self._name = around.name
        try:
            settings = _settings(around.settings)
            if settings.model is None:
                return None
            self._enquirer = Enquirer(around, settings, self.desk)
            self._standing = _proposed(Transcripts(around.folder).stored(), settings.expires)
        except ConfigError as error:
            self._off = str(error)
            return None
        self._take_settings(settings)
        return self._enquirer.beside()

    def recall(self, folder: Path, events: Sequence[Event], config: Mapping[str, Any]) -> None:
        """For a backtest: votes as the kept diagnoses of the run in `folder` have them, whose log `events` are. Raises
        ConfigError where none are kept."""
        kept = Transcripts(folder).stored()
        if not kept:
            raise ConfigError(
                f"{folder} keeps no diagnosis: the supervisor asked nothing in this run, or that is not its folder"
            )
        settings = _settings(dict(config))
        self._take_settings(settings)
        self._kept = {one.taken: one for one in kept if one.taken is not None}
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
        if self._kept is not None:
            return self._recalled(window)
        answered = self.desk.collect()
        if answered is None:
            return self._reverting(window) or self._ask_if_due(window)
        if self._enquirer is not None:
            self._enquirer.took(answered.question.number, window.tick)
        if isinstance(answered.result, ModelFailure):
            return Notice(answered.result.kind, f"abstains: {answered.result}; so far {self._told()}")
        return self._said(answered.question, answered.result, window)

    def _said(self, asked: DiagnosisRequest, found: DiagnosisResult, window: Window) -> Answer:
        """The vote that follows from an answer, or why there is none."""
        if found.diagnosis is None:
            return Notice(found.kind, f"abstains: {found.why} (diagnosis {asked.number}); so far {self._told()}")
        diagnosis = found.diagnosis
        if diagnosis.cause == NONE:
            return Notice("none", f"nothing is wrong, says diagnosis {asked.number} of tick {asked.tick}")
        if not diagnosis.knob:
            return Notice(diagnosis.cause, f"{_words(diagnosis)}; no knob would help (diagnosis {asked.number})")
        if window.tick > asked.tick + self._settings.expires:
            return self._unused("expired", f"the answer of tick {asked.tick} came at {window.tick}")
        knob = window.knobs.get(diagnosis.knob)
        if knob is None or knob.value != asked.values.get(diagnosis.knob):
            return self._unused("superseded", f"{diagnosis.knob} has moved since tick {asked.tick}")
        if diagnosis.value == knob.value:
            return self._unused("superseded", f"{diagnosis.knob} has the value that was proposed")
        if diagnosis.revert_if is not None:
            self._standing = Proposed(
                diagnosis.knob, diagnosis.value, knob.value, window.tick, diagnosis.revert_if, diagnosis.cause
            )
        return _proposal(window, diagnosis, f"diagnosis {asked.number}, asked at tick {asked.tick}")

    def _recalled(self, window: Window) -> Answer:
        """What the kept diagnosis leads to that was taken at this tick."""
        assert self._kept is not None
        kept = self._kept.get(window.tick)
        if kept is None:
            return self._reverting(window)
        found = repeated(kept, self._log, self.moves, self._config)
        question = kept.question
        return self._said(DiagnosisRequest(question.number, question.tick, question.values), found, window)

    def _ask_if_due(self, window: Window) -> Notice | None:
        enquirer = self._enquirer
        if enquirer is None or not self.desk.free or len(window.observations) < LEAST:
            return None
        if window.tick < self._looked + LOOK:
            return None
        if self.desk.posted_tick >= 0 and window.tick < self.desk.posted_tick + self._settings.every:
            return None
        self._looked = window.tick
        # A metric that recovers and goes wrong again has the symptom anew: a change of after the question about it.
        seen = {(alarm.metric, alarm.symptom): alarm.onset for alarm in _alarms(window)}
        if all(onset <= self._asked_about.get(about, -1) for about, onset in seen.items()):
            return None
        if enquirer.spent:
            return Notice(
                "diagnoses", f"all {self._settings.diagnoses} of supervisor.diagnoses are made: {self._told()}"
            )
        self._asked_about |= dict.fromkeys(seen, window.tick)
        values = {name: knob.value for name, knob in window.knobs.items() if name in self.moves}
        self.desk.post(DiagnosisRequest(enquirer.next_number, window.tick, values), window.tick)
        return None

    def _reverting(self, window: Window) -> Vote | None:
        """The former value again, where what it proposed was done and its revert_if has come true."""
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
                f"{standing.revert_if.metric} is {fmean(readings):.4g}: the diagnosis {standing.cause} was to be taken "
                f"back where {standing.revert_if.text()}"
            ),
            target=target,
            horizon=HORIZON,
        )

    def _unused(self, kind: str, why: str) -> Notice:
        self.unused[kind] += 1
        return Notice(kind, f"no vote: {why}; so far {self._told()}")

    def _told(self) -> str:
        if self._enquirer is None:
            return f"unused: {counted(self.unused)}"
        return f"{self._enquirer.told}; unused: {counted(self.unused)}"


def _settings(resolved: dict[str, Any]) -> SupervisorSettings:
    try:
        return SupervisorSettings.model_validate(resolved.get("supervisor", {}))
    except ValidationError as error:
        raise ConfigError(
            f"the run's settings of `supervisor` have {error.error_count()} faults; `up` writes them"
        ) from None


def _proposed(kept: Sequence[StoredDiagnosis], expires: int) -> Proposed | None:
    """The newest change that a kept diagnosis proposed, for an agent that starts again: what it has to take back is not
    in the window. Raises ConfigError for an outcome that cannot be read."""
    for one in reversed(kept):
        said, question = one.outcome.get("diagnosis"), one.question
        if one.taken is None or not said or one.taken > question.tick + expires:
            continue
        if not said.get("knob") or not said.get("revert_if"):
            return None
        try:
            bound = RevertIf.model_validate(said["revert_if"])
            before = question.values[said["knob"]]
            return Proposed(said["knob"], said["value"], before, one.taken, bound, said["cause"])
        except (ValidationError, LookupError) as error:
            raise ConfigError(f"{one.folder} does not hold an outcome ({type(error).__name__}); move it away") from None
    return None


def _alarms(window: Window) -> list[Alarm]:
    """Of the window's observations: the log holds more, and this is asked often."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for seen in window.observations:
        for name, value in seen.metrics.items():
            ticks, values = series.setdefault(name, ([], []))
            ticks.append(seen.tick)
            values.append(value)
    return alarms(series, window.run.metrics)


def _target(window: Window) -> str:
    """The metric that its proposals are judged by."""
    return (held_out(window.run) or objective(window.run)).name


def _proposal(window: Window, diagnosis: Diagnosis, whence: str) -> Vote:
    target = _target(window)
    seen = [alarm.symptom for alarm in _alarms(window)]
    return window.propose(
        diagnosis.knob,
        diagnosis.value,
        confidence=diagnosis.confidence,
        why=f"{_words(diagnosis)} ({whence})",
        target=target,
        expected_change=_forecast(window, target, diagnosis.onset),
        horizon=HORIZON,
        evidence=[SYMPTOM + symptom for symptom in dict.fromkeys(seen)][:8],
    )


def _forecast(window: Window, target: str, onset: int | None) -> float:
    """RECOVERED of what the target lost since the onset, in its own unit; 0 where it lost nothing that was measured."""
    better = next((spec.better for spec in window.run.metrics if spec.name == target), "neither")
    pairs = [
        (seen.tick, seen.metrics[target])
        for seen in window.observations
        if target in seen.metrics and math.isfinite(seen.metrics[target])
    ]
    before = [value for tick, value in pairs if onset is not None and tick < onset][-10:]
    after = [value for tick, value in pairs if onset is not None and tick >= onset][-10:]
    if not before or not after or better == "neither":
        return 0.0
    lost = fmean(before) - fmean(after)
    return float(f"{RECOVERED * lost:.4g}") if (lost > 0) == (better == "up") else 0.0


def _words(diagnosis: Diagnosis) -> str:
    """The cause with its figures: "lr_too_high: optim/update_ratio 0.05 at ticks 126 to 131; back if loss above 4"."""
    figures = ", ".join(
        f"{one.metric} {show(one.value)} at ticks {one.from_} to {one.to}" for one in diagnosis.evidence[:3]
    )
    back = f"; back if {diagnosis.revert_if.text()}" if diagnosis.revert_if else ""
    return f"{diagnosis.cause}: {figures}{back}"
