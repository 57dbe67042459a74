"""Writes observations to the run's log for a script that has no knobs: nothing can change it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.protocol.messages import Decision, MetricSpec, Receipt, RunEnded, RunStarted
from oven_core.protocol.operator_messages import LEARNER_ACTIONS, OperatorCommand
from oven_core.protocol.rules import Rules
from oven_learner.client.oven_client import EndReason
from oven_learner.client.run_start import installed_versions
from oven_learner.link.find_controller import Connection
from oven_learner.link.link_interface import Link
from oven_runs.metrics.metric_names import announcement_order, metric_spec

RECIPE = "tap"
REFUSAL = "the script is only observed (run --tap), so nothing can change it; stop it yourself, or use --auto-attach"
MAX_ANNOUNCEMENTS = 50
"""Maximum number of RunStarted messages. Metrics that appear later are published without an announcement."""


class Observer:
    """The learner of a run that is only observed. A metric is announced when it first appears, by another RunStarted
    of the same incarnation."""

    def __init__(self, connection: Connection, link: Link | None = None) -> None:
        """Connect to the run's log. Raises OvenError."""
        self._link = link or connection.link()
        past = self._link.open()
        self._incarnation, self._n = past.incarnation + 1, 0
        self._tick, self._step = past.tick, 0
        self._keys = connection.keys or past.keys
        self._rules = Rules(autonomy="observe", window_ticks=connection.rules.window_ticks)
        self._metrics: dict[str, MetricSpec] = {}
        self._announcement_count = 0

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the metrics of a step, and refuse what has arrived meanwhile."""
        if not metrics.keys() <= self._metrics.keys() and self._announcement_count < MAX_ANNOUNCEMENTS:
            self._announce(metrics, step)
        self._tick, self._step = self._tick + 1, step
        self._link.send((self._incarnation, self._next_n(), self._tick, step, 0.0, dict(metrics)))
        self.answer()

    def answer(self) -> None:
        """Refuse the commands and decisions that have arrived."""
        while (message := self._link.receive()) is not None:
            if isinstance(message, OperatorCommand) and message.action in LEARNER_ACTIONS:
                self._refuse(message.actuator or message.action, command=message.id)
            elif isinstance(message, Decision) and message.verdict == "adopted":
                self._refuse(message.actuator, decision_id=message.id)

    def close(self, reason: EndReason, detail: str = "") -> None:
        """Publish the end of the run, and send all messages."""
        if self._announcement_count:
            end = RunEnded(
                incarnation=self._incarnation,
                n=self._next_n(),
                reason=reason,
                detail=detail,
                tick=self._tick,
                step=self._step,
            )
            self._link.send(end.model_copy)
        self._link.close(timeout_s=5.0)

    def _announce(self, metrics: Mapping[str, float], step: int) -> None:
        self._metrics.update({name: metric_spec(name) for name in metrics if name not in self._metrics})
        started = RunStarted(
            incarnation=self._incarnation,
            n=self._next_n(),
            recipe=RECIPE,
            tick=self._tick,
            step=self._step if self._announcement_count else max(0, step - 1),
            metrics=tuple(self._metrics[name] for name in sorted(self._metrics, key=announcement_order)),
            rules=self._rules,
            mesh_code=mesh_code_hash(),
            versions=installed_versions(),
            keys=dict(self._keys),
        )
        self._link.send(started.model_copy)
        if not self._announcement_count:
            self._link.begin()
        self._announcement_count += 1

    def _refuse(self, actuator: str, *, command: str = "", decision_id: str = "") -> None:
        send = partial(Receipt, incarnation=self._incarnation, n=self._next_n(), actuator=actuator, status="rejected")
        position = {"tick": self._tick, "step": self._step}
        self._link.send(partial(send, command=command, decision_id=decision_id, reason=REFUSAL, **position))

    def _next_n(self) -> int:
        self._n += 1
        return self._n
