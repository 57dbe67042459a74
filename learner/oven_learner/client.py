"""The learner's end of the controller: `observe` and `poll` on the training thread, everything else elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Self

from oven_controller.errors import BusError, OvenError, UnknownNameError
from oven_controller.messages import (
    Decision,
    Horizon,
    LearnerMessage,
    MetricSpec,
    OperatorCommand,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    Value,
)
from oven_controller.rules import Rules
from oven_learner.actuators import Actuators, Applied
from oven_learner.course import LOCAL, OBEYED, Course, told
from oven_learner.link import Link, Reading
from oven_learner.past import Past
from oven_learner.snapshots import Rollback
from oven_learner.spans import Answer

log = logging.getLogger("oven.learner")

LOCKSTEP_S = 30.0
"""How long a learner in lockstep waits for a tick to close before it goes on without."""
AFTER_TIMEOUT_S = 0.2
"""And from then on, until a tick closes again: one agent that hangs must not cost that wait at every tick."""
HOLD_POLL_S = 0.05

Order = Decision | OperatorCommand


class OvenClient:
    """One run's client. Call `start` once, then per optimizer step `observe` and `poll`, and `close` at the end.

    Nothing that happens on the bus raises out of `observe` or `poll`; a wrong set-up raises out of `start`.
    """

    def __init__(
        self,
        link: Link,
        actuators: Actuators,
        *,
        recipe: str = "custom",
        metrics: tuple[MetricSpec, ...] = (),
        max_steps: int | None = None,
        seconds: float | None = None,
        rules: Rules | None = None,
        lockstep: bool = False,
        snapshots: Rollback | None = None,
        mesh_code: str = "",
        versions: Mapping[str, str] | None = None,
        keys: Mapping[str, str] | None = None,
        share: Callable[[Any], Any] | None = None,
        save: Callable[[], object] | None = None,
    ) -> None:
        """`keys`: who signs → public key; nothing: the run is not signed, or goes on with the keys that it has. `share`
        returns rank 0's argument on every rank (oven_learner.ranks). `save` asks for a checkpoint on disk,
        which makes `run.checkpoint` an actuator even where no snapshot fits into memory."""
        self.actuators = actuators
        self.tick = 0
        self.held = ""
        """Why the run is held; empty while it is not."""
        self.stopping = ""
        """Why training should stop after this step; empty while it should not."""
        self.restart = ""
        """Why the process has to end and be started again: a rollback that it cannot do itself. Else empty."""
        self.out_of_time = False
        """It stops because its time budget is spent: that is an end in order."""
        self._link = link
        self._recipe, self._metrics = recipe, metrics
        self._horizon = Horizon(max_steps=max_steps, seconds=seconds)
        self._rules = rules or Rules(autonomy="observe")
        self._lockstep = lockstep
        self._snapshots = snapshots
        self._mesh_code, self._versions, self._keys = mesh_code, dict(versions or {}), dict(keys or {})
        self._save = save
        self._share = share or (lambda said: said)
        self._incarnation = 1
        self._n = 0
        self._step = 0
        self._closed_tick = -1
        self._timeouts = 0
        self._patience = LOCKSTEP_S
        self._started_at = 0.0
        self._waiting: list[Decision] = []
        self._decided: set[str] = set()  # a copy of a decision is no second one
        self._commands: set[str] = set()
        self._asked: list[OperatorCommand] = []
        self._closed = False
        actuators.action("run.hold", self._hold)
        actuators.action("run.stop", self._stop)
        if snapshots is not None or save is not None:
            actuators.action("run.checkpoint", self._checkpoint, unit="step")
        if snapshots is not None:
            actuators.action("run.rollback", self._rollback, unit="tick to go back to")

    def start(self, step: int = 0, values: Mapping[str, Value] | None = None) -> Past:
        """Connect, announce the run, and restore what earlier incarnations had set; where the log says nothing of an
        actuator, what `values` of a checkpoint say. Raises OvenError."""
        for name in self._rules.autonomy_of:
            if name not in self.actuators:
                raise UnknownNameError("actuator (in rules.autonomy_of)", name, self.actuators)
        past = self._open()
        self._incarnation = past.incarnation + 1
        self.tick, self._step = past.tick, step
        for name, value in {**(values or {}), **past.values}.items():
            if name in self.actuators and self.actuators.spec(name).kind != "action":
                applied = self.actuators.apply(name, value)
                log.info("resumed %s = %s (%s)", name, applied.after, applied.status)
        self._started_at = time.monotonic()
        self._send(
            RunStarted(
                incarnation=self._incarnation,
                n=self._next(),
                recipe=self._recipe,
                tick=self.tick,
                step=step,
                horizon=self._horizon,
                actuators=self.actuators.specs(),
                metrics=self._metrics,
                rules=self._rules,
                lockstep=self._lockstep,
                mesh_code=self._mesh_code,
                versions=self._versions,
                keys=self._keys or dict(past.keys),
            )
        )
        self._decided = set(past.decided)
        for decision in past.unanswered:
            self._receipt(decision, Applied("unknown", reason="the learner restarted before it answered"))
        # Nobody knows whether the operator still wants it: a run that was stopped, and is resumed, must not stop again.
        for command_id, command in past.commands.items():
            if not command_id.startswith(LOCAL):  # those count anew in each incarnation
                self._commands.add(command_id)
            if command is not None:
                reason = f"the learner restarted before it obeyed; say {command.action} again if it still holds"
                self._said(Applied("unknown", reason=reason), OBEYED[command.action], command=command_id)
        self._link.begin()
        self._snapshot()
        return past

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish one optimizer step's metrics: floats, in the units that were announced. What was not measured is
        left out, not 0; NaN is sent as NaN. Costs an append: the message is made and sent elsewhere."""
        self.tick += 1
        self._step = step
        self._link.send(
            Reading(self._incarnation, self._next(), self.tick, step, self.progress(step), dict(metrics)),
            droppable=True,
        )

    def poll(self) -> None:
        """Take decisions and commands and apply what is due, between two optimizer steps.

        While the run is held it stays in here and goes on listening. In lockstep it waits for the tick to close.
        """
        self._hear(self._listened(self._receive))
        while self.held and not self.stopping:
            time.sleep(HOLD_POLL_S)
            self._hear(self._drain())
        if not self.stopping:
            self._snapshot()

    def request_stop(self, reason: str) -> None:
        """Ask for an end in order after the running step. Safe from a signal handler; rank 0's word goes."""
        self._asked.append(OperatorCommand(id=f"{LOCAL}{len(self._asked)}", action="stop", reason=reason))

    def hold(self, reason: str) -> None:
        """Hold the run at the next `poll`, for a reason of the learner's own, until an operator resumes it. The log has
        it as a receipt of `run.hold` that answers no decision. Every rank says so; rank 0's word goes."""
        self._asked.append(OperatorCommand(id=f"{LOCAL}{len(self._asked)}", action="hold", reason=reason))

    def close(
        self,
        reason: Literal["completed", "stopped", "failed"],
        *,
        detail: str = "",
        metrics: Mapping[str, float] | None = None,
        timeout_s: float = 5.0,
    ) -> bool:
        """Announce the end and send what is left. False when something stayed unsent. A second call does nothing."""
        if self._closed:
            return True
        self._closed = True
        too_late = Applied("expired", reason="the run ended first")
        for order in [*self._waiting, *self._listened(self._drain)]:
            if isinstance(order, OperatorCommand):
                self._answer(order, too_late)
            elif order.verdict == "adopted" and (order in self._waiting or order.id not in self._decided):
                self._decided.add(order.id)
                self._receipt(order, too_late)
        self._waiting.clear()
        self._send(
            RunEnded(
                incarnation=self._incarnation,
                n=self._next(),
                reason=reason,
                detail=detail,
                tick=self.tick,
                step=self._step,
                metrics=dict(metrics or {}),
                lockstep_timeouts=self._timeouts,
            )
        )
        sent = self._link.close(timeout_s)
        if not sent:
            log.error("the bus did not take the run's last messages within %g s; the log lacks them", timeout_s)
        return sent

    def position(self) -> dict[str, int]:
        """Where the log stands: the tick, and the last message of the learner, which (incarnation, n) finds in it."""
        return {"incarnation": self._incarnation, "n": self._n, "tick": self.tick}

    def progress(self, step: int) -> float:
        """0 to 1: the larger share of steps and of time."""
        steps = step / self._horizon.max_steps if self._horizon.max_steps else 0.0
        elapsed = time.monotonic() - self._started_at
        seconds = elapsed / self._horizon.seconds if self._horizon.seconds else 0.0
        return min(1.0, max(0.0, steps, seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """The end of a `with` block: completed, stopped, or failed with what was raised."""
        if kind is None:
            stopped = self.stopping and not self.out_of_time
            self.close("stopped" if stopped else "completed", detail=self.stopping)
        elif issubclass(kind, KeyboardInterrupt):
            self.close("stopped", detail="interrupted from the keyboard")
        else:
            self.close("failed", detail=f"{kind.__name__}: {error}"[:500])

    def _open(self) -> Past:
        """Rank 0 connects; its failure is every rank's, so that none waits for the others."""
        past: Past | OvenError
        try:
            past = self._link.open()
        except OvenError as error:
            past = error
        except Exception as error:
            past = BusError(f"the run's log could not be opened: {type(error).__name__}: {error}")
        past = self._share(past)
        if isinstance(past, OvenError):
            raise past
        return past

    def _hear(self, orders: list[Order]) -> None:
        """Obey, on every rank alike: the time that is left is rank 0's word too, or one would stop alone."""
        spent = bool(self._horizon.seconds and time.monotonic() - self._started_at >= self._horizon.seconds)
        orders, spent = self._share((orders, spent))
        self._obey(orders)
        if spent and not self.stopping:
            self.out_of_time, self.stopping = True, "the time budget is spent"

    def _snapshot(self) -> None:
        if self._snapshots is None:
            return
        try:
            self._snapshots.regular(self.tick)
        except Exception as error:  # out of memory, most likely
            log.warning("no snapshot at tick %d (%s: %s); training goes on", self.tick, type(error).__name__, error)

    def _listened(self, read: Callable[[], list[Order]]) -> list[Order]:
        try:
            return read()
        except Exception:
            log.exception("reading from the link failed; training goes on")
            return []

    def _receive(self) -> list[Order]:
        orders = self._drain()
        if self._lockstep:
            limit = time.monotonic() + self._patience
            while self._closed_tick < self.tick and time.monotonic() < limit and not told(orders, self._commands):
                time.sleep(0.0005)
                orders.extend(self._drain())
            if self._closed_tick >= self.tick:
                self._patience = LOCKSTEP_S
            elif not told(orders, self._commands):
                self._timeouts += 1
                log.warning("tick %d did not close in %g s; the run is not repeatable", self.tick, self._patience)
                self._patience = AFTER_TIMEOUT_S
        return orders

    def _drain(self) -> list[Order]:
        orders: list[Order] = [*self._asked]
        while (body := self._link.receive()) is not None:
            if isinstance(body, StepClosed):
                self._closed_tick = max(self._closed_tick, body.tick)
            elif isinstance(body, Decision | OperatorCommand):
                orders.append(body)
        return orders

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, OperatorCommand):
                self._command(order)
            elif order.verdict == "adopted" and order.id not in self._decided:
                self._decided.add(order.id)
                self._waiting.append(order)
        coming = self.tick + 1
        due = [d for d in self._waiting if d.apply_at_tick <= coming or self.held]
        self._waiting = [d for d in self._waiting if d not in due]
        for decision in due:
            self._carry_out(decision, coming)

    def _carry_out(self, decision: Decision, coming: int) -> None:
        began_ns = time.time_ns()
        if coming > decision.expires_at_tick:
            late = coming - decision.expires_at_tick
            self._receipt(decision, Applied("expired", reason=f"it came {late} ticks after it expired"))
            return
        if decision.snapshot_first and self._snapshots is not None:
            try:
                self._snapshots.before(self.tick)
            except Exception as error:
                reason = f"no snapshot could be taken before it: {type(error).__name__}: {error}"
                self._receipt(decision, Applied("rejected", reason=reason))
                return
        applied = self.actuators.apply(decision.actuator, decision.value)
        log.info("%s %s: %s → %s %s", applied.status, decision.actuator, applied.before, applied.after, applied.reason)
        self._receipt(decision, applied, began_ns)

    def _command(self, command: OperatorCommand) -> None:
        """Obey, once, and say so in a receipt that names the command."""
        if command.id in self._commands or command.action not in OBEYED:
            return
        course, applied = Course(self.held, self.stopping).after(command)
        self.held, self.stopping = course.held, course.stopping
        level, who = (logging.WARNING, "learner") if command.id.startswith(LOCAL) else (logging.INFO, "operator")
        log.log(level, "%s: %s, %s (%s)", who, command.action, applied.status, applied.reason)
        self._answer(command, applied)

    def _answer(self, command: OperatorCommand, applied: Applied) -> None:
        if command.id in self._commands or command.action not in OBEYED:
            return
        self._commands.add(command.id)
        if command.action == "hold" or not command.id.startswith(LOCAL):  # what asks for a stop here ends in RunEnded
            self._said(applied, OBEYED[command.action], command=command.id)

    def _hold(self, _: float | None) -> None:
        self.held = "a decision holds the run"

    def _stop(self, _: float | None) -> None:
        self.stopping = "a decision stops the run"

    def _checkpoint(self, _: float | None) -> float:
        if self._snapshots is not None:
            self._snapshots.now(self.tick)
        if self._save is not None:
            self._save()
        return float(self._step)

    def _rollback(self, tick: float | None) -> Any:
        assert self._snapshots is not None
        before = self._step
        settings: dict[str, Value] = {spec.name: spec.value for spec in self.actuators.specs() if spec.kind != "action"}
        snapshot = self._snapshots.back(self.tick if tick is None else int(tick))
        if snapshot.restart:
            self.restart = self.stopping = f"rolled back from step {before} to step {snapshot.step}: {snapshot.restart}"
            settings = {}  # the next process takes them from the log
        for name, value in settings.items():  # e.g. a weight decay lives in the optimizer's state
            self.actuators.apply(name, value)
        self._step = snapshot.step
        return float(before), float(snapshot.step)

    def _receipt(self, decision: Decision, applied: Applied, began_ns: int | None = None) -> None:
        self._said(applied, decision.actuator, decision_id=decision.id, began_ns=began_ns)

    def _said(
        self, applied: Applied, actuator: str, *, decision_id: str = "", command: str = "", began_ns: int | None = None
    ) -> None:
        ended_ns = time.time_ns()
        receipt = Receipt(
            incarnation=self._incarnation,
            n=self._next(),
            decision_id=decision_id,
            command=command,
            actuator=actuator,
            status=applied.status,
            before=applied.before,
            after=applied.after,
            tick=self.tick,
            step=self._step,
            reason=applied.reason,
        )
        self._link.send(Answer(receipt, began_ns or ended_ns, ended_ns))

    def _send(self, message: RunStarted | RunEnded) -> None:
        self._link.send(partial(_as_it_is, message))

    def _next(self) -> int:
        self._n += 1
        return self._n


def _as_it_is(message: LearnerMessage) -> LearnerMessage:
    return message
