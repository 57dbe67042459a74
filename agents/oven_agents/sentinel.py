"""Sees a loss that jumps, creeps up, or is no number any more, and has several ways back."""

from __future__ import annotations

import math
from statistics import median

from oven_agents.agent import Agent
from oven_agents.remedies import Alternatives, Plan, offer
from oven_agents.robust import noise, rise
from oven_agents.window import Window
from oven_controller.messages import RunStarted, Vote

ROLLBACK, SCALE, SKIP, MIXTURE = "run.rollback", "optimizer.lr_scale", "data.skip", "data.mixture"
LOSS, LENGTH, ALIGNMENT = "loss", "optim/update_ratio", "optim/grad_momentum_cos"
GAUGES = ("loss", "grad_norm", "reward")


class Sentinel(Agent):
    """A loss that stays far above its level for three steps, one whose mean over ten steps rose while steps grew longer
    or held-out loss got worse, and a gauge that is not finite. What it offers:

    rollback and skip: to before the onset, past the batches that led there (PaLM, Chowdhery et al. 2022, arXiv
    2204.02311, §5.1: spikes did not come again at the same weights with other batches, nor with the same batches at
    other weights). First choice where nothing speaks for the rate.

    rollback and cut: where steps have grown longer than they were (`optim/update_ratio`), which is what a rate that is
    too high looks like whatever moved it. Neither alone repairs that (docs/experiments.md). Cut by as much as the steps
    grew, so that they are what they were; by CUT where that is not measured.

    What was tried in vain is not offered again: a loss that jumps again after a skip, without a sign of the rate, is
    taken for what the data are like, and left alone. Only a run of NaN, which has nothing to lose, goes on trying.

    False alarms on independent noise: three values in a row above 3σ, 10⁻⁸ a step and below 10⁻⁵ where the noise is
    underestimated by a third; a mean of ten above 4.5 standard errors, 10⁻⁵, and only with a second sign.

    Limits: a jump that falls back by half within three steps is left to heal. Under a reward (GRPO) the loss has no
    level, and only what is not finite is seen. Data that get harder for good cost one rollback.
    """

    needs = (LOSS,)
    moves = (ROLLBACK, SCALE, SKIP)
    speciality = (ROLLBACK, SCALE, SKIP)

    HIGH, IN_A_ROW = 3.0, 3
    CREEP, RECENT = 4.5, 10
    TELLING, FEW = 3.0, 5
    """With longer steps a smaller rise is enough, of the mean of a few."""
    REFERENCE = 32
    LONGER = 1.8
    HEALED = 0.5
    BEFORE = 2
    """Ticks before the first sign: weights may have been hurt a step before the loss shows it."""
    CUT = 8.0
    PASSED = 100
    """Batches to skip; PaLM skipped 200 to 500 of a far longer run."""
    MEMORY = 60
    """Ticks for which a rollback counts as a try at what is seen now."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if not {ROLLBACK, SCALE} & {spec.name for spec in run.actuators}:
            return f"the run announces neither {ROLLBACK} nor {SCALE}"
        return None

    def vote(self, window: Window) -> Alternatives | None:
        return self._broken(window) or self._risen(window)

    def _broken(self, window: Window) -> Alternatives | None:
        gauge = next((g for g in GAUGES if not math.isfinite(window.last.metrics.get(g, 0.0))), "")
        if not gauge:
            return None
        first = window.tick
        for observation in reversed(window.observations):
            if all(math.isfinite(observation.metrics.get(g, 0.0)) for g in GAUGES):
                break
            first = observation.tick
        why = f"{gauge} is not a finite number since tick {first}"
        return self._offer(window, first, why, "loss_nan", 1.0, 0.0, stubborn=True)

    def _risen(self, window: Window) -> Alternatives | None:
        """None also where too little was measured since the last change that moves the loss by itself."""
        if any(metric.name == "reward" for metric in window.run.metrics):
            return None
        fresh = window.settled_after(ROLLBACK, SCALE, SKIP)
        seen = window.kept(LOSS, after=window.settled_after(MIXTURE), last=self.REFERENCE + self.RECENT)
        values = [value for _, value in seen if math.isfinite(value)]
        ticks = [tick for tick, value in seen if math.isfinite(value)]
        recent = sum(tick > fresh for tick in ticks)
        if recent < self.IN_A_ROW or len(values) < self.REFERENCE // 2:
            return None
        return self._jumped(window, ticks, values) or self._crept(window, ticks, values, recent)

    def _jumped(self, window: Window, ticks: list[int], values: list[float]) -> Alternatives | None:
        """The run of high values at the end has a sharp beginning, and does not heal by itself."""
        before = values[: -self.IN_A_ROW]
        level, spread = _level(before)
        high = level + self.HIGH * spread
        if min(values[-self.IN_A_ROW :]) <= high:
            return None
        count = next((i for i, value in enumerate(reversed(values)) if value <= high), len(values))
        if count > self.RECENT:
            return None  # it is what the loss is like by now
        run = values[-count:]
        excess = run[-1] - level
        if excess < self.HEALED * (max(run) - level):
            return None
        why = f"{LOSS} jumped from {level:.3g} (noise {spread:.2g}) to {run[-1]:.3g} at tick {ticks[-count]} and stays"
        severity = min(1.0, excess / (8 * spread))
        return self._offer(window, ticks[-count], why, "loss_spike", severity, excess)

    def _crept(self, window: Window, ticks: list[int], values: list[float], recent: int) -> Alternatives | None:
        few = values[-self.REFERENCE :]
        longer = self._longer(window) >= self.LONGER
        if longer and recent >= self.FEW and rise(few, self.FEW) > self.TELLING:
            count = self.FEW
        elif recent >= self.RECENT and rise(values, self.RECENT) > self.CREEP and (longer or _worse(window)):
            count = self.RECENT
        else:
            return None
        level = median(values[:-count])
        excess = math.fsum(values[-count:]) / count - level
        why = f"{LOSS} rose from {level:.3g} to a mean of {level + excess:.3g} over {count} ticks"
        return self._offer(window, ticks[-count], why, "loss_creeps_up", 0.6, excess)

    def _offer(
        self, window: Window, onset: int, why: str, symptom: str, severity: float, excess: float, stubborn: bool = False
    ) -> Alternatives | None:
        tried = [r for r in window.applied(ROLLBACK) if r.tick > window.tick - self.MEMORY]
        ticks = {receipt.tick for receipt in tried}
        cut = any(r.tick in ticks for r in window.applied(SCALE))
        passed = any(r.tick in ticks for r in window.applied(SKIP))
        symptoms = {symptom: severity}
        grown = self._longer(window)
        opposed = window.series(ALIGNMENT, after=onset - 1)
        if len(opposed) >= self.IN_A_ROW and median(opposed) < -0.2:
            symptoms["gradients_opposed"] = 0.5
        back = max(0, onset - self.BEFORE)
        first_rate = grown >= self.LONGER
        plans = []
        if SKIP in window.knobs and (stubborn or not passed):
            plans.append(self._plan(window, "rollback_and_skip", back, why, excess, skip=True))
        if first_rate or stubborn or "gradients_opposed" in symptoms:
            plans.append(self._plan(window, "rollback_and_cut", back, why, excess, cut=max(grown, 1.0)))
        if not tried or stubborn:
            plans.append(self._plan(window, "rollback", back, why, excess))
        if first_rate or (stubborn and passed and not cut):
            plans.sort(key=lambda plan: plan.remedy != "rollback_and_cut")
        return offer(plans, symptoms)

    def _plan(
        self, window: Window, remedy: str, back: int, why: str, excess: float, *, skip: bool = False, cut: float = 0.0
    ) -> Plan:
        """Empty where the run lacks one of its knobs, so that nothing is done by halves."""
        knobs, votes = window.knobs, []
        wanted: list[tuple[str, float, str]] = []
        if ROLLBACK in knobs:
            wanted.append((ROLLBACK, float(back), f"back to tick {back}"))
        elif not cut:
            return Plan(remedy, ())
        if skip:
            wanted.append((SKIP, float(self.PASSED), f"past {self.PASSED} batches"))
        if cut:
            if SCALE not in knobs:
                return Plan(remedy, ())
            knob = knobs[SCALE]
            lowered = knob.bounded(knob.number / (cut if cut >= self.LONGER else self.CUT))
            if lowered > knob.number / 1.2:
                return Plan(remedy, ())
            grown = f", for steps are {cut:.1f} times as long as they were" if cut >= self.LONGER else ""
            wanted.append((SCALE, lowered, f"{SCALE} {knob.number:.3g} → {lowered:.3g}{grown}"))
        said = f"{why}; {', '.join(text for _, _, text in wanted)}"
        for actuator, value, _ in wanted:
            votes.append(self._vote(window, actuator, value, said, excess))
        return Plan(remedy, tuple(votes))

    def _vote(self, window: Window, actuator: str, value: float, why: str, excess: float) -> Vote:
        return window.propose(
            actuator, value, confidence=0.9, why=why, target=LOSS, expected_change=-round(excess, 4), horizon=20
        )

    def _longer(self, window: Window) -> float:
        """By what factor steps are longer now than on the way here; 1 where it is not measured or they were changed on
        purpose. While the loss is a number the gauge needs three steps."""
        lengths = window.kept(LENGTH, after=window.settled_after(SCALE), last=self.REFERENCE + self.RECENT)
        found = [value for _, value in lengths if math.isfinite(value) and value > 0]
        if len(found) < self.REFERENCE // 2:
            return 1.0
        return median(found[-self.IN_A_ROW :]) / median(found[: -self.RECENT])


def _level(values: list[float]) -> tuple[float, float]:
    level = median(values)
    return level, max(noise(values), 1e-3 * abs(level))


def _worse(window: Window) -> bool:
    """Whether the newest held-out loss is above the one before."""
    held_out = [m.name for m in window.run.metrics if m.held_out and m.better == "down"]
    values = window.series(held_out[0], last=2) if held_out else []
    return len(values) == 2 and values[1] > values[0]
