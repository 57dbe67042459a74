"""Turn noteworthy log events into notices. This module does no I/O."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from statistics import median_high
from typing import Final

from oven_controller.notify.message import Notice
from oven_controller.notify.notice_phrases import (
    change_text,
    origin_text,
    proposers_text,
    reason_clause,
    sanitize,
    shorten,
    truncate,
)
from oven_core.mesh.guardrails import BUDGET_SPENT
from oven_core.protocol.actuator_names import ROLLBACK, UNDO
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
from oven_runs.log.active_alerts import alert_text
from oven_runs.log.committee_view import SCORED_METRIC
from oven_runs.log.open_advice import Reminders, format_remaining_time, pending_advice
from oven_runs.log.run_summary import RunSummary, format_value
from oven_runs.settings.notifications import Kind, Severity

FAILED_STATUSES: Final = ("rejected", "expired", "unknown")
"""Receipt statuses of adopted decisions that did not take effect."""
MAX_PENDING_DECISIONS: Final = 256
"""Maximum number of decisions that wait for their receipts. Usually there are only a few."""
SILENCE_S: Final = 600.0
"""Minimum seconds of silence before the learner is reported missing. An evaluation or checkpoint can take minutes."""
SILENCE_STEPS: Final = 20
"""Minimum silence as a multiple of the typical gap between observations. Both minimums apply."""
RECENT_GAPS: Final = 50
"""Number of recent gaps between observations. Their median is the typical gap."""
_CALLS_SPENT: Final = re.compile(r"all \d+ \w+ of \w+\.\w+ are \w+")
"""Pattern of an agent's status when its budget of calls to a language model is spent."""
_ABSTENTION_METRIC: Final = re.compile(r"rewards/([^/]+)/abstain/(.+)")


