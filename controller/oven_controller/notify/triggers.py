"""Which events of a log are worth a notice, and its words: a fold over the log. Pure."""

from __future__ import annotations

import re
from collections import deque
from datetime import datetime
from typing import Final

from oven_controller.notify.member_states import MemberStates
from oven_controller.notify.message import Notice
from oven_controller.notify.wording import because, change_of, cut, harmless, origin, proposers, short
from oven_core.mesh.guardrails import SPENT
from oven_core.protocol.actions import ROLLBACK, UNDO
from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    Decision,
    LearnerMessage,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
)
from oven_runs.log.open_advice import Reminders, remaining, waiting
from oven_runs.log.run_summary import RunSummary, text
from oven_runs.log.standing_alerts import alert_text
from oven_runs.settings.notifications import Kind, Severity

FAILED: Final = ("rejected", "expired", "unknown")
"""Receipts of decisions that did not take effect, although they were to."""
WAITING: Final = 256
"""Decisions that are remembered until their receipt; a run has few at a time."""
QUIET_S: Final = 600.0
"""Seconds of silence after which the learner is missed, at least: an evaluation or a checkpoint may take minutes."""
QUIET_STEPS: Final = 20
"""And so many times the usual time between two observations."""
PACE: Final = 50
"""Newest gaps between observations, whose median is the usual one."""
_CALLS_SPENT: Final = re.compile(r"all \d+ \w+ of \w+\.\w+ are \w+")
"""How an agent that asks a language model says that it may not any more."""


