"""Adopted decisions in the learner: from their arrival to their receipts.

Each waits for its tick, is carried out between two steps, and is answered at once, or as soon as a step has shown
whether what was set is used. A plan is carried out whole or not at all: its settings first, which can be taken back,
what moves the weights last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oven_core.errors import reason
from oven_core.protocol.messages import Decision, Value
from oven_learner.actuators import DONE, Actuators, Applied, Proof, difference
from oven_learner.client.run_actions import Run
from oven_learner.ranks import Ranks
from oven_learner.rollback.kept_state import Rollback

log = logging.getLogger("oven.learner")


@dataclass(slots=True)
class PendingReceipt:
    """A receipt that waits until an optimizer step has shown whether the change was used: what was done at a tick and a
    step, and by which proof it will show; without one it waits for its turn alone."""

    decision: Decision
    applied: Applied
    began_ns: int
    tick: int
    step: int
    proof: Proof | None = None


class AdoptedDecisions:
    """One client's. On every rank alike: each method is called on all of them at the same steps."""

    def __init__(
        self,
        run: Run,
        actuators: Actuators,
        ranks: Ranks,
        snapshots: Rollback | None,
        publish: Callable[..., None],
    ) -> None:
        """`publish(applied, actuator, *, decision_id, began_ns, tick, step)` sends a receipt."""
        self.at_once = False
        """Whether receipts that are sure need not wait for a step."""
        self.another_until: int | None = None
        """What agents brought about up to this tick was for another training."""
        self.known: set[str] = set()
        """Ids of the decisions that came: a copy is not a second one."""
        self.parted = ""
        """Why the ranks must not train on: what was done came out differently on them. Empty while they may."""
        self._run, self._actuators, self._ranks, self._snapshots, self._publish = (
            run,
            actuators,
            ranks,
            snapshots,
            publish,
        )
        self._waiting: list[Decision] = []
        self._owed: list[PendingReceipt] = []
        self._made: dict[str, Value] = {}  # decision of a plan → what its setting was before it, at this boundary

    def take(self, decision: Decision) -> None:
        """A decision of any verdict, or a copy of one."""
        if decision.verdict == "adopted" and decision.id not in self.known:
            self.known.add(decision.id)
            self._waiting.append(decision)

    def carry_out(self) -> None:
        """What is due before the next step, or all of it while the run is held."""
        if not self._waiting:
            return
        coming = self._run.tick + 1
        here = {(decision.tick, decision.actuator) for decision in self._waiting}
        due = [
            decision
            for decision in self._waiting
            if (decision.apply_at_tick <= coming or self._run.held)
            and (all((decision.tick, name) in here for name in decision.plan) or coming > decision.expires_at_tick)
        ]
        self._waiting = [decision for decision in self._waiting if decision not in due]
        broken: dict[tuple[int, tuple[str, ...]], str] = {}
        self._made = {}
        for decision in sorted(due, key=lambda d: (d.tick, bool(d.plan) and self._moves_weights(d.actuator))):
            plan = (decision.tick, decision.plan)
            if decision.plan and plan in broken:
                self._answer(decision, Applied("skipped", reason=broken[plan]))
                continue
            applied = self._carried_out(decision, coming)
            if decision.plan and applied.status not in DONE:
                broken[plan] = (
                    f"a plan is carried out whole or not at all, and {decision.actuator} was {applied.status}"
                    f"{f' ({applied.reason})' if applied.reason else ''}"
                )
                self._take_back([d for d in due if (d.tick, d.plan) == plan and d is not decision], broken[plan])

    def report_used(self) -> None:
        """After a step: receipts of settings that it has used, or not, and of those that it undid."""
        if self._owed:
            each = self._ranks.each([owed.proof.verdict() if owed.proof else "" for owed in self._owed])
            due, self._owed, still = self._owed, [], []
            for owed, verdicts in zip(due, zip(*each, strict=True), strict=True):
                if any(verdict is None for verdict in verdicts):
                    still.append(owed)
                    continue
                why, applied = next((verdict for verdict in verdicts if verdict), ""), owed.applied
                if why and not verdicts[self._ranks.index]:  # it took here alone
                    self._actuators.apply(owed.decision.actuator, applied.before)
                self._pay(owed, _refuted(owed, self._actuators, why) if why else applied)
            self._owed = still
        for name, proof in self._actuators.proofs().items():
            if lost := proof.lost():
                self._publish(Applied("applied", *lost), name)

    def end(self) -> None:
        """No more steps will come: what is owed is said as far as it is known, and what waits has expired."""
        for owed in self._owed:
            self._pay(owed, _final(owed, self._actuators))
        self._owed.clear()
        for proof in self._actuators.proofs().values():
            proof.close()
        for decision in self._waiting:
            self._answer(decision, Applied("expired", reason="the run ended first"))
        self._waiting.clear()

    def _carried_out(self, decision: Decision, coming: int) -> Applied:
        """Its outcome, so far as it is known at once."""
        began_ns = time.time_ns()
        if too_late := self._too_late(decision, coming):
            expired = Applied("expired", reason=too_late)
            self._answer(decision, expired)
            return expired
        applied = self._agreed(decision, self._applied(decision))
        owed = PendingReceipt(decision, applied, began_ns, self._run.tick, self._run.step)
        proof = self._actuators.proof(decision.actuator)
        if proof is not None and applied.status == "applied" and not (proof.sure and (self.at_once or self._run.held)):
            proof.begin(applied.before)
            owed.proof = proof
        if owed.proof is not None or (self._owed and not self._run.held):  # receipts keep the order of what was done
            self._owed.append(owed)
        else:
            self._pay(owed, applied)
        if decision.plan and applied.status == "applied" and not self._moves_weights(decision.actuator):
            self._made = {**self._made, decision.id: applied.before}
        return applied

    def _too_late(self, decision: Decision, coming: int) -> str:
        if coming > decision.expires_at_tick:
            return f"it came {coming - decision.expires_at_tick} ticks after it expired"
        if self.another_until is not None and decision.tick <= self.another_until and not decision.command:
            return "it was decided for the training before this one"
        return ""

    def _take_back(self, decisions: Sequence[Decision], why: str) -> None:
        """Settings of a plan that were made already: each of them as it was, and a receipt that says so."""
        for decision in decisions:
            before = self._made.get(decision.id)
            if before is None:
                continue
            owed = next((one for one in self._owed if one.decision.id == decision.id), None)
            applied = self._agreed(decision, self._actuators.apply(decision.actuator, before))
            if owed is not None:
                self._owed.remove(owed)
                self._pay(owed, replace(owed.applied, status="skipped", after=applied.after, reason=why))
            else:
                self._publish(replace(applied, reason=why), decision.actuator)

    def _applied(self, decision: Decision) -> Applied:
        """On this rank."""
        if self._run.restart and self._is_action(decision.actuator):
            why = f"{self._run.restart}; what is done now would be lost: ask again then"
            return Applied("rejected", reason=why)
        if decision.snapshot_first and self._snapshots is not None:
            try:
                self._snapshots.ensure(self._run.tick)
            except Exception as error:
                why = f"no snapshot could be taken before it: {reason(error)}"
                return Applied("rejected", reason=why)
        return self._actuators.apply(decision.actuator, decision.value)

    def _agreed(self, decision: Decision, applied: Applied) -> Applied:
        """Its outcome on all ranks: on all of them the same, or nothing. A change that did not take on one rank
        is taken back on the others; an action cannot be, and ranks that differ must not train on."""
        name, action = decision.actuator, self._is_action(decision.actuator)
        own = action and not name.startswith("run.")  # what it returns may be this rank's own
        differs = difference(self._ranks.each(replace(applied, after=None) if own else applied))
        if not differs:
            return applied
        if action:
            self.parted = self.parted or f"{name} came out differently on the ranks: {differs}"
            return Applied("unknown", applied.before, applied.after, f"the run stops: {differs}")
        if applied.status in ("applied", "unknown") and applied.before is not None:
            applied = replace(applied, after=self._actuators.apply(name, applied.before).after)
        return Applied("rejected", applied.before, applied.after, f"taken back on all ranks: {differs}")

    def _is_action(self, name: str) -> bool:
        return name in self._actuators and self._actuators.spec(name).kind == "action"

    def _moves_weights(self, name: str) -> bool:
        return name in self._actuators and self._actuators.spec(name).moves_weights

    def _pay(self, owed: PendingReceipt, applied: Applied) -> None:
        name = owed.decision.actuator
        log.info("%s %s: %s → %s %s", applied.status, name, applied.before, applied.after, applied.reason)
        self._publish(
            applied, name, decision_id=owed.decision.id, began_ns=owed.began_ns, tick=owed.tick, step=owed.step
        )

    def _answer(self, decision: Decision, applied: Applied) -> None:
        self._publish(applied, decision.actuator, decision_id=decision.id)


def _final(owed: PendingReceipt, actuators: Actuators) -> Applied:
    """What can be said of it once no more steps will come."""
    verdict = owed.proof.verdict(ended=True) if owed.proof is not None else ""
    if verdict == "":
        return owed.applied
    if verdict is None:
        return replace(owed.applied, status="unknown", reason="it was written, and the run ended before a step used it")
    return _refuted(owed, actuators, verdict)


def _refuted(owed: PendingReceipt, actuators: Actuators, why: str) -> Applied:
    """It did not take: what is in force is in the receipt."""
    return replace(owed.applied, status="rejected", after=actuators.read(owed.decision.actuator), reason=why)
