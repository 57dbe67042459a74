"""Keeps the learning rate where training is fast and holds: raises one that is too low, undoes one that is too high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from oven_agents.agent import Agent
from oven_agents.objective import held_out, objective, signed
from oven_agents.odds import THUMB, odds
from oven_agents.off_policy import foreign
from oven_agents.policy import moved
from oven_agents.robust import best_level, noise, quantile, rise
from oven_agents.second_opinion import ask, opinion
from oven_agents.step_length import FITTING, overlong, room
from oven_agents.stride import RATE, pulled, shrinking
from oven_agents.window import Window
from oven_controller.harmless import EVALUATE
from oven_controller.messages import RunStarted, Vote

SCALE, ROLLBACK, MIXTURE = "optimizer.lr_scale", "run.rollback", "data.mixture"
ALIGNMENT = "optim/grad_momentum_cos"
EASED = 5
"""Ticks before a fall that are not trusted either."""


class LearningRate(Agent):
    """Too low: each gradient points where the running mean of the last ones did (their cosine stays high), so steps
    could be longer; near the right rate successive gradients are unrelated. That is the sign rule of hypergradient
    descent (Baydin et al. 2018, arXiv 1703.04782), taken over a window. Too high: successive gradients undo each other
    (the same rule, on the other side); or the reward that was there is gone and the policy itself has changed
    (oven_agents.policy) on completions of its own, and since a collapsed policy has no gradient to come back by, it
    proposes a rollback and a cut together. Stalled: over hundreds of steps, in which a hundredth would be seen, the
    objective did not improve, and successive gradients do not agree; what is left is noise that a lower rate averages
    out.

    Which way the objective improves is what the run announces of its reward, or of its loss where it has none; a loss
    that jumps is the sentinel's to see. Silent while the user's own schedule moves the rate, and never back above a
    quarter of a rate that was gone back from, nor before a cut has shown what it does. Gradients that agree while
    weight decay shrinks the weights, or while the objective gets worse, are no reason to raise it; nor are those that
    did not agree before, at a rate that was no higher: something else changed. Where the cosine is not measured
    (sharded gradients, an imported run) it sees a collapse, and nothing else.
    """

    moves = (SCALE, ROLLBACK, EVALUATE)
    speciality = (SCALE, ROLLBACK, EVALUATE)

    WINDOW = 8
    LEAST = 6
    SETTLE = 2
    ALIGNED = 0.40
    QUARTILE = 0.30
    WELL_ALIGNED = 0.50
    OPPOSED = -0.05
    LONG_LEAST, LONG_WINDOW = 20, 60
    SIGMAS = 3.5  # it is asked at every tick: two would be crossed by chance every few dozen
    EARLY, EARLY_SIGMAS = range(12, 15), 2.5  # asked three times only: a rate that is too high does its harm early
    SOLVED = 0.6
    TELLING = 0.15
    LEANING, LEAN_WINDOW, SETTLED, LATE, KNOWN = 0.04, 40, 60, 0.75, 0.2
    SHRINKING = 0.3  # of each step's length
    CUT, REPAIR = 8.0, 20
    OVERLONG, GONE, ALONG, AGAINST = 0.85, 0.75, 0.85, 0.8
    """How sure it is, from how often outcomes said that it beat doing nothing where it was developed: of steps that are
    too long; of a reward that is gone, which may be the reward's own fault; of gradients that agree; that are opposed.
    A plateau may be all that there is to learn, and is a rule of thumb."""
    HALF, SELDOM = 200, 20
    RESOLVED = 0.01  # of the objective: what the two halves could tell apart

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        published = {metric.name for metric in run.metrics}
        if not published & {"reward", "loss"}:
            return "the run publishes neither reward nor loss"
        if "reward" not in published and ALIGNMENT not in published:
            return f"the run publishes no {ALIGNMENT}: whether its rate fits cannot be told from the loss alone"
        return None

    def vote(self, window: Window) -> Sequence[Vote]:
        return (
            self._collapsed(window)
            or self._too_long(window)
            or self._too_low(window)
            or self._opposed(window)
            or self._stalled(window)
        )

    def _too_long(self, window: Window) -> list[Vote]:
        """Before the loss shows it: what a rate that is too high makes of the weights no lower rate repairs."""
        target = objective(window.run)
        steps = overlong(window) if target.name == "loss" else None
        if steps is None or ROLLBACK not in window.knobs:
            return []
        knob = window.knobs[SCALE]
        lowered = knob.bounded(knob.number / steps.excess)
        back = max(0, steps.onset - self.SETTLE)
        why = (
            f"a step moves the weights by {steps.length:.1%} of their norm ({FITTING:.1%} at a fitting rate); back to "
            f"tick {back}, before they did, and {SCALE} {knob.number:.3g} → {lowered:.3g} together"
        )
        return [
            window.propose(
                actuator, value, confidence=self.OVERLONG, why=why, target=target.name, horizon=60,
                expected_change=signed(target, 0.05), evidence=("symptom:update_ratio_high",),
            )
            for actuator, value in ((SCALE, lowered), (ROLLBACK, float(back)))
        ]  # fmt: skip

    def _collapsed(self, window: Window) -> list[Vote]:
        since = window.settled_after(SCALE, ROLLBACK)
        changed = window.settled_after(SCALE)
        if changed >= 0 and window.tick <= changed + window.run.rules.cooldown_ticks:
            return []  # the cut would be turned down, and a rollback alone would only collapse again
        lost = self._lost(window, since) if objective(window.run).name == "reward" else []
        if not lost or foreign(window):
            return []
        onset = _last_healthy(window, since) + EASED + 1
        heard = opinion(window, onset).state
        if heard == "ask":
            return [ask(window, f"{lost[0][0]} fell from {lost[0][1]:.2f} to {lost[0][2]:.2f}")]
        if heard == "wait" or not moved(window, onset):
            return []
        scale = window.knobs[SCALE].number
        cut = window.knobs[SCALE].bounded(scale / self.CUT)
        healthy = _last_healthy(window, since)
        back = max(since, healthy, 0)
        name, was, now = lost[0]
        why = (
            f"{name} fell from {was:.2f} to {now:.2f} and stayed there for 3 ticks at scale {scale:.3g}; back to tick "
            f"{back} and {SCALE} {scale:.3g} → {cut:.3g} together"
        )
        target = held_out(window.run) or objective(window.run)  # the reward itself may have changed its meaning
        changes = {SCALE: cut} | ({ROLLBACK: back} if ROLLBACK in window.knobs else {})
        return [
            window.propose(
                actuator,
                value,
                confidence=self.GONE,
                why=why,
                target=target.name,
                expected_change=signed(target, was - now) if target.name == "reward" else signed(target, 0.05),
                horizon=20,
                evidence=("symptom:policy_collapse",),
            )
            for actuator, value in changes.items()
        ]

    def _lost(self, window: Window, since: int) -> list[tuple[str, float, float]]:
        """(series, best level, level now) for every reward series, if all of them collapsed; else nothing.

        After a change of mixture it looks at the reward by level: harder data lower the mean, and are no collapse.
        """
        levels = [m.name for m in window.run.metrics if m.name.startswith("reward/")]
        names = levels if levels and window.settled_after(MIXTURE) > since else ["reward"]
        found = []
        for name in names:
            values = window.series(name, after=since)
            if len(values) < 4:
                continue
            last = values[-3:]
            if len(names) == 1 and max(last) >= 0.5 * max(values):
                return []  # no level was above the greatest value: most ticks end here
            was = max(best_level(values[:-3]), values[0])
            if was < self.TELLING:
                continue  # half of almost nothing is within the noise
            if max(last) >= 0.5 * was or was - max(last) < 3 * noise(values[:-3]):
                return []
            found.append((name, was, median(last)))
        return found

    def _too_low(self, window: Window) -> list[Vote]:
        said = self._aligned(window) or self._leaning(window)
        if (
            not said
            or self._sudden(window)
            or self._repairing(window)
            or max(shrinking(window), pulled(window)) > self.SHRINKING
            or self._worsens(window)
        ):
            return []
        why, factor = said
        knob = window.knobs[SCALE]
        ceiling = min((scale / 4 for scale in _collapsed_at(window)), default=math.inf)
        target = objective(window.run)
        longest = knob.number * room(window) if target.name == "loss" else math.inf
        raised = knob.bounded(min(knob.number * factor, ceiling, longest))
        if raised < knob.number * 1.2:
            return []
        return [
            window.propose(
                SCALE,
                raised,
                confidence=odds(window, self.ALONG, target.name, 0.03, 40),
                why=f"{why}: {SCALE} {knob.number:.3g} → {raised:.3g}",
                target=target.name,
                expected_change=signed(target, 0.03),
                horizon=40,
                evidence=("symptom:gradients_aligned",),
            )
        ]

    def _sudden(self, window: Window) -> bool:
        """Whether gradients did not agree for a while, at a rate that was no higher."""
        rates = dict(window.kept(RATE))
        newest = next(reversed(rates.values()), math.inf)
        before = [cosine for tick, cosine in window.kept(ALIGNMENT) if rates.get(tick, math.inf) < 1.1 * newest]
        spans = (before[start : start + 2 * self.WINDOW] for start in range(0, len(before), self.WINDOW))
        return any(len(span) == 2 * self.WINDOW and median(span) < self.LEANING for span in spans)

    def _repairing(self, window: Window) -> bool:
        """Whether a cut, whoever's, is still to show what it does."""
        cuts = [r.tick for r in window.applied(SCALE) if _number(r.after) < _number(r.before)]
        return bool(cuts) and window.tick < cuts[-1] + self.REPAIR

    def _worsens(self, window: Window) -> bool:
        """Gradients agree on the way down, too: what is dragged off by a wrong term of the loss goes straight."""
        target = objective(window.run)
        values = [-signed(target, value) for _, value in window.kept(target.name, last=3 * self.WINDOW)]
        return rise(values, self.WINDOW // 2) > 2

    def _aligned(self, window: Window) -> tuple[str, float] | None:
        """Why, and by what factor: a few steps are enough where the agreement is plain."""
        cosines = self._cosines(window, self.WINDOW)
        if len(cosines) < self.LEAST or _schedule_moves(window, self.WINDOW):
            return None
        middle, quarter = median(cosines), quantile(cosines, 0.25)
        if middle < self.ALIGNED or quarter < self.QUARTILE:
            return None
        why = (
            f"gradients agree with their running mean (cosine {middle:.2f}, lower quartile {quarter:.2f} over "
            f"{len(cosines)} ticks; near 0 at a fitting rate)"
        )
        return why, 4.0 if middle >= self.WELL_ALIGNED else 2.5

    def _leaning(self, window: Window) -> tuple[str, float] | None:
        """The same where noise hides it from a few: small batches make the cosine small. Not at the beginning, when all
        gradients lead away from where the weights were drawn, nor near the end, when a rate is low for a reason."""
        cosines = self._cosines(window, self.LEAN_WINDOW)
        if len(cosines) < self.LONG_LEAST or window.progress > self.LATE:
            return None
        halves = cosines[: len(cosines) // 2], cosines[len(cosines) // 2 :]
        if min(map(fmean, halves)) < self.LEANING:
            return None
        if len(window.observations) < self.SETTLED or _schedule_moves(window, self.LEAN_WINDOW):
            return None
        if fmean(window.series("data/repeated", last=self.LONG_LEAST) or [0.0]) > self.KNOWN:
            return None  # the same rows have the same gradients
        mean, error = fmean(cosines), stdev(cosines) / math.sqrt(len(cosines))
        if mean - self.SIGMAS * error < self.LEANING:
            return None
        why = (
            f"gradients lean the same way (cosine with their running mean {mean:.2f} ± {error:.2f} over {len(cosines)} "
        )
        return f"{why}ticks; not above 0 at a fitting rate)", 2.5

    def _opposed(self, window: Window) -> list[Vote]:
        cosines = self._cosines(window, self.LONG_WINDOW)
        early = len(cosines) in self.EARLY
        if not (early or len(cosines) >= self.LONG_LEAST) or _schedule_moves(window, self.LONG_WINDOW):
            return []
        halves = cosines[: len(cosines) // 2], cosines[len(cosines) // 2 :]
        if max(map(fmean, halves)) > self.OPPOSED:
            return []
        sigmas = self.EARLY_SIGMAS if early else self.SIGMAS
        solved = median(window.series("frac_reward_zero_std", last=self.LONG_WINDOW) or [0.0])
        mean, error = fmean(cosines), stdev(cosines) / math.sqrt(len(cosines))
        if mean + sigmas * error > 0 or solved > self.SOLVED:
            return []  # with most groups solved the gradient is a few groups' noise, and says little
        target, knob = objective(window.run), window.knobs[SCALE]
        lowered = knob.bounded(knob.number / 2.5)
        if lowered > knob.number / 1.2:
            return []
        why = (
            f"successive gradients undo each other (cosine with their running mean {mean:.2f} ± {error:.2f} over "
            f"{len(cosines)} ticks): {SCALE} {knob.number:.3g} → {lowered:.3g}"
        )
        return [
            window.propose(
                SCALE,
                lowered,
                confidence=odds(window, self.AGAINST, target.name, 0.05, 30),
                why=why,
                target=target.name,
                expected_change=signed(target, 0.05),
                horizon=30,
                evidence=("symptom:gradients_opposed",),
            )
        ]

    def _stalled(self, window: Window) -> list[Vote]:
        if window.tick % self.SELDOM:
            return []  # it would say the same at every tick
        target = objective(window.run)
        since = window.settled_after()
        values = window.series(target.name, after=since, last=2 * self.HALF)
        if len(values) < 2 * self.HALF or _schedule_moves(window, 2 * self.HALF):
            return []
        solved = median(window.series("frac_reward_zero_std", last=self.LONG_WINDOW) or [0.0])
        was, now = fmean(values[: self.HALF]), fmean(values[self.HALF :])
        error = noise(values) * math.sqrt(2 / self.HALF)
        flat = signed(target, now - was) < 2 * error < self.RESOLVED * abs(was)
        cosines = window.series(ALIGNMENT, after=since, last=self.HALF)
        knob = window.knobs.get(SCALE)
        if not flat or solved > self.SOLVED or len(cosines) < self.HALF or fmean(cosines) > 0 or knob is None:
            return []
        lowered = knob.bounded(knob.number / 2.5)
        if lowered > knob.number / 1.2:
            return []
        why = (
            f"{target.name} did not improve over {2 * self.HALF} ticks ({was:.4g} → {now:.4g} ± {error:.2g}), and "
            f"gradients do not agree (cosine {fmean(cosines):.2f}): {SCALE} {knob.number:.3g} → {lowered:.3g}"
        )
        gain = self.RESOLVED * abs(was)
        symptom = "symptom:reward_plateau" if target.name == "reward" else "symptom:loss_plateau"
        return [
            window.propose(
                SCALE, lowered, confidence=THUMB, why=why, target=target.name, horizon=60,
                expected_change=signed(target, gain), evidence=(symptom,),
            )
        ]  # fmt: skip

    def _cosines(self, window: Window, last: int) -> list[float]:
        """The gauge since the rate last changed, without the ticks in which the running mean still turns."""
        since = window.settled_after(SCALE, ROLLBACK)
        cosines = window.series(ALIGNMENT, after=since + self.SETTLE if since >= 0 else -1, last=last)
        return [cosine for cosine in cosines if math.isfinite(cosine)]


def _last_healthy(window: Window, since: int) -> int:
    """A tick well before the fall: five before the last one whose reward was at nine tenths of its best."""
    rewards = [(o.tick, o.metrics["reward"]) for o in window.observations if o.tick > since and "reward" in o.metrics]
    finite = [(tick, value) for tick, value in rewards if math.isfinite(value)]
    if not finite:
        return since
    best = max(best_level([value for _, value in finite]), finite[0][1])
    return max(tick for tick, value in finite if value >= 0.9 * min(best, max(v for _, v in finite))) - EASED


def _schedule_moves(window: Window, ticks: int) -> bool:
    """Whether the rate changed within the last ticks although nobody here changed it: warm-up, or decay."""
    since = window.settled_after(SCALE, ROLLBACK)
    rates = window.series("learning_rate", after=since, last=ticks)
    return bool(rates) and max(rates) > 1.02 * min(rates)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _collapsed_at(window: Window) -> list[float]:
    """The scales in force when a rollback was applied."""
    scales = []
    for back in window.applied(ROLLBACK):
        scale = next((s.value for s in window.run.actuators if s.name == SCALE), None)
        for change in window.applied(SCALE):
            if change.tick <= back.tick:
                # The cut comes with the rollback: what collapsed is what the cut found.
                scale = change.before if change.tick == back.tick else change.after
        if isinstance(scale, int | float):
            scales.append(float(scale))
    return scales
