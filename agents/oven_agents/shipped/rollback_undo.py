"""Looks whether a rollback brought anything, and takes back one that did not."""

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
    """Signals: a held-out reading AFTER ticks after a rollback, no matter who made it, in which not a third is regained
    of what had been lost, although it began from before the loss. A rollback repairs what happened once, to weights or
    moments. Where it is the data, the code or the machine that changed, and stays so, it happens again, and what the
    run had learnt about living with it is lost.

    Actions: it asks for the reading once, then takes the rollback back, and a rate that was cut with it; no agent goes
    back after that (oven_agents.stats.rollback_success). What an operator wished or approved it leaves alone.

    False alarms: a rollback that helps brings back at once what was lost, which is what it was made for; a third of it
    lies far outside the readings' noise (docs/experiments.md).

    Limits: it needs a reading from before the rollback, one that can be had when it is asked for, and a run that keeps
    what it left: in memory it does, with checkpoints on disk it does not. Harm that takes longer than AFTER ticks to
    come back it does not see; nor does it know what would have become of the run with no change at all. Under a reward
    it is silent: a policy that is dragged off does not get used to it, and readings are noisier (of three rollbacks
    that it took back there none was the better for it).
    """

    moves = (UNDO, SCALE, EVALUATE)
    speciality = (UNDO, SCALE, EVALUATE)
    options = dict.fromkeys(("sure",), SHARE)

    AFTER = 4
    """Ticks after a rollback from which a reading says what it brought. Earlier, what comes again may not have come
    yet; later, more steps are lost if it has."""
    SURE = 0.8
    """Confidence of taking a rollback back. It is too high: of 16 votes .44 came true (docs/experiments.md)."""
    GAIN = 0.02
    """Improvement of the loss that it forecasts, in the loss's unit; small, since the run only returns to where it
    was."""
    HORIZON = 20
    """Ticks in which the forecast is judged: what was learnt about living with the fault shows at once."""

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
        if not self.AFTER <= window.tick - back.tick <= self.AFTER + PATIENCE:
            return None
        measured = recovered_share(window, back)
        if measured is None:
            return None
        shares = [share for tick, share in measured if tick >= back.tick + self.AFTER]
        if not shares:
            return self._asked(window, back)
        return self._undone(window, back, shares[0]) if shares[0] < RECOVERED else None

    def _asked(self, window: Window, back: Receipt) -> Vote | None:
        """Once."""
        asked = any(receipt.tick >= back.tick + self.AFTER for receipt in window.applied(EVALUATE))
        why = f"whether the rollback of tick {back.tick} brought anything"
        return None if asked or not available(window) else request_evaluation(window, why)

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
