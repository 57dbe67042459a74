"""Applies adopted decisions in the learner and publishes their receipts.

Each decision waits for its tick and is applied between two steps. Its receipt is sent immediately, or after a step has
shown whether the new setting is used. A plan is applied completely or not at all. Its settings come first, because they
can be reverted. Its actions that move the weights come last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oven_core.errors import reason
from oven_core.protocol.actuator_names import ROLLBACK
from oven_core.protocol.messages import Decision, Value
from oven_learner.actuators import SUCCESSFUL, USED, Actuators, Applied, Proof, difference
from oven_learner.client.run_actions import Run
from oven_learner.ranks import Ranks
from oven_learner.rollback.rollback_protocol import Rollback

log = logging.getLogger("oven.learner")


@dataclass(slots=True)
class PendingReceipt:
    """A receipt that waits until a step has shown whether the change is used. Without a proof, it only waits for
    earlier receipts, so that receipts stay in order."""

    decision: Decision
    applied: Applied
    began_ns: int
    tick: int
    step: int
    proof: Proof | None = None


class AdoptedDecisions:
    """The adopted decisions of one client. Every rank calls each method at the same steps."""

    def __init__(
        self,
        run: Run,
        actuators: Actuators,
        ranks: Ranks,
        snapshots: Rollback | None,
        publish: Callable[..., None],
    ) -> None:
        """`publish(applied, actuator, *, decision_id, began_ns, tick, step)` sends a receipt."""
        self.answers_immediately = False
        """Whether to send a receipt without waiting for a step if its outcome is certain."""
        self.last_tick_of_previous_training: int | None = None
        """Decisions up to this tick belong to a previous training run."""
        self.seen_ids: set[str] = set()
        """Ids of received decisions, used to ignore copies."""
        self.rank_difference = ""
        """Error message if a change had different outcomes on the ranks, or an empty string. If set, the ranks must
        stop."""
        self._run, self._actuators, self._ranks = run, actuators, ranks
        self._snapshots, self._publish = snapshots, publish
        self._waiting: list[Decision] = []
        self._pending: list[PendingReceipt] = []
        self._values_before_plan: dict[str, Value] = {}  # decision id → the value before it, at this step boundary

    def add(self, decision: Decision) -> None:
        """Queue an adopted decision until its tick. Ignore copies and decisions that were not adopted."""
        if decision.verdict == "adopted" and decision.id not in self.seen_ids:
            self.seen_ids.add(decision.id)
            self._waiting.append(decision)

    def apply_due(self) -> None:
        """Apply the decisions that are due before the next step. While the run is held, apply all."""
        if not self._waiting:
            return
        next_tick = self._run.tick + 1
        due = self._due_decisions(next_tick)
        self._waiting = [decision for decision in self._waiting if decision not in due]
        failed_plans: dict[tuple[int, tuple[str, ...]], str] = {}  # (tick, plan) → reason
        self._values_before_plan = {}
        due.sort(key=lambda decision: (decision.tick, bool(decision.plan) and self._moves_weights(decision.actuator)))
        for decision in due:
            plan = (decision.tick, decision.plan)
            if decision.plan and plan in failed_plans:
                self._answer(decision, Applied("skipped", reason=failed_plans[plan]))
                continue
            applied = self._apply_unless_expired(decision, next_tick)
            if decision.plan and applied.status not in SUCCESSFUL:
                details = f" ({applied.reason})" if applied.reason else ""
                failed_plans[plan] = f"a plan is all or nothing, and {decision.actuator} was {applied.status}{details}"
                same_plan = [planned for planned in due if (planned.tick, planned.plan) == plan]
                self._revert([planned for planned in same_plan if planned is not decision], failed_plans[plan])

    def _due_decisions(self, next_tick: int) -> list[Decision]:
        """Return the decisions whose tick has come. Those of a plan also wait until the plan is complete or expired."""
        arrived_names = {(decision.tick, decision.actuator) for decision in self._waiting}
        due = []
        for decision in self._waiting:
            is_due = decision.apply_at_tick <= next_tick or bool(self._run.held)
            is_complete = all((decision.tick, name) in arrived_names for name in decision.plan)
            if is_due and (is_complete or next_tick > decision.expires_at_tick):
                due.append(decision)
        return due

    def report_outcomes(self) -> None:
        """Send receipts of settings that the last step used or ignored, and of settings that other code reverted."""
        if self._pending:
            self._report_pending()
        for name, proof in self._actuators.proofs().items():
            if reversion := proof.take_undone_change():
                self._publish(Applied("applied", *reversion), name)

    def _report_pending(self) -> None:
        """Send the pending receipts whose verdicts are known on all ranks."""
        receipts = self._pending
        self._pending = []
        own_verdicts = [pending.proof.verdict() if pending.proof is not None else USED for pending in receipts]
        verdicts_by_rank = self._ranks.all_gather(own_verdicts)
        for index, pending in enumerate(receipts):
            verdicts = [rank_verdicts[index] for rank_verdicts in verdicts_by_rank]
            if None in verdicts:
                self._pending.append(pending)
                continue
            causes = [verdict for verdict in verdicts if verdict is not None and verdict != USED]
            if not causes:
                self._send(pending, pending.applied)
                continue
            if own_verdicts[index] == USED:  # but not on all ranks
                self._actuators.apply(pending.decision.actuator, pending.applied.before)
            self._send(pending, _unused_outcome(pending, self._actuators, causes[0]))

    def end(self) -> None:
        """Answer all open decisions, because there are no more steps. Waiting decisions expire."""
        for pending in self._pending:
            self._send(pending, _final_outcome(pending, self._actuators))
        self._pending.clear()
        for proof in self._actuators.proofs().values():
            proof.close()
        for decision in self._waiting:
            self._answer(decision, Applied("expired", reason="the run ended before it was applied"))
        self._waiting.clear()

    def _apply_unless_expired(self, decision: Decision, next_tick: int) -> Applied:
        """Apply a decision unless it has expired. Send its receipt, or queue it until a step has used the change."""
        began_ns = time.time_ns()
        if expiry := self._expiry_reason(decision, next_tick):
            expired = Applied("expired", reason=expiry)
            self._answer(decision, expired)
            return expired
        applied = self._agree(decision, self._apply(decision))
        proof = self._required_proof(decision, applied)
        if proof is not None:
            proof.begin(applied.before)
        pending = PendingReceipt(decision, applied, began_ns, self._run.tick, self._run.step, proof)
        must_wait_for_earlier = bool(self._pending) and not self._run.held
        if proof is not None or must_wait_for_earlier:
            self._pending.append(pending)
        else:
            self._send(pending, applied)
        if decision.plan and applied.status == "applied" and not self._moves_weights(decision.actuator):
            self._values_before_plan[decision.id] = applied.before
        return applied

    def _required_proof(self, decision: Decision, applied: Applied) -> Proof | None:
        """Return the proof to wait for before the receipt is sent, or None if the outcome is certain."""
        proof = self._actuators.proof(decision.actuator)
        if proof is None or applied.status != "applied":
            return None
        answers_now = self.answers_immediately or bool(self._run.held)
        return None if answers_now and proof.is_certain else proof

    def _expiry_reason(self, decision: Decision, next_tick: int) -> str:
        if next_tick > decision.expires_at_tick:
            return f"it arrived {next_tick - decision.expires_at_tick} ticks after it expired"
        last_tick = self.last_tick_of_previous_training
        if last_tick is not None and decision.tick <= last_tick and not decision.command:
            return "the decision belongs to a previous training run"
        return ""

    def _revert(self, decisions: Sequence[Decision], cause: str) -> None:
        """Revert a plan's settings that have already been applied, with a receipt for each."""
        for decision in decisions:
            before = self._values_before_plan.get(decision.id)
            if before is None:
                continue
            pending = next((entry for entry in self._pending if entry.decision.id == decision.id), None)
            applied = self._agree(decision, self._actuators.apply(decision.actuator, before))
            if pending is not None:
                self._pending.remove(pending)
                self._send(pending, replace(pending.applied, status="skipped", after=applied.after, reason=cause))
            else:
                self._publish(replace(applied, reason=cause), decision.actuator)

    def _apply(self, decision: Decision) -> Applied:
        if self._run.restart and self._is_action(decision.actuator):
            problem = f"{self._run.restart}; an action would be lost in the restart, so request it again afterwards"
            return Applied("rejected", reason=problem)
        if decision.snapshot_first and self._snapshots is not None:
            try:
                self._snapshots.ensure(self._run.tick)
            except Exception as error:
                problem = f"could not take the required snapshot: {reason(error)}"
                return Applied("rejected", reason=problem)
        if decision.actuator == ROLLBACK and self._snapshots is not None and isinstance(decision.value, int | float):
            exact = bool(decision.command) and not decision.approves
            if problem := self._snapshots.distance_problem(int(decision.value), self._run.tick, exact=exact):
                return Applied("rejected", reason=problem)
        return self._actuators.apply(decision.actuator, decision.value)

    def _agree(self, decision: Decision, applied: Applied) -> Applied:
        """Compare the outcome on all ranks, and return the common outcome. If a setting failed on one rank, revert it
        on the others. An action cannot be reverted, so the ranks must not continue if its outcomes differ."""
        name, is_action = decision.actuator, self._is_action(decision.actuator)
        result_may_differ = is_action and not name.startswith("run.")
        outcomes = self._ranks.all_gather(replace(applied, after=None) if result_may_differ else applied)
        rank_difference = difference(outcomes)
        if not rank_difference:
            return applied
        if is_action:
            self.rank_difference = self.rank_difference or f"{name} had different outcomes: {rank_difference}"
            return Applied("unknown", applied.before, applied.after, f"the run stops: {rank_difference}")
        if applied.status in ("applied", "unknown") and applied.before is not None:
            applied = replace(applied, after=self._actuators.apply(name, applied.before).after)
        return Applied("rejected", applied.before, applied.after, f"reverted on all ranks: {rank_difference}")

    def _is_action(self, name: str) -> bool:
        return name in self._actuators and self._actuators.spec(name).kind == "action"

    def _moves_weights(self, name: str) -> bool:
        return name in self._actuators and self._actuators.spec(name).moves_weights

    def _send(self, pending: PendingReceipt, applied: Applied) -> None:
        name = pending.decision.actuator
        log.info("%s %s: %s → %s %s", applied.status, name, applied.before, applied.after, applied.reason)
        self._publish(
            applied,
            name,
            decision_id=pending.decision.id,
            began_ns=pending.began_ns,
            tick=pending.tick,
            step=pending.step,
        )

    def _answer(self, decision: Decision, applied: Applied) -> None:
        self._publish(applied, decision.actuator, decision_id=decision.id)


def _final_outcome(pending: PendingReceipt, actuators: Actuators) -> Applied:
    """Return the outcome when there are no more steps."""
    verdict = pending.proof.verdict(is_final=True) if pending.proof is not None else USED
    if verdict == USED:
        return pending.applied
    if verdict is None:
        explanation = "it was set, but the run ended before a step used it"
        return replace(pending.applied, status="unknown", reason=explanation)
    return _unused_outcome(pending, actuators, verdict)


def _unused_outcome(pending: PendingReceipt, actuators: Actuators, cause: str) -> Applied:
    """Return the outcome of a change that did not take effect, with the current value."""
    return replace(pending.applied, status="rejected", after=actuators.read(pending.decision.actuator), reason=cause)