class Triggers:
    """Creates notices from a log's events. Feed the events in order, and call `silence_notices` from time to time."""

    def __init__(self, run: str) -> None:
        self.view = RunSummary()
        self._run = run
        self._reminders = Reminders()
        self._awaiting_receipt: dict[str, Decision] = {}
        self._silent_judge_finder = _SilentJudgeFinder()
        self._spent_budgets: set[str] = set()
        self._recent_gaps_s: deque[float] = deque(maxlen=RECENT_GAPS)
        self._last_message_time: datetime | None = None
        self._silence_reported = False

    def feed(self, event: Event) -> list[Notice]:
        """Return the notices for one event. Most events have none."""
        held_before = self.view.hold_reason
        self._measure_gap(event)
        self.view.feed(event)
        match event.body:
            case Decision() as body:
                notices = self._decision_notices(body)
            case Receipt() as body:
                notices = self._receipt_notices(body)
            case Observation() as body:
                notices = [*self._advice_reminders(), *self._judge_notices(event, body)]
            case RunStarted():
                notices, self._spent_budgets = [], set()
            case RunEnded() as body:
                notices = [self._end_notice(body)]
            case AgentStatus(state="notice") as body if _CALLS_SPENT.match(body.reason):
                notices = self._budget_notice(event.author, f"{event.author}: {body.reason}")
            case Alert() as body if self.view.alert is not None:
                notices = [self._alert_notice(event, body)]
            case _:
                notices = []
        if self.view.hold_reason and self.view.hold_reason != held_before:
            notices.append(self._hold_notice(event))
        return notices

    def pending_advice_notices(self) -> list[Notice]:
        """Return a notice for each piece of pending advice, for recipients who missed the earlier events."""
        view = self.view
        if view.started is None or view.ended is not None:
            return []
        lead = f"Waiting for approval at step {view.step}:"
        return [
            self._advice_notice(body, f"advice-{body.id}", "advice", f"{lead} {proposers_text(body)} advises")
            for body in pending_advice(view)
        ]

    def stack_down_notices(self, status: str | None, exit_text: str) -> list[Notice]:
        """Return a notice that the stack is down, unless the learner logged the end of the run. `status` is how `up`
        ended, or None if it was killed. `exit_text` is how the learner's process ended, if known."""
        view = self.view
        if view.started is None or view.ended is not None:
            return []
        key = f"gone-{view.seq}"
        detail = f" ({exit_text})" if exit_text else ""
        if status in ("stopped", "completed"):
            sentence = f"The stack was stopped at step {view.step}, and the learner's process ended{detail}."
            return [self._notice("ended", "info", key, f"stack stopped at step {view.step}", sentence)]
        title = "the stack was killed" if status is None else "the learner died"
        subject = "The stack was killed" if status is None else f"The learner's process ended{detail}"
        sentence = f"{subject} at step {view.step} without a last message in the log. See logs/ in the run's folder."
        return [self._notice("died", "error", key, f"{title} at step {view.step}", sentence)]

    def silence_notices(self, now: datetime) -> list[Notice]:
        """Return a notice if the learner has been silent for much longer than usual. Each silence is reported once."""
        view = self.view
        is_training = view.started is not None and not view.ended and not view.hold_reason
        if self._silence_reported or self._last_message_time is None or not is_training:
            return []
        silent_s, typical_s = (now - self._last_message_time).total_seconds(), self._typical_gap_s
        if silent_s < max(SILENCE_S, SILENCE_STEPS * typical_s):
            return []
        self._silence_reported = True
        title = f"no message from the learner for {silent_s / 60:.0f} min"
        sentences = (
            f"Its last message was at step {view.step}. Until then, a step took {typical_s:.2g} s. "
            "The learner is stuck, is waiting, or has crashed."
        )
        return [self._notice("died", "error", f"quiet-{view.seq}", title, sentences)]

    @property
    def _typical_gap_s(self) -> float:
        return median_high(self._recent_gaps_s) if self._recent_gaps_s else 0.0

    def _measure_gap(self, event: Event) -> None:
        if isinstance(event.body, LearnerMessage):
            if isinstance(event.body, Observation) and self._last_message_time is not None:
                self._recent_gaps_s.append(max(0.0, (event.time - self._last_message_time).total_seconds()))
            self._last_message_time, self._silence_reported = event.time, False

    def _decision_notices(self, body: Decision) -> list[Notice]:
        if body.verdict == "adopted":
            self._awaiting_receipt[body.id] = body
            if len(self._awaiting_receipt) > MAX_PENDING_DECISIONS:
                del self._awaiting_receipt[next(iter(self._awaiting_receipt))]
        # A reason may have several causes, separated by "; ". The spent budget need not be the first.
        if body.verdict == "rejected" and f"; {BUDGET_SPENT}: " in f"; {body.reason}":
            cause = body.reason[body.reason.index(BUDGET_SPENT) :]
            return self._budget_notice("rules.max_interventions", f"{body.actuator} was not changed: {cause}")
        if body.verdict == "advised":
            lead = f"At step {self.view.step} {proposers_text(body)} advises"
            return [self._advice_notice(body, f"advice-{body.id}", "advice", lead)]
        return []

    def _advice_reminders(self) -> list[Notice]:
        """Return a reminder for each piece of advice that lapses soon."""
        lead = f"Still waiting for approval at step {self.view.step}:"
        return [
            self._advice_notice(
                body,
                f"again-{body.id}",
                f"advice lapses in {self._remaining_time(body)}",
                f"{lead} {proposers_text(body)} advises",
            )
            for body in self._reminders.select(self.view)
        ]

    def _advice_notice(self, body: Decision, key: str, label: str, lead: str) -> Notice:
        change = change_text(body)
        sentences = f"{lead} {change}{reason_clause(body)} It lapses in {self._remaining_time(body)}."
        command = f"oven-controller approve {body.id} --run {self._run}"
        return self._notice("advice", "warning", key, f"{label}: {change}", sentences, command)

    def _remaining_time(self, body: Decision) -> str:
        return format_remaining_time(body, self.view.tick, self._typical_gap_s)

    def _receipt_notices(self, body: Receipt) -> list[Notice]:
        decision = self._awaiting_receipt.pop(body.decision_id, None)
        if decision is None:
            return []
        key, lead, source = f"receipt-{body.decision_id}", f"At step {body.step}", origin_text(decision)
        cause = f": {shorten(body.reason)}" if body.reason else ""
        if body.status in FAILED_STATUSES:
            title = f"not applied: {change_text(decision)} ({body.status})"
            sentence = f"{lead} {change_text(decision)}, {source}, did not take effect ({body.status}){cause}."
            return [self._notice("applied", "warning", key, title, sentence)]
        if body.status != "applied" or not self._changes_training(body.actuator):
            return []
        if body.actuator in (ROLLBACK, UNDO):
            title, change = "rolled back", "the training was rolled back"
            if body.actuator == UNDO:
                title, change = "rollback undone", "the rollback was undone"
            ending = f"{cause}." if cause else reason_clause(decision)
            return [self._notice("rollback", "warning", key, title, f"{lead} {change}, {source}{ending}")]
        change = f"{body.actuator} {format_value(body.before)} → {format_value(body.after)}"
        sentence = f"{lead} {change} took effect, {source}{reason_clause(decision)}"
        return [self._notice("applied", "info", key, f"applied: {change}", sentence)]

    def _changes_training(self, actuator: str) -> bool:
        """Return whether the actuator sets a value or changes the weights. Others only measure, copy, hold or stop."""
        effect = next((spec.effect for spec in self.view.specs if spec.name == actuator), "setting")
        return effect in ("setting", "moves_weights")

    def _hold_notice(self, event: Event) -> Notice:
        sentence = f"The run is held at step {self.view.step}: {shorten(self.view.hold_reason)}."
        command = f"oven-controller resume {self._run}"
        return self._notice("held", "warning", f"held-{event.seq}", "the run is held", sentence, command)

    def _end_notice(self, body: RunEnded) -> Notice:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(body.metrics.items())[:4])
        figures = f" {figures}." if figures else ""
        detail = f": {shorten(body.detail)}" if body.detail else ""
        key, title = f"ended-{body.incarnation}", f"{body.reason} at step {body.step}"
        if body.reason == "failed":
            sentences = f"The training failed at step {body.step}{detail}.{figures}"
            return self._notice("died", "error", key, title, sentences)
        verb = "was completed" if body.reason == "completed" else "was stopped"
        return self._notice("ended", "info", key, title, f"The run {verb} at step {body.step}{detail}.{figures}")

    def _alert_notice(self, event: Event, body: Alert) -> Notice:
        raised = body.state == "raised"
        title = f"{'alert' if raised else 'cleared'}: {shorten(body.symptom)}"
        sentence = f"At step {self.view.step} {event.author} reports: {shorten(alert_text(body))}."
        return self._notice("alert", "warning" if raised else "info", f"alert-{event.seq}", title, sentence)

    def _judge_notices(self, event: Event, body: Observation) -> list[Notice]:
        notices = []
        for member, kinds in self._silent_judge_finder.find_new(body.metrics):
            if "budget" in kinds:
                notices += self._budget_notice(member, f"Judge {member} has spent its budget and now abstains")
                continue
            title = f"judge {member} is {'in quarantine' if 'quarantined' in kinds else 'unavailable'}"
            sentences = f"At step {self.view.step} {title}: it returned no scores ({', '.join(kinds)})."
            sentences += " The other judges continue without it."
            notices.append(self._notice("judge", "warning", f"judge-{member}-{event.seq}", title, sentences))
        return notices

    def _budget_notice(self, owner: str, sentence: str) -> list[Notice]:
        """Return a notice of a spent budget. There is one per budget until the learner starts again."""
        if owner in self._spent_budgets:
            return []
        self._spent_budgets.add(owner)
        key = f"budget-{owner}-{self.view.seq}"
        sentence = f"At step {self.view.step}: {shorten(sentence)}."
        return [self._notice("budget", "error", key, f"budget spent: {owner}", sentence)]

    def _notice(
        self, kind: Kind, severity: Severity, key: str, title: str, sentences: str, command: str = ""
    ) -> Notice:
        return Notice(
            key=truncate(key, 200),
            kind=kind,
            severity=severity,
            step=self.view.step,
            title=truncate(sanitize(title), 200),
            text=truncate(sanitize(sentences), 1200),
            command=command,
        )


class _SilentJudgeFinder:
    """Detects members of the reward committee that stop scoring. Call `find_new` once per step."""

    def __init__(self) -> None:
        self._silent: dict[str, bool] = {}
        """The members that do not score. The value tells whether the member's budget is spent."""

    def find_new(self, metrics: Mapping[str, float]) -> list[tuple[str, list[str]]]:
        """Return the members that stopped scoring or spent their budget in this step, with the kinds of failure."""
        if SCORED_METRIC not in metrics:
            return []
        failures: dict[str, list[str]] = {}
        for name in metrics:
            if match := _ABSTENTION_METRIC.fullmatch(name):
                failures.setdefault(match[1], []).append(match[2])
        self._silent = {name: spent for name, spent in self._silent.items() if f"rewards/{name}/mean" not in metrics}
        new = []
        for member, kinds in sorted(failures.items()):
            spent = "budget" in kinds
            was_reported = member in self._silent and (self._silent[member] or not spent)
            if f"rewards/{member}/mean" in metrics or was_reported:
                continue
            self._silent[member] = spent or self._silent.get(member, False)
            new.append((member, sorted(kinds)))
        return new
