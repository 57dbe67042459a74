"""The learner's client for the controller. A training loop calls `observe` and `poll` at each step."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from oven_core.errors import reason
from oven_core.protocol.actuators import BEST, EVALUATE
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
from oven_learner.actuators import Actuators, ChangeResult
from oven_learner.client.adopted_decisions import AdoptedDecisions
from oven_learner.client.announcements import Announcements
from oven_learner.client.best_weights import BEST_WEIGHTS, BestWeights
from oven_learner.client.commands import Commands
from oven_learner.client.inbox import Inbox, Orders
from oven_learner.client.outcome_readings import OutcomeReadings
from oven_learner.client.run_actions import RunActions
from oven_learner.client.run_messages import RunMessages
from oven_learner.client.run_start import (
    check_rules,
    open_log,
    receipts_of_unanswered,
    resume_bounds,
    resume_judges,
    resume_values,
)
from oven_learner.link.link_interface import Link, TracedReceipt, to_floats
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.sample_queue import SampleConverter
from oven_learner.ranks import Ranks
from oven_learner.rollback.rollback_protocol import Rollback

log = logging.getLogger("oven.learner")

HOLD_POLL_S = 0.05
"""Seconds between two polls while the run is held."""
EndReason = Literal["completed", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class _Setup:
    """Settings that only `start` uses."""

    training: str
    rules: Rules
    keys: Mapping[str, str]
    held_out: Sequence[str]
    """Names of the held-out metrics."""
    announce: Callable[..., RunStarted]
    """Builds RunStarted from the fields that are known at the start."""


class OvenClient:
    """The client of one run. Call `start` once, `observe` and `poll` after each optimizer step, and `close` at the end.
    `start` raises if the setup is wrong. `observe` and `poll` do not raise if the bus fails. All ranks call these
    methods at the same steps. If one rank dies, the calls raise on the others."""

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
        averaged_metrics: Sequence[str] = (),
        save: Callable[[], object] | None = None,
        settle: Callable[[], object] = lambda: None,
        unmeasured: Mapping[str, str] | None = None,
        best: BestWeights | None = None,
    ) -> None:
        """Args:
        training: the name of this training run, unique within the script (RunStarted.training).
        charge_rollbacks: whether steps that rollbacks threw away count towards the length of the run. The client only
            announces this, and the caller ends the run accordingly.
        keys: signer → public key. Empty if the run is not signed, or if it resumes with the keys in its log.
        ranks: the ranks of the run, each with its own client.
        averaged_metrics: metrics whose mean over the ranks is published.
        save: requests a checkpoint on disk. It makes `run.checkpoint` available even if no snapshot fits into memory.
        settle: publishes measurements that are still being copied from the device. It is called before each receipt
            and before the end of the run, so that the log stays in order.
        unmeasured: metric → the reason why it is missing from `metrics`.
        best: keeps the best weights, which can replace the last ones at the end. It adds `run.best`. The caller then
            calls `record_evaluation` and `finish`.
        """
        self.actuators = actuators
        self.tick = 0
        self.step = 0
        """The optimizer step of the current weights. A rollback sets it back."""
        self.hold_reason = ""
        """Reason why the run is held, or empty."""
        self.stop_reason = ""
        """Reason to stop training after this step, or empty."""
        self.restart_reason = ""
        """Reason to exit and restart the process, which completes a rollback. Otherwise empty."""
        self.seq_at_connect = 0
        """The log's last sequence number when this incarnation connected. Its RunStarted has a higher number."""
        self.while_held: Callable[[], object] = lambda: None
        """Called repeatedly while the run is held, for work that belongs between two steps."""
        self.out_of_time = False
        """Whether the run stops because its time budget is used up. The run then counts as completed."""
        self._link, self._ranks = link, ranks or Ranks()
        self._lockstep, self._averaged_metrics = lockstep, tuple(averaged_metrics)
        self._messages = RunMessages(link, max_steps, seconds)
        self._snapshots, self._best, self._settle = snapshots, best, settle
        announced = {spec.name for spec in metrics}
        rules = rules or Rules(autonomy="observe")
        self._setup = _Setup(
            training=training,
            rules=rules,
            keys=dict(keys or {}),
            held_out=[spec.name for spec in metrics if spec.held_out],
            announce=partial(
                RunStarted,
                recipe=recipe,
                horizon=Horizon(max_steps=max_steps, seconds=seconds, charge_rollbacks=charge_rollbacks),
                metrics=metrics,
                unmeasured={name: cause for name, cause in (unmeasured or {}).items() if name not in announced},
                rules=rules,
                lockstep=lockstep,
                mesh_code=mesh_code,
                versions=dict(versions or {}),
            ),
        )
        self._closed = self._finished = False
        self._best_metrics: dict[str, float] = {}  # metrics of the best weights, if the run ends with them
        self._adopted = AdoptedDecisions(
            self,
            actuators,
            self._ranks,
            snapshots,
            self.publish_receipt,
            lambda decision: self._outcome_readings.add(decision, self.tick),
        )
        self._announcements = Announcements(actuators, self._ranks)
        self._commands = Commands(self, actuators, self.publish_receipt, leader=self._ranks.leader)
        self._inbox = Inbox(link, self._ranks, self._take_own_requests, lockstep=lockstep)
        RunActions(self, actuators, snapshots, save).register()
        if best is not None:
            best.register(actuators)

    @property
    def stopping(self) -> bool:
        """Whether to stop training after this step."""
        return bool(self.stop_reason)

    def start(self, step: int = 0, values: Mapping[str, Value] | None = None) -> ResumeState:
        """Connect, announce the run, and restore the settings of earlier incarnations of the same training. `values`
        come from a checkpoint, and are used for actuators whose value is not in the log. Raises OvenError."""
        setup = self._setup
        check_rules(setup.rules, self.actuators)
        past, training = open_log(self._link, self._ranks, setup.training)
        # Only rank 0 knows the run's rules.
        self._adopted.answers_immediately, rules = self._ranks.broadcast((self._lockstep, setup.rules))
        self._outcome_readings = OutcomeReadings(rules, setup.held_out, past.tick)
        self.seq_at_connect = past.last_seq
        self.tick, self.step = past.tick, step
        if past.training not in ("", training):
            self._adopted.last_tick_of_previous_training = past.tick
        resume_bounds(past.announced.get(training, {}), self.actuators)
        resume_judges(past.offers.get(training, {}), self.actuators)
        resume_values({**(values or {}), **past.values.get(training, {})}, self.actuators, self._ranks)
        self._messages.start(past.incarnation + 1)
        run_started = setup.announce(
            incarnation=self._messages.incarnation,
            n=self._messages.next_n(),
            training=training,
            tick=self.tick,
            step=step,
            actuators=self.actuators.specs(),
            keys=setup.keys or dict(past.keys),
        )
        self._messages.send(run_started.model_copy)  # the message was built above, so that errors in it are raised
        self._adopted.seen_ids = set(past.decided_ids)
        self._commands.ignore(past.commands)
        for result, actuator, decision_id, command in receipts_of_unanswered(past):
            self.publish_receipt(result, actuator, decision_id=decision_id, command=command)
        self._link.begin()
        self._take_snapshot_if_due()
        return past

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the metrics of one optimizer step as floats in the announced units. Omit missing measurements instead
        of sending 0. NaN is sent as NaN. The call only appends to a queue, and another thread sends the message."""
        if self._averaged_metrics:
            metrics = self._ranks.mean(metrics, self._averaged_metrics)
        self._messages.observe(self.advance(step), step, {**metrics})

    def advance(self, step: int) -> int:
        """Start the tick of a step, and return the tick. The caller passes it to `publish` later, in order of ticks."""
        if self._adopted.pending or self.actuators.proofs:
            self._adopted.report_outcomes()
        self.tick += 1
        self.step = step
        return self.tick

    def publish(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a tick that `advance` has returned. The mapping must not change afterwards."""
        self._messages.observe(tick, step, metrics)

    def poll(self) -> None:
        """Receive decisions and commands, and apply those that are due between two optimizer steps. In lockstep, wait
        for the tick to close. While the run is held, keep listening instead of returning. The other ranks then sleep
        until rank 0 has received something."""
        orders = self._inbox.collect(self.tick, self._commands.seen_ids)
        if orders is not None or self._adopted.waiting:
            self._apply_orders(orders)
        while self.hold_reason and not self.stop_reason:
            if self._ranks.leader:
                time.sleep(HOLD_POLL_S)
            self.while_held()
            self._apply_orders(self._inbox.collect())
        if not self.stop_reason:
            if self._snapshots is not None:
                self._take_snapshot_if_due()
            if self._outcome_readings.take_request(self.tick) and EVALUATE in self.actuators:
                self.actuators.apply(EVALUATE, None)

    def announce(self, name: str) -> None:
        """Announce an added or changed actuator (`Actuators.update`) at the next step boundary. All ranks make this
        call at the same step. Before `start`, it only checks the name, because RunStarted announces all actuators.
        Raises UnknownNameError."""
        if self._messages.started_at:
            self._announcements.request(name)
        else:
            self.actuators.spec(name)

    def record_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Record the results of an evaluation of the current weights on held-out data."""
        self._outcome_readings.record(self.tick)
        if self._best is not None and not (self._finished or self._closed):
            self._best.record_evaluation(self.tick, self.step, metrics)

    def finish(self) -> None:
        """Restore the best weights if `run.best` is "best" and they still score better than the last ones.

        Call this after the last step, before the weights are used or saved. Further calls do nothing. The result is
        logged as a receipt of `run.best` without a decision. `step` does not change. If the run is held, or was stopped
        by a signal, it keeps its last weights.
        """
        if self._finished or self._closed:
            return
        self._finished = True
        if self._best is None or self._best.final_weights != BEST_WEIGHTS or self.restart_reason:
            return
        obstacle = ""
        if self.hold_reason:
            obstacle = f"the run is held ({self.hold_reason})"
        elif self.stop_reason in signal.Signals.__members__:
            obstacle = f"{self.stop_reason} leaves no time to evaluate"
        if obstacle:
            result = ChangeResult("skipped", BEST_WEIGHTS, BEST_WEIGHTS, f"kept the last weights, because {obstacle}")
        else:
            result, metrics = self._best.choose_final_weights(self.tick, self.step)
            self._best_metrics = dict(metrics)
        log.info("%s %s: %s", result.status, BEST, result.reason)
        self.publish_receipt(result, BEST)

    def request_stop(self, reason: str) -> None:
        """Request a clean end after the current step. Can be called in a signal handler and on any rank. All ranks stop
        at the same step, within two steps or two seconds."""
        self._inbox.request("stop", reason)

    def hold(self, reason: str) -> None:
        """Hold the run at the next `poll`, without a decision, until an operator resumes it. A receipt of `run.hold`
        logs this. If all ranks call this, only rank 0's call counts."""
        self._inbox.request("hold", reason)

    def close(
        self,
        reason: EndReason | None = None,
        *,
        detail: str = "",
        metrics: Mapping[str, float] | None = None,
        timeout_s: float = 5.0,
    ) -> bool:
        """Announce the end and send all queued messages. Return False if some were not sent. By default, `reason` and
        `detail` come from `end_reason` for the exception that is being handled. Further calls do nothing."""
        if self._closed:
            return True
        if reason is None:
            reason, default_detail = self.end_reason(sys.exception())
            detail = detail or default_detail
        self._closed = True
        self._settle_safely()
        late_orders = self._inbox.take_remaining()
        for order in late_orders:
            if not isinstance(order, OperatorCommand):
                self._adopted.add(order)
        self._adopted.end()
        self._commands.end(late_orders)
        run_ended = RunEnded(
            incarnation=self._messages.incarnation,
            n=self._messages.next_n(),
            reason=reason,
            detail=detail,
            tick=self.tick,
            step=self.step,
            metrics=to_floats({**(metrics or {}), **self._best_metrics}),
            lockstep_timeouts=self._inbox.timeouts,
        )
        self._messages.send(run_ended.model_copy)
        all_sent = self._link.close(timeout_s)
        if not all_sent:
            log.error("the run's last messages could not be sent within %g s and are missing from the log", timeout_s)
        return all_sent

    def position(self) -> dict[str, int]:
        """Return the position in the log: the tick, and (incarnation, n) of the learner's last message."""
        return {"incarnation": self._messages.incarnation, "n": self._messages.n, "tick": self.tick}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Close the client. An exception other than KeyboardInterrupt marks the run as failed."""
        reason, detail = self.end_reason(error)
        self.close(reason, detail=detail)

    def end_reason(self, error: BaseException | None) -> tuple[EndReason, str]:
        """Return the reason why the run ends now, and the details for RunEnded."""
        if isinstance(error, KeyboardInterrupt):
            return "stopped", "interrupted from the keyboard"
        if error is not None:
            return "failed", f"{type(error).__name__}: {error}"[:500]
        return "stopped" if self.stop_reason and not self.out_of_time else "completed", self.stop_reason

    def publish_receipt(
        self,
        result: ChangeResult,
        actuator: str,
        *,
        decision_id: str = "",
        command: str = "",
        began_ns: int | None = None,
        tick: int | None = None,
        step: int | None = None,
    ) -> None:
        """Log the result of a decision or a command. Pass `tick` and `step` if it was applied earlier than now."""
        ended_ns = time.time_ns()
        self._settle_safely()
        receipt = Receipt(
            incarnation=self._messages.incarnation,
            n=self._messages.next_n(),
            decision_id=decision_id,
            command=command,
            actuator=actuator,
            status=result.status,
            before=result.before,
            after=result.after,
            tick=self.tick if tick is None else tick,
            step=self.step if step is None else step,
            reason=result.reason,
        )
        self._messages.send(TracedReceipt(receipt, began_ns or ended_ns, ended_ns))

    def show(self, convert: SampleConverter) -> None:
        """Queue a group of completions for the monitor. Never blocks."""
        self._link.show(convert)

    def publish_message(self, kind: type[LearnerMessage], **fields: Any) -> None:
        """Log a message of the class `kind`, with these fields."""
        self._messages.send(partial(kind, incarnation=self._messages.incarnation, n=self._messages.next_n(), **fields))

    def _take_own_requests(self) -> Orders | None:
        """Return what the learner itself requests of all ranks before the next step, or None. Rank 0 only. The first
        test is here, because `poll` would take 10 µs longer if it called both objects at every step."""
        is_time_spent = self._messages.is_time_spent()
        commands = self._commands
        if not (is_time_spent or self._announcements.requested or commands.probes or commands.probed_commands):
            return None
        announcements, probed_commands = self._announcements.take_requests(), commands.take_finished_probes()
        if not (is_time_spent or announcements or probed_commands):
            return None  # a probe is still running
        return Orders(is_time_spent=is_time_spent, announcements=announcements, probed_commands=probed_commands)

    def _take_snapshot_if_due(self) -> None:
        if self._snapshots is None:
            return
        try:
            self._snapshots.take_if_due(self.tick)
        except Exception as error:  # out of memory, most likely
            log.warning("cannot take a snapshot at tick %d (%s); training continues", self.tick, reason(error))

    def _apply_orders(self, orders: Orders | None) -> None:
        """Apply the orders from rank 0, and the decisions whose tick has come. All ranks do the same."""
        if orders is not None:
            for order in orders.orders:
                if isinstance(order, OperatorCommand):
                    self._commands.execute(order)
                else:
                    self._adopted.add(order)
            changed_actuators = self._commands.apply_judge_commands(orders.probed_commands)
            self._announcements.publish([*orders.announcements, *changed_actuators], self._announce)
            self._commands.answer()
        if self._adopted.waiting:
            self._adopted.apply_due()
            self.stop_reason = self.stop_reason or self._adopted.rank_difference
        if orders is not None and orders.is_time_spent and not self.stop_reason:
            self.out_of_time, self.stop_reason = True, "the time budget is used up"

    def _announce(self, spec: ActuatorSpec) -> None:
        self._settle_safely()
        self.publish_message(ActuatorAnnounced, actuator=spec, tick=self.tick, step=self.step)

    def _settle_safely(self) -> None:
        try:
            self._settle()
        except Exception:  # the device has failed, so training will raise its own error
            log.exception("measurements could not be read from the device and are missing from the log")
