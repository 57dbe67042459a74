"""Checks whether a rollback helped, and undoes it if it did not."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import Plan
from oven_agents.sdk.window import Window
from oven_agents.stats.evaluation_request import RECENT_TICKS, can_evaluate, request_evaluation
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_agents.stats.rollback_success import MIN_RECOVERY, recovered_shares
from oven_core.protocol.actuators import EVALUATE, ROLLBACK, UNDO
from oven_core.protocol.messages import Receipt, RunStarted, Value, Vote

LR_SCALE = "optimizer.lr_scale"


class RollbackUndo(Agent):
    """Signals: a held-out reading EFFECT_TICKS ticks after any rollback regained less than a third of the lost quality,
    although the run restarted from before the loss. A rollback repairs a single event that damaged weights or moments.
    If the data, the code or the machine changed permanently, the fault recurs, and the rollback has only discarded the
    run's adaptation to the fault.

    Actions: requests the reading once, then undoes the rollback and a rate cut that was part of it. After an undo and
    until a new best reading, agents roll back a worse loss only with a cut (oven_agents.stats.rollback_success). The
    agent never undoes a change that an operator set or approved.

    False alarms: a rollback that helps regains the lost quality at once. A third of this quality is far outside the
    noise of the readings.

    Limits: the agent needs a reading from before the rollback, a run that measures on request, and a run that keeps the
    abandoned state. Runs do so with snapshots in memory, but not with checkpoints on disk. The agent does not see harm
    that takes longer than EFFECT_TICKS ticks to return, and it does not know how the run would have continued
    unchanged. It is silent under a reward, because a policy does not adapt to a misleading reward and readings are
    noisier. In three such runs, undoing a rollback never improved the result.
    """

    moves = (UNDO, LR_SCALE, EVALUATE)
    options = dict.fromkeys(("confidence",), SHARE_BOUNDS)

    EFFECT_TICKS = 4
    """Number of ticks from a rollback to a reading. Earlier, a recurring fault may not have returned."""
    CONFIDENCE = 0.8
    """Confidence of an undo. It is higher than the share of votes that came true (44 % of 16)."""
    GAIN = 0.02
    """Forecast fall of the loss, in its unit. It is small because the run only returns to its earlier state."""
    HORIZON = 20
    """Number of ticks after which the forecast is judged. The adaptation to the fault shows at once."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if objective(run).name != "loss":
            return "the run learns from a reward, and a policy never adapts to a misleading reward"
        if held_out_metric(run) is None:
            return "the run announces no held-out metric with a direction, so nothing shows whether a rollback helped"
        missing_knobs = {UNDO, EVALUATE} - {spec.name for spec in run.actuators}
        return f"the run announces no {' and no '.join(sorted(missing_knobs))}" if missing_knobs else None

    def vote(self, window: Window) -> Vote | Plan | None:
        rollback = next(reversed(window.jumps), None)
        if rollback is None or rollback.actuator != ROLLBACK or rollback.decision_id in window.commanded:
            return None
        effect_tick = rollback.tick + int(self.EFFECT_TICKS)
        is_too_late = not window.is_new(effect_tick + RECENT_TICKS)
        if window.tick < effect_tick or is_too_late:
            return None
        recovered = recovered_shares(window, rollback)
        if recovered is None:
            return None
        shares = [share for tick, share in recovered if tick >= effect_tick]
        if not shares:
            return self._request_reading(window, rollback)
        return self._undo(window, rollback, shares[0]) if shares[0] < MIN_RECOVERY else None

    def _request_reading(self, window: Window, rollback: Receipt) -> Vote | None:
        """Request a reading after a rollback, unless there was already a request."""
        was_requested = any(receipt.tick >= rollback.tick + self.EFFECT_TICKS for receipt in window.applied(EVALUATE))
        if was_requested or not can_evaluate(window):
            return None
        return request_evaluation(window, f"the rollback at tick {rollback.tick} may not have helped")

    def _undo(self, window: Window, rollback: Receipt, share: float) -> Plan:
        regained = f"only {share:.0%}" if share > 0 else "none"
        why = f"the rollback at tick {rollback.tick} regained {regained} of the lost quality: undo it"
        cut = next((receipt for receipt in window.applied(LR_SCALE) if receipt.tick == rollback.tick), None)
        votes = [self._propose(window, UNDO, None, why)]
        if cut is not None and cut.before is not None:
            votes.append(self._propose(window, LR_SCALE, cut.before, why))
        return Plan.of_votes("undo_rollback", votes)

    def _propose(self, window: Window, actuator: str, value: Value, why: str) -> Vote:
        target, held_out = objective(window.run), held_out_metric(window.run)
        assert held_out is not None  # guaranteed by cannot_fire
        return window.propose(
            actuator, value, confidence=self.CONFIDENCE, why=why, target=target.name,
            expected_change=apply_sign(target, self.GAIN), horizon=self.HORIZON, reads=(held_out.name,),
        )  # fmt: skip