class Triggers:
    """Feed it a log's events in order; `quiet` looks at the clock."""

    def __init__(self, run: str) -> None:
        self.view = RunSummary()
        self._run = run
        self._reminders = Reminders()
        self._decided: dict[str, Decision] = {}
        self._members = MemberStates()
        self._spent: set[str] = set()
        self._gaps: deque[float] = deque(maxlen=PACE)
        self._heard: datetime | None = None
        self._missed = False

    def feed(self, event: Event) -> list[Notice]:
        """What one event is worth; usually nothing."""
        held = self.view.held
        self._pace(event)
        self.view.feed(event)
        match event.body:
            case Decision() as body:
                found = self._decision(event, body)
            case Receipt() as body:
                found = self._receipt(event, body)
            case Observation() as body:
                found = [*self._again(event), *self._judges(event, body)]
            case RunStarted():
                found, self._spent = [], set()
            case RunEnded() as body:
                found = [self._ended(event, body)]
            case AgentStatus(state="notice") as body if _CALLS_SPENT.match(body.reason):
                found = self._budget(event, event.author, f"{event.author}: {body.reason}")
            case Alert() as body if self.view.alert is not None:
                found = [self._alert(event, body)]
            case _:
                found = []
        if self.view.held and self.view.held != held:
            found.append(self._held(event))
        return found

    def waiting(self) -> list[Notice]:
        """Advice that waits now, for who has not heard of it."""
        view = self.view
        if view.started is None or view.ended is not None or view.last_time is None:
            return []
        found = []
        for body in waiting(view):
            change, left = change_of(body), remaining(body, view.tick, self._usual_s)
            said = f"It waits at step {view.step}: {proposers(body)} advises {change}{because(body)}"
            said += f" It lapses in {left}."
            found.append(self._advice(view.last_time, body, f"advice-{body.id}", f"advice: {change}", said))
        return found

    def went_down(self, status: str | None, how: str, now: datetime) -> list[Notice]:
        """The stack is down. Nothing where the learner has logged its end. `status`: how `up` ended; None: it was
        killed. `how`: the end of the learner's process, as far as that is known."""
        view = self.view
        if view.started is None or view.ended is not None:
            return []
        key, why = f"gone-{view.seq}", f" ({how})" if how else ""
        if status in ("stopped", "completed"):
            said = f"The stack was taken down at step {view.step}, and the learner's process ended{why}."
            return [self._about(0, now, "ended", "info", key, f"taken down at step {view.step}", said)]
        end = "The stack was killed" if status is None else f"The learner's process ended{why}"
        said = (
            f"{end} at step {view.step} without a last word in the log. logs/ in the run's folder has each process's."
        )
        title = "the stack was killed" if status is None else "the learner died"
        return [self._about(0, now, "died", "error", key, f"{title} at step {view.step}", said)]

    def quiet(self, now: datetime) -> list[Notice]:
        """The learner said nothing for much longer than usual; once, until it speaks again."""
        view = self.view
        if self._missed or self._heard is None or view.started is None or view.ended is not None or view.held:
            return []
        silent_s = (now - self._heard).total_seconds()
        usual = self._usual_s
        if silent_s < max(QUIET_S, QUIET_STEPS * usual):
            return []
        self._missed = True
        title = f"nothing from the learner for {silent_s / 60:.0f} min"
        said = f"Its last word was at step {view.step}; a step took {usual:.2g} s until then. It hangs, waits, or died."
        return [self._about(0, now, "died", "error", f"quiet-{view.seq}", title, said)]

    @property
    def _usual_s(self) -> float:
        """Seconds between two observations; 0 before there were two."""
        return sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else 0.0

    def _pace(self, event: Event) -> None:
        if not isinstance(event.body, LearnerMessage):
            return
        if isinstance(event.body, Observation) and self._heard is not None:
            self._gaps.append(max(0.0, (event.time - self._heard).total_seconds()))
        self._heard, self._missed = event.time, False

    def _decision(self, event: Event, body: Decision) -> list[Notice]:
        if body.verdict == "adopted":
            self._decided[body.id] = body
            if len(self._decided) > WAITING:
                del self._decided[next(iter(self._decided))]
        if body.verdict == "rejected" and f"; {SPENT}: " in f"; {body.reason}":
            why = body.reason[body.reason.index(SPENT) :]
            return self._budget(event, "rules.max_interventions", f"{body.actuator} is not changed: {why}")
        if body.verdict != "advised":
            return []
        change, left = change_of(body), remaining(body, self.view.tick, self._usual_s)
        said = f"At step {self.view.step} {proposers(body)} advises {change}{because(body)} It lapses in {left}."
        return [self._advice(event.time, body, f"advice-{body.id}", f"advice: {change}", said)]

    def _again(self, event: Event) -> list[Notice]:
        """Advice that is about to lapse, once."""
        found = []
        for body in self._reminders.due(self.view):
            change, left = change_of(body), remaining(body, self.view.tick, self._usual_s)
            said = f"At step {self.view.step} this still waits: {proposers(body)} advises {change}{because(body)}"
            title = f"advice lapses in {left}: {change}"
            found.append(self._advice(event.time, body, f"again-{body.id}", title, f"{said} It lapses in {left}."))
        return found

    def _advice(self, time: datetime, body: Decision, key: str, title: str, said: str) -> Notice:
        command = f"oven-controller approve {body.id} --run {self._run}"
        return self._about(int(body.id[:12]), time, "advice", "warning", key, title, said, command)

    def _receipt(self, event: Event, body: Receipt) -> list[Notice]:
        made = self._decided.pop(body.decision_id, None)
        if made is None:
            return []
        key, at, who = f"receipt-{body.decision_id}", f"At step {body.step}", origin(made)
        why = f": {short(body.reason)}" if body.reason else ""
        if body.status in FAILED:
            title = f"not done: {change_of(made)} ({body.status})"
            said = f"{at} {change_of(made)}, {who}, did not take effect ({body.status}){why}."
            return [self._about(event.seq, event.time, "applied", "warning", key, title, said)]
        if body.status != "applied" or self._is_aside(body.actuator):
            return []
        if body.actuator in (ROLLBACK, UNDO):
            back = body.actuator == ROLLBACK
            said = f"{at} the training went {'back' if back else 'forward again'}, {who}"
            said += f"{why}." if why else because(made)
            title = "rolled back" if back else "rollback taken back"
            return [self._about(event.seq, event.time, "rollback", "warning", key, title, said)]
        change = f"{body.actuator} {text(body.before)} → {text(body.after)}"
        said = f"{at} {change} took effect, {who}{because(made)}"
        return [self._about(event.seq, event.time, "applied", "info", key, f"applied: {change}", said)]

    def _is_aside(self, actuator: str) -> bool:
        """Whether it neither sets anything nor moves the weights: a measurement, a copy; and a hold is told as one."""
        specs = self.view.started.actuators if self.view.started is not None else ()
        effect = next((spec.effect for spec in specs if spec.name == actuator), "setting")
        return effect not in ("setting", "moves_weights")

    def _held(self, event: Event) -> Notice:
        command = f"oven-controller resume {self._run}"
        said = f"The run is held at step {self.view.step}: {short(self.view.held)}."
        key = f"held-{event.seq}"
        return self._about(event.seq, event.time, "held", "warning", key, "the run is held", said, command)

    def _ended(self, event: Event, body: RunEnded) -> Notice:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(body.metrics.items())[:4])
        what = f" {figures}." if figures else ""
        detail = f": {short(body.detail)}" if body.detail else ""
        key = f"ended-{body.incarnation}"
        if body.reason == "failed":
            said = f"The training failed at step {body.step}{detail}.{what}"
            return self._about(event.seq, event.time, "died", "error", key, f"failed at step {body.step}", said)
        said = f"The run {'is completed' if body.reason == 'completed' else 'was stopped'} at step {body.step}{detail}."
        title = f"{body.reason} at step {body.step}"
        return self._about(event.seq, event.time, "ended", "info", key, title, said + what)

    def _alert(self, event: Event, body: Alert) -> Notice:
        title = f"{'alert' if body.state == 'raised' else 'cleared'}: {short(body.symptom)}"
        said = f"At step {self.view.step} {event.author} says: {short(alert_text(body))}."
        severity: Severity = "warning" if body.state == "raised" else "info"
        return self._about(event.seq, event.time, "alert", severity, f"alert-{event.seq}", title, said)

    def _judges(self, event: Event, body: Observation) -> list[Notice]:
        found = []
        for member, kinds in self._members.fallen_silent(body.metrics):
            if "budget" in kinds:
                found += self._budget(event, member, f"Judge {member} has spent its budget and abstains")
                continue
            why = ", ".join(kinds)
            title = f"judge {member} is {'in quarantine' if 'quarantined' in kinds else 'away'}"
            said = f"At step {self.view.step} {title}: it scored nothing ({why}). The others score without it."
            key = f"judge-{member}-{event.seq}"
            found.append(self._about(event.seq, event.time, "judge", "warning", key, title, said))
        return found

    def _budget(self, event: Event, whose: str, said: str) -> list[Notice]:
        """Once in each life of the learner."""
        if whose in self._spent:
            return []
        self._spent.add(whose)
        title, key = f"budget spent: {whose}", f"budget-{whose}-{event.seq}"
        said = f"At step {self.view.step}: {short(said)}."
        return [self._about(event.seq, event.time, "budget", "error", key, title, said)]

    def _about(
        self,
        seq: int,
        time: datetime,
        kind: Kind,
        severity: Severity,
        key: str,
        title: str,
        said: str,
        command: str = "",
    ) -> Notice:
        return Notice(
            key=cut(key, 200),
            kind=kind,
            severity=severity,
            seq=seq,
            time=time,
            tick=self.view.tick,
            step=self.view.step,
            title=cut(harmless(title), 200),
            text=cut(harmless(said), 1200),
            command=command,
        )
