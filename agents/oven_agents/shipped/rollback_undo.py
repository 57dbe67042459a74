"""Checks whether a rollback helped, and undoes it if it did not."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Plan
from oven_agents.sdk.window import Window
from oven_agents.stats.evaluation_request import PATIENCE, available, request_evaluation
from oven_agents.stats.objective import held_out, objective, signed
from oven_agents.stats.rollback_success import RECOVERED, recovered_share
from oven_core.protocol.actuator_names import EVALUATE, ROLLBACK, UNDO
from oven_core.protocol.messages import Receipt, RunStarted, Value, Vote

SCALE = "optimizer.lr_scale"


class RollbackUndo(Agent):
    """Signals: a held-out reading AFTER ticks after any rollback, which regained less than a third of the loss although
    it restarted from before it. A rollback repairs a single event, to weights or moments. If the data, the code or the
    machine changed and stays so, it happens again, and the run loses what it had learnt about living with it.

    Actions: requests the reading once, then undoes the rollback and a rate cut that came with it. No agent goes back
    after that (oven_agents.stats.rollback_success). It never undoes a change that an operator set or approved.

    False alarms: a rollback that helps regains the loss at once, which is its purpose; a third of it is far outside the
    readings' noise.

    Limits: it needs a reading from before the rollback, one on request, and a run that keeps the abandoned state: in
    memory it does, with checkpoints on disk it does not. It does not see harm that takes longer than AFTER ticks to
    come back, and it does not know how the run would have continued unchanged. Under a reward it is silent: a policy
    that is dragged off does not adapt, and readings are noisier (none of the three rollbacks that it undid improved).
    """

    moves = (UNDO, SCALE, EVALUATE)
    speciality = (UNDO, SCALE, EVALUATE)
    options = dict.fromkeys(("sure",), SHARE)

    AFTER = 4
    """Ticks after a rollback from which a reading shows its effect. Earlier, a recurring fault may not have come back;
    later, more steps are lost if it has."""
    SURE = 0.8
    """Confidence of an undo. It is too high: of 16 votes, 0.44 came true."""
    GAIN = 0.02
    """Forecast gain of the loss, in its unit; small, because the run only returns to where it was."""
    HORIZON = 20
    """Ticks in which the forecast is judged. What was learnt about living with the fault shows at once."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if objective(run).name != "loss":
            return "the run learns from a reward: a policy that is dragged off by it never gets used to that"
        if held_out(run) is None:
            return "no metric is announced as held out with a direction: nothing says whether a rollback helped"
        absent = {UNDO, EVALUATE} - {spec.name for spec in run.actuators}
        return f"the run announces no {' and no '.join(sorted(absent))}" if absent else None

    def vote(self, window: Window) -> Vote | Plan | None:
        back = next(reversed(window.jumps), None)
        if back is None or back.actuator != ROLLBACK or back.decision_id in window.commanded:
            return None
        if window.tick < back.tick + self.AFTER or not window.is_new(back.tick + int(self.AFTER) + PATIENCE):
            return None
        measured = recovered_share(window, back)
        if measured is None:
            return None
        shares = [share for tick, share in measured if tick >= back.tick + self.AFTER]
        if not shares:
            return self._request_reading(window, back)
        return self._undone(window, back, shares[0]) if shares[0] < RECOVERED else None

    def _request_reading(self, window: Window, back: Receipt) -> Vote | None:
        """Request a reading, once."""
        requested = any(receipt.tick >= back.tick + self.AFTER for receipt in window.applied(EVALUATE))
        why = f"whether the rollback of tick {back.tick} brought anything"
        return None if requested or not available(window) else request_evaluation(window, why)

    def _undone(self, window: Window, back: Receipt, share: float) -> Plan:
        why = f"of what had been lost at tick {back.tick} the rollback regained {share:.0%}: what goes wrong goes on"
        cut = next((receipt for receipt in window.applied(SCALE) if receipt.tick == back.tick), None)
        rate = [] if cut is None or cut.before is None else [self._propose(window, SCALE, cut.before, why)]
        return Plan.of_votes("undo_rollback", [self._propose(window, UNDO, None, why), *rate])

    def _propose(self, window: Window, actuator: str, value: Value, why: str) -> Vote:
        target = objective(window.run)
        return window.propose(
            actuator, value, confidence=self.SURE, why=why, target=target.name,
            expected_change=signed(target, self.GAIN), horizon=self.HORIZON,
        )  # fmt: skip
