"""Applies adopted decisions in the learner and publishes their receipts.

Each decision waits for its tick and is applied between two steps. Its receipt follows at once, or when a step has shown
whether the new setting is used. A plan is applied whole or not at all: settings first, because they can be reverted,
and actions that move the weights last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oven_core.errors import reason
from oven_core.protocol.actuator_names import ROLLBACK
from oven_core.protocol.messages import Decision, Value
from oven_learner.actuators import DONE, Actuators, Applied, Proof, difference
from oven_learner.client.run_actions import Run
from oven_learner.ranks import Ranks
from oven_learner.rollback.rollback_protocol import Rollback

log = logging.getLogger("oven.learner")


@dataclass(slots=True)
class PendingReceipt:
    """A receipt that waits until a step has shown whether the change is used. Without a proof, it only keeps its place
    in the order of receipts."""

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
        self.answers_at_once = False
        """Whether receipts whose outcome is certain are sent without waiting for a step."""
        self.other_training_until: int | None = None
        """Up to this tick, agents decided for another training."""
        self.seen_ids: set[str] = set()
        """Ids of received decisions, used to ignore copies."""
        self.ranks_differ = ""
        """Error message if a change had different outcomes on the ranks, which then must not continue, or empty."""
        self._run, self._actuators, self._ranks = run, actuators, ranks
        self._snapshots, self._publish = snapshots, publish
        self._waiting: list[Decision] = []
        self._pending: list[PendingReceipt] = []
        self._before_plan: dict[str, Value] = {}  # decision of a plan → the value before it, at this boundary

    def take(self, decision: Decision) -> None:
        """Keep an adopted decision until its tick. Copies and other verdicts are ignored."""
        if decision.verdict == "adopted" and decision.id not in self.seen_ids:
            self.seen_ids.add(decision.id)
            self._waiting.append(decision)

    def carry_out(self) -> None:
        """Apply the decisions that are due before the next step; while the run is held, apply all."""
        if not self._waiting:
            return
        next_tick = self._run.tick + 1
        arrived = {(decision.tick, decision.actuator) for decision in self._waiting}
        due = [
            decision
            for decision in self._waiting
            if (decision.apply_at_tick <= next_tick or self._run.held)
            and (
                all((decision.tick, name) in arrived for name in decision.plan) or next_tick > decision.expires_at_tick
            )
        ]
        self._waiting = [decision for decision in self._waiting if decision not in due]
        broken: dict[tuple[int, tuple[str, ...]], str] = {}
        self._before_plan = {}
        for decision in sorted(due, key=lambda d: (d.tick, bool(d.plan) and self._moves_weights(d.actuator))):
            plan = (decision.tick, decision.plan)
            if decision.plan and plan in broken:
                self._answer(decision, Applied("skipped", reason=broken[plan]))
                continue
            applied = self._carry_out_one(decision, next_tick)
            if decision.plan and applied.status not in DONE:
                broken[plan] = (
                    f"a plan is carried out whole or not at all, and {decision.actuator} was {applied.status}"
                    f"{f' ({applied.reason})' if applied.reason else ''}"
                )
                self._revert([d for d in due if (d.tick, d.plan) == plan and d is not decision], broken[plan])

    def report_used(self) -> None:
        """After a step: send the receipts of settings that it used or not, and of settings that were undone since."""
        if self._pending:
            by_rank = self._ranks.each([pending.proof.verdict() if pending.proof else "" for pending in self._pending])
            due, self._pending = self._pending, []
            for pending, verdicts in zip(due, zip(*by_rank, strict=True), strict=True):
                if any(verdict is None for verdict in verdicts):
                    self._pending.append(pending)
                    continue
                why, applied = next((verdict for verdict in verdicts if verdict), ""), pending.applied
                if why and not verdicts[self._ranks.index]:  # it took effect on this rank, but not on all
                    self._actuators.apply(pending.decision.actuator, applied.before)
                self._send(pending, _refuted(pending, self._actuators, why) if why else applied)
        for name, proof in self._actuators.proofs().items():
            if undone := proof.lost():
                self._publish(Applied("applied", *undone), name)

    def end(self) -> None:
        """Answer everything that is still open: no more steps will come, and waiting decisions have expired."""
        for pending in self._pending:
            self._send(pending, _final(pending, self._actuators))
        self._pending.clear()
        for proof in self._actuators.proofs().values():
            proof.close()
        for decision in self._waiting:
            self._answer(decision, Applied("expired", reason="the run ended first"))
        self._waiting.clear()

    def _carry_out_one(self, decision: Decision, next_tick: int) -> Applied:
        began_ns = time.time_ns()
        if too_late := self._too_late(decision, next_tick):
            expired = Applied("expired", reason=too_late)
            self._answer(decision, expired)
            return expired
        applied = self._agreed(decision, self._apply(decision))
        pending = PendingReceipt(decision, applied, began_ns, self._run.tick, self._run.step)
        proof = self._actuators.proof(decision.actuator)
        certain = proof is not None and proof.sure and (self.answers_at_once or bool(self._run.held))
        if proof is not None and applied.status == "applied" and not certain:
            proof.begin(applied.before)
            pending.proof = proof
        if pending.proof is not None or (self._pending and not self._run.held):  # receipts keep the order of changes
            self._pending.append(pending)
        else:
            self._send(pending, applied)
        if decision.plan and applied.status == "applied" and not self._moves_weights(decision.actuator):
            self._before_plan[decision.id] = applied.before
        return applied

    def _too_late(self, decision: Decision, next_tick: int) -> str:
        if next_tick > decision.expires_at_tick:
            return f"it came {next_tick - decision.expires_at_tick} ticks after it expired"
        other_until = self.other_training_until
        if other_until is not None and decision.tick <= other_until and not decision.command:
            return "it was decided for the training before this one"
        return ""

    def _revert(self, decisions: Sequence[Decision], why: str) -> None:
        """Revert settings of a plan that were applied already, with a receipt for each."""
        for decision in decisions:
            before = self._before_plan.get(decision.id)
            if before is None:
                continue
            pending = next((entry for entry in self._pending if entry.decision.id == decision.id), None)
            applied = self._agreed(decision, self._actuators.apply(decision.actuator, before))
            if pending is not None:
                self._pending.remove(pending)
                self._send(pending, replace(pending.applied, status="skipped", after=applied.after, reason=why))
            else:
                self._publish(replace(applied, reason=why), decision.actuator)

    def _apply(self, decision: Decision) -> Applied:
        if self._run.restart and self._is_action(decision.actuator):
            why = f"{self._run.restart}; what is done now would be lost: ask again then"
            return Applied("rejected", reason=why)
        if decision.snapshot_first and self._snapshots is not None:
            try:
                self._snapshots.ensure(self._run.tick)
            except Exception as error:
                why = f"no snapshot could be taken before it: {reason(error)}"
                return Applied("rejected", reason=why)
        if decision.actuator == ROLLBACK and self._snapshots is not None and isinstance(decision.value, int | float):
            exact = bool(decision.command) and not decision.approves
            if why := self._snapshots.too_far(int(decision.value), self._run.tick, exact=exact):
                return Applied("rejected", reason=why)
        return self._actuators.apply(decision.actuator, decision.value)

    def _agreed(self, decision: Decision, applied: Applied) -> Applied:
        """Return the outcome on all ranks, which must be the same.

        A setting that failed on one rank is reverted on the others. An action cannot be reverted: if its outcomes
        differ, the ranks must not continue.
        """
        name, is_action = decision.actuator, self._is_action(decision.actuator)
        result_may_differ = is_action and not name.startswith("run.")
        differs = difference(self._ranks.each(replace(applied, after=None) if result_may_differ else applied))
        if not differs:
            return applied
        if is_action:
            self.ranks_differ = self.ranks_differ or f"{name} came out differently on the ranks: {differs}"
            return Applied("unknown", applied.before, applied.after, f"the run stops: {differs}")
        if applied.status in ("applied", "unknown") and applied.before is not None:
            applied = replace(applied, after=self._actuators.apply(name, applied.before).after)
        return Applied("rejected", applied.before, applied.after, f"taken back on all ranks: {differs}")

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


def _final(pending: PendingReceipt, actuators: Actuators) -> Applied:
    """Return the outcome when no more steps will come."""
    verdict = pending.proof.verdict(ended=True) if pending.proof is not None else ""
    if verdict == "":
        return pending.applied
    if verdict is None:
        why = "it was written, and the run ended before a step used it"
        return replace(pending.applied, status="unknown", reason=why)
    return _refuted(pending, actuators, verdict)


def _refuted(pending: PendingReceipt, actuators: Actuators, why: str) -> Applied:
    """Return the outcome of a change that did not take effect, with the value in force."""
    return replace(pending.applied, status="rejected", after=actuators.read(pending.decision.actuator), reason=why)
