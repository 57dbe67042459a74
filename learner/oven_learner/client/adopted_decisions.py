"""Applies adopted decisions in the learner and publishes their receipts.

Each decision waits for its tick and is applied between two steps. Its receipt is sent immediately, or after a step has
shown whether training uses the new value. The decisions of a plan are applied all together or not at all. Settings come
first, because they can be reverted. Actions that move the weights come last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oven_core.errors import reason
from oven_core.protocol.actuators import ROLLBACK
from oven_core.protocol.messages import Decision, Value
from oven_learner.actuators import SUCCESSFUL, USED, Actuators, ChangeResult, Proof, describe_difference
from oven_learner.client.run_actions import Run
from oven_learner.ranks import Ranks
from oven_learner.rollback.rollback_protocol import Rollback

log = logging.getLogger("oven.learner")


@dataclass(slots=True)
class PendingReceipt:
    """A receipt that is not sent yet. With a `proof`, it waits until a step has shown whether training uses the change.
    Without a proof, it waits only for the receipts before it, so that receipts stay in order."""

    decision: Decision
    result: ChangeResult
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
        on_applied: Callable[[Decision], object] = lambda _: None,
    ) -> None:
        """`publish(result, actuator, *, decision_id, began_ns, tick, step)` sends a receipt. `on_applied` is called
        with each decision that was applied."""
        self.answers_immediately = False
        """Whether a change that training will certainly use gets its receipt at once, instead of after a step."""
        self.last_tick_of_previous_training: int | None = None
        """Decisions up to this tick belong to a previous training run. None if there was no previous training run."""
        self.seen_ids: set[str] = set()
        """Ids of received decisions, used to ignore copies."""
        self.rank_difference = ""
        """How the results of an action differed between ranks, in which case all ranks must stop. Otherwise empty."""
        self.waiting: list[Decision] = []
        """Decisions whose tick has not come yet."""
        self.pending: list[PendingReceipt] = []
        """Receipts that are not sent yet."""
        self._run, self._actuators, self._ranks = run, actuators, ranks
        self._snapshots, self._publish, self._on_applied = snapshots, publish, on_applied
        self._values_before_plan: dict[str, Value] = {}  # id of a plan's decision → value before it was applied

    def add(self, decision: Decision) -> None:
        """Queue an adopted decision until its tick. Ignore copies and decisions that were not adopted."""
        if decision.verdict == "adopted" and decision.id not in self.seen_ids:
            self.seen_ids.add(decision.id)
            self.waiting.append(decision)

    def apply_due(self) -> None:
        """Apply the decisions that are due before the next step. While the run is held, do not wait for their ticks."""
        next_tick = self._run.tick + 1
        due = self._due_decisions(next_tick)
        self.waiting = [decision for decision in self.waiting if decision not in due]
        failed_plans: dict[tuple[int, tuple[str, ...]], str] = {}  # (tick, plan) → reason
        self._values_before_plan = {}
        # Within a plan, settings come before actions that move the weights.
        due.sort(key=lambda decision: (decision.tick, bool(decision.plan) and self._moves_weights(decision.actuator)))
        for decision in due:
            plan = (decision.tick, decision.plan)
            if decision.plan and plan in failed_plans:
                self._answer(decision, ChangeResult("skipped", reason=failed_plans[plan]))
                continue
            result = self._apply_unless_expired(decision, next_tick)
            if decision.plan and result.status not in SUCCESSFUL:
                details = f" ({result.reason})" if result.reason else ""
                failed_plans[plan] = f"a plan is all or nothing, and {decision.actuator} was {result.status}{details}"
                same_plan = [planned for planned in due if (planned.tick, planned.plan) == plan]
                self._revert([planned for planned in same_plan if planned is not decision], failed_plans[plan])

    def _due_decisions(self, next_tick: int) -> list[Decision]:
        """Return the decisions whose tick has come. The decisions of a plan wait for each other until they expire."""
        arrived_names = {(decision.tick, decision.actuator) for decision in self.waiting}
        due = []
        for decision in self.waiting:
            is_due = decision.apply_at_tick <= next_tick or bool(self._run.hold_reason)
            is_complete = all((decision.tick, name) in arrived_names for name in decision.plan)
            if is_due and (is_complete or next_tick > decision.expires_at_tick):
                due.append(decision)
        return due

    def report_outcomes(self) -> None:
        """Send receipts for settings that the last step used or ignored, and for settings that other code reverted."""
        if self.pending:
            self._report_pending()
        for name, proof in self._actuators.proofs.items():
            if undone_change := proof.take_undone_change():
                before, after, cause = undone_change
                self._publish(ChangeResult("applied", before, after, cause), name)

    def _report_pending(self) -> None:
        """Send the pending receipts of changes for which all ranks know whether training used them."""
        receipts = self.pending
        self.pending = []
        own_usages = [pending.proof.usage() if pending.proof is not None else USED for pending in receipts]
        usages_by_rank = self._ranks.all_gather(own_usages)
        for index, pending in enumerate(receipts):
            usages = [rank_usages[index] for rank_usages in usages_by_rank]
            if None in usages:  # a rank does not know it yet
                self.pending.append(pending)
                continue
            causes = [usage for usage in usages if usage is not None and usage != USED]
            if not causes:
                self._send(pending, pending.result)
                continue
            if own_usages[index] == USED:  # but another rank did not use the change
                self._actuators.apply(pending.decision.actuator, pending.result.before)
            self._send(pending, _unused_result(pending, self._actuators, causes[0]))

    def end(self) -> None:
        """Answer all open decisions, because there are no more steps. Waiting decisions expire."""
        for pending in self.pending:
            self._send(pending, _final_result(pending, self._actuators))
        self.pending.clear()
        for proof in self._actuators.proofs.values():
            proof.close()
        for decision in self.waiting:
            self._answer(decision, ChangeResult("expired", reason="the run ended before it was applied"))
        self.waiting.clear()

    def _apply_unless_expired(self, decision: Decision, next_tick: int) -> ChangeResult:
        """Apply a decision unless it has expired. Send its receipt, or queue it until training has used the change."""
        began_ns = time.time_ns()
        if expiry := self._expiry_reason(decision, next_tick):
            expired = ChangeResult("expired", reason=expiry)
            self._answer(decision, expired)
            return expired
        result = self._common_result(decision, self._apply(decision))
        if result.status == "applied":
            self._on_applied(decision)
        proof = self._required_proof(decision, result)
        if proof is not None:
            proof.begin(result.before)
        pending = PendingReceipt(decision, result, began_ns, self._run.tick, self._run.step, proof)
        must_wait_for_earlier = bool(self.pending) and not self._run.hold_reason
        if proof is not None or must_wait_for_earlier:
            self.pending.append(pending)
        else:
            self._send(pending, result)
        if decision.plan and result.status == "applied" and not self._moves_weights(decision.actuator):
            self._values_before_plan[decision.id] = result.before
        return result

    def _required_proof(self, decision: Decision, result: ChangeResult) -> Proof | None:
        """Return the proof to wait for before the receipt is sent, or None if the receipt can be sent now."""
        proof = self._actuators.proof(decision.actuator)
        if proof is None or result.status != "applied":
            return None
        answers_now = self.answers_immediately or bool(self._run.hold_reason)
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
            pending = next((entry for entry in self.pending if entry.decision.id == decision.id), None)
            result = self._common_result(decision, self._actuators.apply(decision.actuator, before))
            if pending is not None:
                self.pending.remove(pending)
                self._send(pending, replace(pending.result, status="skipped", after=result.after, reason=cause))
            else:
                self._publish(replace(result, reason=cause), decision.actuator)

    def _apply(self, decision: Decision) -> ChangeResult:
        if self._run.restart_reason and self._is_action(decision.actuator):
            problem = (
                f"{self._run.restart_reason}; an action would be lost in the restart, so request it again afterwards"
            )
            return ChangeResult("rejected", reason=problem)
        if decision.snapshot_first and self._snapshots is not None:
            try:
                self._snapshots.ensure(self._run.tick)
            except Exception as error:
                problem = f"could not take the required snapshot: {reason(error)}"
                return ChangeResult("rejected", reason=problem)
        if decision.actuator == ROLLBACK and self._snapshots is not None and isinstance(decision.value, int | float):
            chosen_by_operator = bool(decision.command) and not decision.approves  # otherwise an agent chose the tick
            target_tick, now = int(decision.value), self._run.tick
            if problem := self._snapshots.distance_problem(target_tick, now, exact=chosen_by_operator):
                return ChangeResult("rejected", reason=problem)
        return self._actuators.apply(decision.actuator, decision.value)

    def _common_result(self, decision: Decision, result: ChangeResult) -> ChangeResult:
        """Compare this rank's result with those of the other ranks, and return the common result. If a setting failed
        on one rank, revert it on the others. Actions cannot be reverted, so all ranks stop if their results differ."""
        name, is_action = decision.actuator, self._is_action(decision.actuator)
        value_may_differ = is_action and not name.startswith("run.")  # an action of the script may return any value
        results = self._ranks.all_gather(replace(result, after=None) if value_may_differ else result)
        rank_difference = describe_difference(results)
        if not rank_difference:
            return result
        if is_action:
            self.rank_difference = self.rank_difference or f"{name} had different outcomes: {rank_difference}"
            return ChangeResult("unknown", result.before, result.after, f"the run stops: {rank_difference}")
        if result.status in ("applied", "unknown") and result.before is not None:
            result = replace(result, after=self._actuators.apply(name, result.before).after)
        return ChangeResult("rejected", result.before, result.after, f"reverted on all ranks: {rank_difference}")

    def _is_action(self, name: str) -> bool:
        return name in self._actuators and self._actuators.spec(name).kind == "action"

    def _moves_weights(self, name: str) -> bool:
        return name in self._actuators and self._actuators.spec(name).moves_weights

    def _send(self, pending: PendingReceipt, result: ChangeResult) -> None:
        name = pending.decision.actuator
        log.info("%s %s: %s → %s %s", result.status, name, result.before, result.after, result.reason)
        self._publish(
            result,
            name,
            decision_id=pending.decision.id,
            began_ns=pending.began_ns,
            tick=pending.tick,
            step=pending.step,
        )

    def _answer(self, decision: Decision, result: ChangeResult) -> None:
        self._publish(result, decision.actuator, decision_id=decision.id)


def _final_result(pending: PendingReceipt, actuators: Actuators) -> ChangeResult:
    """Return the result for the receipt when there are no more steps."""
    usage = pending.proof.usage(is_final=True) if pending.proof is not None else USED
    if usage == USED:
        return pending.result
    if usage is None:
        explanation = "it was set, but the run ended before a step used it"
        return replace(pending.result, status="unknown", reason=explanation)
    return _unused_result(pending, actuators, usage)


def _unused_result(pending: PendingReceipt, actuators: Actuators, cause: str) -> ChangeResult:
    """Return the result of a change that training did not use, with the current value."""
    return replace(pending.result, status="rejected", after=actuators.read(pending.decision.actuator), reason=cause)
