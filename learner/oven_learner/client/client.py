"""The learner's end of the controller: `observe` and `poll` on the training thread, everything else elsewhere."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

from oven_core.errors import reason
from oven_core.protocol.actions import BEST
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import (
    ActuatorSpec,
    Horizon,
    LearnerMessage,
    MetricSpec,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Rules
from oven_learner.actuators import Actuators, Applied
from oven_learner.client.adopted_decisions import AdoptedDecisions
from oven_learner.client.announcements import Announcements
from oven_learner.client.best_weights import WITH_BEST, BestWeights
from oven_learner.client.commands import Commands
from oven_learner.client.inbox import Inbox, Orders
from oven_learner.client.judge_offers import JudgeOffers
from oven_learner.client.run_actions import RunActions
from oven_learner.client.run_start import (
    check_rules,
    open_log,
    owed_receipts,
    resume_bounds,
    resume_judges,
    resume_values,
)
from oven_learner.link.link_interface import Link, Make, PendingObservation
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import Parcel
from oven_learner.link.spans import Answer
from oven_learner.ranks import Ranks
from oven_learner.rollback.kept_state import Rollback

log = logging.getLogger("oven.learner")

HOLD_POLL_S = 0.05


class OvenClient:
    """One run's client. Call `start` once, then per optimizer step `observe` and `poll`, and `close` at the end.

    Nothing that happens on the bus raises out of `observe` or `poll`; a wrong set-up raises out of `start`. All ranks
    call these at the same steps; one that died raises out of them on the others.
    """

    def __init__(
        self,
        link: Link,
        actuators: Actuators,
        *,
        recipe: str = "custom",
        training: str = "1",
        metrics: tuple[MetricSpec, ...] = (),
        max_steps: int | None = None,
        seconds: float | None = None,
        charge_rollbacks: bool = False,
        rules: Rules | None = None,
        lockstep: bool = False,
        snapshots: Rollback | None = None,
        mesh_code: str = "",
        versions: Mapping[str, str] | None = None,
        keys: Mapping[str, str] | None = None,
        ranks: Ranks | None = None,
        averaged: Sequence[str] = (),
        save: Callable[[], object] | None = None,
        settle: Callable[[], object] = lambda: None,
        unmeasured: Mapping[str, str] | None = None,
        best: BestWeights | None = None,
    ) -> None:
        """`training`: which one of its script this is (RunStarted.training). `charge_rollbacks`: who ends the run
        counts the steps that rollbacks threw away, too. `keys`: who signs → public key; nothing: the run is not signed,
        or continues with the keys that it has. `ranks`: those of the run, each with its own client; of the metrics
        in `averaged` the mean over them is published. `save` asks for a checkpoint on disk, which makes
        `run.checkpoint` an actuator even where no snapshot fits into memory. `settle` publishes what is still on its
        way from the device: it is called before a receipt and before the end, which speak of later. `unmeasured`:
        metric → why it is not among `metrics`. `best`: what the run may end with in the place of its last weights,
        which adds `run.best`; who gives it calls `evaluated` and `finish`."""
        self.actuators = actuators
        self.tick = 0
        self.step = 0
        """The optimizer step that the weights have behind them: a rollback goes back to an earlier one."""
        self.held = ""
        """Why the run is held; empty while it is not."""
        self.stopping = ""
        """Why training should stop after this step; empty while it should not."""
        self.restart = ""
        """Why the process has to end and be started again: a rollback that it cannot do itself. Else empty."""
        self.began_after = 0
        """The log's last sequence when this incarnation connected: its announcement comes after it."""
        self.while_held: Callable[[], object] = lambda: None
        """Called again and again while the run is held: what may be done between two steps."""
        self.out_of_time = False
        """It stops because its time budget is spent: that is a clean end."""
        self._link = link
        self._training = training
        self._horizon = Horizon(max_steps=max_steps, seconds=seconds, charge_rollbacks=charge_rollbacks)
        self._rules = rules or Rules(autonomy="observe")
        self._lockstep = lockstep
        self._snapshots = snapshots
        self._keys = dict(keys or {})
        self._settle = settle
        announced = {spec.name for spec in metrics}
        self._run_started = partial(
            RunStarted,
            recipe=recipe,
            horizon=self._horizon,
            metrics=metrics,
            unmeasured={name: why for name, why in (unmeasured or {}).items() if name not in announced},
            rules=self._rules,
            lockstep=lockstep,
            mesh_code=mesh_code,
            versions=dict(versions or {}),
        )
        self._ranks, self._averaged = ranks or Ranks(), tuple(averaged)
        self._announcements = Announcements(actuators, self._ranks)
        offers = JudgeOffers(actuators)
        self._inbox = Inbox(
            link, self._ranks, lockstep=lockstep, asked=self._announcements.asked, offered=offers.through
        )
        self._incarnation = 1
        self._n = 0
        self._started_at = 0.0
        self._adopted = AdoptedDecisions(self, actuators, self._ranks, snapshots, self.publish_receipt)
        self._commands = Commands(self, offers, self.publish_receipt, leader=self._ranks.leader)
        self._closed = self._finished = False
        self._best = best
        self._final: dict[str, float] = {}  # of the best weights, where they were put back
        RunActions(self, actuators, snapshots, save)
        if best is not None:
            best.announce(actuators)

    def start(self, step: int = 0, values: Mapping[str, Value] | None = None) -> ResumeState:
        """Connect, announce the run, and restore what earlier incarnations of the same training had set; where the log
        says nothing of an actuator, what `values` of a checkpoint say. Raises OvenError."""
        check_rules(self._rules, self.actuators)
        past, self._training = open_log(self._link, self._ranks, self._training)
        self._adopted.at_once = self._ranks.same(self._lockstep)  # rank 0's word
        self._incarnation, self.began_after = past.incarnation + 1, past.last_seq
        self.tick, self.step = past.tick, step
        if past.training not in ("", self._training):
            self._adopted.another_until = past.tick
        resume_bounds(past.announced.get(self._training, {}), self.actuators)
        resume_judges(past.offers.get(self._training, {}), self.actuators)
        resume_values({**(values or {}), **past.values.get(self._training, {})}, self.actuators, self._ranks)
        self._started_at = time.monotonic()
        started = self._run_started(
            incarnation=self._incarnation,
            n=self._next(),
            training=self._training,
            tick=self.tick,
            step=step,
            actuators=self.actuators.specs(),
            keys=self._keys or dict(past.keys),
        )
        self._enqueue(started.model_copy)  # made here, where a mistake in it is still raised
        self._adopted.known = set(past.decided)
        self._commands.known_from(past.commands)
        for applied, actuator, decision_id, command in owed_receipts(past):
            self.publish_receipt(applied, actuator, decision_id=decision_id, command=command)
        self._link.begin()
        self._snapshot()
        return past

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish one optimizer step's metrics: floats, in the units that were announced. What was not measured is
        left out, not 0; NaN is sent as NaN. Costs an append: the message is made and sent elsewhere."""
        self.publish(self.advance(step), step, self._ranks.mean(metrics, self._averaged))

    def advance(self, step: int) -> int:
        """The tick of a step whose metrics are still on their way; `publish` them under it, in order."""
        self._adopted.report_used()
        self.tick += 1
        self.step = step
        return self.tick

    def publish(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Put the metrics of an advanced tick into the log."""
        self._enqueue(
            PendingObservation(self._incarnation, self._next(), tick, step, self.progress(step), dict(metrics)), True
        )

    def poll(self) -> None:
        """Take decisions and commands and apply what is due, between two optimizer steps.

        While the run is held it stays in here and continues listening. In lockstep it waits for the tick to close.
        Other ranks wait for rank 0, asleep; in a hold no longer at a time than rank 0 does between two looks.
        """
        self._obey(self._inbox.collect(self.spent, self.tick, self._commands.known))
        while self.held and not self.stopping:
            if self._ranks.leader:
                time.sleep(HOLD_POLL_S)
            self.while_held()
            self._obey(self._inbox.collect(self.spent))
        if not self.stopping:
            self._snapshot()

    def announce(self, name: str) -> None:
        """Say at the next step boundary that an actuator was added or changed (`Actuators.update`) in the running
        training: from then on the mesh and the agents know it so. All ranks call it at the same step.
        Before the start it says nothing: RunStarted does. Raises UnknownNameError."""
        if self._started_at:
            self._announcements.ask(name)
        else:
            self.actuators.spec(name)

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """What an evaluation measured on held-out data, of the weights as they are now."""
        if self._best is not None and not (self._finished or self._closed):
            self._best.evaluated(self.tick, self.step, metrics)

    def finish(self) -> None:
        """Training has made its last step: where `run.best` says so, the run ends with its best weights, if they still
        read better. Before what is trained is used or saved; a second call does nothing. The log has it as a receipt of
        `run.best` that answers no decision. `step` stays the last one that was trained. A run that is held, or that a
        signal ends, which leaves it no time, ends with its last weights."""
        if self._finished or self._closed:
            return
        self._finished = True
        if self._best is None or self._best.ends_with != WITH_BEST or self.restart:
            return
        if self.held or self.stopping in signal.Signals.__members__:
            why = f"the run is held ({self.held})" if self.held else f"{self.stopping} leaves no time to evaluate"
            applied = Applied("skipped", WITH_BEST, WITH_BEST, f"the last weights stay: {why}")
        else:
            applied, final = self._best.end(self.tick, self.step)
            self._final = dict(final)
        log.info("%s %s: %s", applied.status, BEST, applied.reason)
        self.publish_receipt(applied, BEST)

    def request_stop(self, reason: str) -> None:
        """Ask for a clean end after the running step. Safe from a signal handler, and on any rank: all of them stop
        at the same step, within two steps or seconds."""
        self._inbox.ask("stop", reason)

    def hold(self, reason: str) -> None:
        """Hold the run at the next `poll`, for a reason of the learner's own, until an operator resumes it. The log has
        it as a receipt of `run.hold` that answers no decision. Every rank says so; rank 0's word goes."""
        self._inbox.ask("hold", reason)

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
        self._settled()
        rest = self._inbox.rest()
        for order in rest:
            if not isinstance(order, OperatorCommand):
                self._adopted.take(order)
        self._adopted.end()
        self._commands.end(rest)
        ended = RunEnded(
            incarnation=self._incarnation,
            n=self._next(),
            reason=reason,
            detail=detail,
            tick=self.tick,
            step=self.step,
            metrics={**(metrics or {}), **self._final},
            lockstep_timeouts=self._inbox.timeouts,
        )
        self._enqueue(ended.model_copy)
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

    def spent(self) -> bool:
        """Whether the time budget is."""
        return bool(self._horizon.seconds and time.monotonic() - self._started_at >= self._horizon.seconds)

    def _snapshot(self) -> None:
        if self._snapshots is None:
            return
        try:
            self._snapshots.take_if_due(self.tick)
        except Exception as error:  # out of memory, most likely
            log.warning("no snapshot at tick %d (%s); training continues", self.tick, reason(error))

    def _obey(self, orders: Orders | None) -> None:
        """On every rank alike."""
        for order in orders.orders if orders else ():
            if isinstance(order, OperatorCommand):
                self._commands.obey(order)
            else:
                self._adopted.take(order)
        self._announcements.take(orders.announced if orders else ())
        self._commands.take(orders.offered if orders else (), lambda name: self._announcements.take((name,)))
        self._announcements.publish(self._announce)
        self._commands.answer_offers()
        self._adopted.carry_out()
        self.stopping = self.stopping or self._adopted.parted
        if orders and orders.spent and not self.stopping:
            self.out_of_time, self.stopping = True, "the time budget is spent"

    def publish_receipt(
        self,
        applied: Applied,
        actuator: str,
        *,
        decision_id: str = "",
        command: str = "",
        began_ns: int | None = None,
        tick: int | None = None,
        step: int | None = None,
    ) -> None:
        """Put the outcome of a decision or a command into the log. `tick` and `step`: when it was done, where that is
        not now."""
        ended_ns = time.time_ns()
        self._settled()
        receipt = Receipt(
            incarnation=self._incarnation,
            n=self._next(),
            decision_id=decision_id,
            command=command,
            actuator=actuator,
            status=applied.status,
            before=applied.before,
            after=applied.after,
            tick=self.tick if tick is None else tick,
            step=self.step if step is None else step,
            reason=applied.reason,
        )
        self._enqueue(Answer(receipt, began_ns or ended_ns, ended_ns))

    def show(self, make: Parcel) -> None:
        """Hand over a group of completions, for those who watch: an append."""
        self._link.show(make)

    def _announce(self, spec: ActuatorSpec) -> None:
        self._settled()
        self.say(ActuatorAnnounced, actuator=spec, tick=self.tick, step=self.step)

    def say(self, kind: type[LearnerMessage], **fields: Any) -> None:
        """Put a message of this kind into the log."""
        self._enqueue(partial(kind, incarnation=self._incarnation, n=self._next(), **fields))

    def _settled(self) -> None:
        try:
            self._settle()
        except Exception:  # a device that failed; training will hear of it itself
            log.exception("what was on its way from the device did not arrive; the log lacks it")

    def _enqueue(self, make: Make, droppable: bool = False) -> None:
        """Onto the link. A rank that raised here would leave the others waiting for it."""
        try:
            self._link.send(make, droppable=droppable)
        except Exception:
            log.exception("a message was not sent; training continues")

    def _next(self) -> int:
        self._n += 1
        return self._n
