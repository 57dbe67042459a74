"""Adjusts the KL penalty towards a teacher: loosens or tightens it, and undoes changes that did not help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.window import Window, change_of, is_named
from oven_agents.stats.policy_shift import is_off_policy, quality_dropped
from oven_agents.stats.robust_statistics import noise
from oven_core.protocol.messages import MetricSpec, Receipt, RunStarted, Value, Vote

TEACHER, BETA = "teacher.active", "grpo.beta"
KL_TO = "kl/"
"""Prefix of a teacher's name: the KL to a teacher that is not active, sampled every few steps."""
RESETS = (TEACHER, BETA, "run.rollback", "optimizer.lr_scale", "data.mixture", "reward.weights", "committee.*")
"""Actuators that move the reward or the KL by themselves. Only ticks after their last change are read."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Both halves of the window: mean reward, median KL, and the reward's distance from its ceiling."""

    reward: float
    rise: float
    kl: float
    growth: float
    """KL of the later half divided by that of the earlier half."""
    highest: float
    """Highest KL of a single step."""
    headroom: float
    """Share of the ceiling that is not reached: the smaller of training reward and held-out metric."""
    text: str


class Teacher(Agent):
    """Signals: GRPO's reward minus β·KL(π_θ ‖ π_ref) has its optimum where another nat costs more than it earns. So an
    anchor that binds shows three things: the reward stays flat below its ceiling, in training and on held-out data; the
    KL stays flat too; and β·KL is a material part of an objective whose advantages are of the order of 1. A policy
    leaves its teacher without gain if a KL between half a nat and FAR grows by half, the reward does not, and held-out
    quality fell. A teacher is absorbed when the KL to it has fallen far below its first level and stays there while the
    reward is flat.

    Actions: for an anchor that binds, the next stronger teacher (`choices` are in order, weakest first), or a third of
    β if there is none. For an absorbed teacher, the next stronger one, unless the KL to that one is no larger. For a
    policy that leaves its teacher, three times β (the direction of the adaptive controller of Ziegler et al. 2019,
    arXiv 1909.08593, §2.2). The agent undoes its last step if the reward is lower than before it, and never tries that
    step again, so this ends in every run.

    False alarms: β is not raised beyond FAR, where no anchor brings a policy back, nor if the estimate leaps: then
    sampler and trainer came apart (oven_agents.stats.policy_shift). A KL that was never high, or that leapt and came
    back, is not absorbed. Of six starts with a β of little effect, one was swapped needlessly.

    Limits: the thresholds come from one recipe, with β from 0.1 to 1. Advantages that are not divided by their spread
    have another scale. Without headroom the agent is silent, even if the KL runs away at the ceiling. Some methods drop
    the KL term (DAPO, Yu et al. 2025, arXiv 2503.14476), but an anchor may protect what no reward measures. Therefore a
    stronger teacher comes before a lower β.
    """

    needs = ("kl", "reward")
    moves = (TEACHER, BETA)
    speciality = (TEACHER, BETA)
    options = dict.fromkeys(("room", "stalled", "sure", "late"), SHARE)

    HALF = 12
    """Ticks in each half for reward and KL. Like all thresholds here it was set on seeds 101 to 103 of one drill."""
    ROOM = 0.12
    """Smallest headroom, as a share of the ceiling. Below it the reward has little left to gain."""
    STALLED = 0.1
    """Share of the headroom, 0 to 1, by which the reward may rise between halves and still be flat."""
    MATERIAL = 0.04
    """Smallest β·KL of an anchor that binds, in units of the objective. It is not enough alone: 0.05 was seen at a
    harmless anchor, 0.06 at one that binds."""
    FLAT = (0.75, 1.2)
    """Lowest and highest ratio of the later half's KL to the earlier half's at which it is flat."""
    RUNAWAY = 1.5
    """Ratio of the later half's KL to the earlier half's from which it runs away."""
    TELLING = 0.5
    """Nats per token from which a growing KL is too far. Below, it may be the way from the teacher to the task."""
    ABSORBED = 0.5
    """Ratio of the window's KL to that of the first HALF ticks up to which a teacher is absorbed. It reached 0.38 where
    a policy was held to a small teacher, and stayed above 1.18 where a policy learnt."""
    APART = 2.0
    """Multiple of the active teacher's KL from which a stronger teacher has more to teach."""
    SAMPLES = 2
    """Fewest samples of the KL to a stronger teacher. A single step says nothing."""
    FAR = 1.0
    """Nats per token above which β is not raised: 19 raises below it gained 4.8 noise widths, 19 others lost 0.9."""
    LEAP = 5.0
    """Maximum ratio of a single step's KL to the median. Beyond it, sampler and trainer have diverged."""
    WORSE = 0.05
    """Smallest fall of the reward that undoes a loosening, in its unit; or three standard errors, if that is more."""
    STEP = 3.0
    """Factor by which β is lowered or raised. β matters by its order of magnitude, and a step can be undone."""
    SURE = 0.8
    """Confidence of all proposals. No success rate is recorded."""
    LATE = 0.9
    """Progress of the run, 0 to 1, after which a change has no time to show."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        announced = {spec.name for spec in run.actuators}
        if not announced & {TEACHER, BETA}:
            return (
                f"the run announces neither {TEACHER} nor {BETA}: it has no reference model; train with beta > 0, or "
                "give oven.attach(trainer, teachers=…) some"
            )
        if BETA not in announced:
            return f"the run announces no {BETA}, without which nobody knows how much its KL counts"
        if reason := super().cannot_fire(run):
            return reason
        if not _rewards(run):
            return (
                "the run announces no ceiling for `reward` or `reward/*`, so that headroom cannot be told: say what a "
                'perfect answer gets, attach(…, metrics=(MetricSpec(name="reward", better="up", ceiling=1.0),))'
            )
        if not _held_out(run):
            return (
                "the run has no held-out metric with a ceiling, and a reward that rises proves no gain: evaluate "
                "on held-out prompts, and announce the metric with held_out=True and its ceiling"
            )
        return None

    def vote(self, window: Window) -> Vote | None:
        since = window.last_change_tick(*RESETS)
        seen = self._read(window, since)
        if seen is None or seen.headroom < self.ROOM or window.progress > self.LATE:
            return None
        return (
            self._undo(window, since, seen)
            or self._tighten(window, seen)
            or self._loosen(window, seen)
            or self._move_on(window, seen)
        )

    def _undo(self, window: Window, since: int, seen: _Reading) -> Vote | None:
        """Return to the value before the last loosening if the reward has stayed lower since."""
        last = next(
            (r for r in reversed(window.receipts) if r.status == "applied" and is_named(r.actuator, RESETS)), None
        )
        if last is None or not (_is_upgrade(window, last) or _lowered(last)):
            return None
        before = _last_rewards(window, self.HALF, until=since)
        if len(before) < self.HALF or seen.rise > 0 or last.before is None:
            return None
        was = fmean(before)
        if was - seen.reward < max(self.WORSE, 3 * noise(before) / math.sqrt(self.HALF)):
            return None
        why = (
            f"the reward was {was:.2f} before {last.actuator} went from {last.before} to {last.after} at tick "
            f"{last.tick}, and is {seen.reward:.2f} now and not rising: back to {last.before}"
        )
        lost = was - seen.reward
        return self._propose(window, last.actuator, last.before, why, lost, "symptom:reward_fell_after_swap")

    def _tighten(self, window: Window, seen: _Reading) -> Vote | None:
        if seen.growth < self.RUNAWAY or not self.TELLING <= seen.kl <= self.FAR or seen.rise > 0:
            return None
        if seen.highest > self.LEAP * seen.kl:
            return None
        if quality_dropped(window) is False or is_off_policy(window):
            return None
        knob = window.knobs[BETA]
        raised = knob.bounded(knob.number * self.STEP)
        if raised < knob.number * 1.2:
            return None
        why = f"the policy leaves its teacher for nothing ({seen.text}): {BETA} {knob.number:.3g} → {raised:.3g}"
        return self._propose(window, BETA, raised, why, 0.02, "symptom:kl_runaway")

    def _loosen(self, window: Window, seen: _Reading) -> Vote | None:
        beta = window.knobs[BETA]
        low, high = self.FLAT
        if beta.number * seen.kl < self.MATERIAL or not low <= seen.growth <= high:
            return None
        if seen.rise > self.STALLED * seen.headroom:
            return None
        why = f"the anchor binds ({seen.text}; beta × KL {beta.number * seen.kl:.2f})"
        stronger = _stronger(window)
        if stronger:
            why += f": {TEACHER} {window.knobs[TEACHER].value} → {stronger}"
            return self._propose(window, TEACHER, stronger, why, seen.headroom / 2, "symptom:kl_anchor_binds")
        lowered = beta.bounded(beta.number / self.STEP)
        if lowered > beta.number / 1.2 or any(change_of(receipt) > 0 for receipt in window.applied(BETA)):
            return None
        why += f" and no teacher is stronger: {BETA} {beta.number:.3g} → {lowered:.3g}"
        return self._propose(window, BETA, lowered, why, seen.headroom / 4, "symptom:kl_anchor_binds")

    def _move_on(self, window: Window, seen: _Reading) -> Vote | None:
        """Move from an absorbed teacher to the next stronger one."""
        stronger = _stronger(window)
        if not stronger or seen.growth > self.FLAT[1] or abs(seen.rise) > self.STALLED * seen.headroom:
            return None
        since = window.last_change_tick(TEACHER)
        kls = window.series("kl", after=since)
        if len(kls) < 3 * self.HALF:
            return None
        past = median(kls[: self.HALF])  # not the highest, which may come from a fault
        now = max(seen.kl, seen.kl / seen.growth) if seen.growth > 0 else seen.kl  # of the higher half
        if not (math.isfinite(past) and 0 <= now <= self.ABSORBED * past):
            return None
        more = ""
        if any(spec.name == KL_TO + stronger for spec in window.run.metrics):
            apart = window.series(KL_TO + stronger, after=since, last=3)
            if len(apart) < self.SAMPLES or not median(apart) >= self.APART * now:
                return None
            more = f", {median(apart):.3f} to {stronger}"
        active = window.knobs[TEACHER].value
        why = (
            f"{active} is absorbed: KL {past:.3f} before, {seen.kl:.3f} now{more} ({seen.text}): {TEACHER} → {stronger}"
        )
        return self._propose(window, TEACHER, stronger, why, seen.headroom / 4, "symptom:reward_plateau")

    def _propose(self, window: Window, actuator: str, value: Value, why: str, gain: float, symptom: str) -> Vote:
        target = _held_out(window.run)[0].name
        return window.propose(
            actuator, value, confidence=self.SURE, why=why, target=target, expected_change=round(gain, 3), horizon=40,
            evidence=(symptom,),
        )  # fmt: skip

    def _read(self, window: Window, since: int) -> _Reading | None:
        """Return the window's two halves; None until both are full and finite and a held-out metric was measured."""
        rewards = _last_rewards(window, 2 * self.HALF, after=since)
        kls = window.series("kl", after=since, last=2 * self.HALF)
        held_out = [(s.name, s.ceiling, v) for s in _held_out(window.run) for v in window.series(s.name, last=1)]
        if min(len(rewards), len(kls)) < 2 * self.HALF or not held_out:
            return None
        name, best, value = held_out[0]
        if best is None or not all(map(math.isfinite, [*rewards, *kls, value])):
            return None
        ceiling = _rewards(window.run)[0].ceiling or 1.0
        was, reward = fmean(rewards[: self.HALF]), fmean(rewards[self.HALF :])
        kl_was, kl = median(kls[: self.HALF]), median(kls[self.HALF :])  # the estimate has a heavy tail
        gap = (best - value) / best
        text = (
            f"reward {was:.2f} → {reward:.2f} of {ceiling:g} and KL {kl_was:.3f} → {kl:.3f} from one {self.HALF} ticks "
            f"to the next, {gap:.0%} of {name} still to gain"
        )
        growth = kl / kl_was if kl_was > 0 else math.inf
        return _Reading(reward, reward - was, kl, growth, max(kls), min((ceiling - reward) / ceiling, gap), text)


def _rewards(run: RunStarted) -> list[MetricSpec]:
    """Return `reward` if its ceiling is known, otherwise its parts by level."""
    known = [spec for spec in run.metrics if spec.ceiling is not None and spec.ceiling > 0]
    return [s for s in known if s.name == "reward"] or [s for s in known if s.name.startswith("reward/")]


def _held_out(run: RunStarted) -> list[MetricSpec]:
    """Return the held-out metrics, the most general first: `eval/accuracy` before `eval/accuracy/len3`."""
    metrics = [spec for spec in run.metrics if spec.held_out and spec.better == "up" and (spec.ceiling or 0) > 0]
    return sorted(metrics, key=lambda spec: (spec.name.count("/"), spec.name))


def _last_rewards(window: Window, count: int, *, after: int = -1, until: int | None = None) -> list[float]:
    """Return the last `count` rewards of ticks after `after` and up to `until`, oldest first: the reward, or the mean
    of its parts that were measured at the tick."""
    names = [spec.name for spec in _rewards(window.run)]
    rewards: list[float] = []
    for observation in reversed(window.observations):  # from the newest: it is asked at every tick
        if observation.tick <= after or len(rewards) == count:
            break
        values = [observation.metrics[name] for name in names if name in observation.metrics]
        if values and (until is None or observation.tick <= until):
            rewards.append(fmean(values))
    rewards.reverse()
    return rewards


def _stronger(window: Window) -> str:
    """Return the next stronger teacher that was neither rejected nor left again; empty if there is none."""
    knob = window.knobs.get(TEACHER)
    if knob is None or knob.value not in knob.spec.choices:
        return ""
    rank = {name: index for index, name in enumerate(knob.spec.choices)}
    changes = window.applied(TEACHER)
    abandoned = {r.before for r in changes if rank.get(str(r.after), 0) < rank.get(str(r.before), 0)}
    refused = " ".join(r.reason for r in window.receipts if r.actuator == TEACHER and r.status == "rejected")
    above = knob.spec.choices[rank[str(knob.value)] + 1 :]
    return next((name for name in above if name not in abandoned and repr(name) not in refused), "")


def _is_upgrade(window: Window, receipt: Receipt) -> bool:
    """Return whether the receipt swapped to a stronger teacher."""
    if receipt.actuator != TEACHER or TEACHER not in window.knobs:
        return False
    choices = window.knobs[TEACHER].spec.choices
    known = receipt.before in choices and receipt.after in choices
    return known and choices.index(str(receipt.after)) > choices.index(str(receipt.before))


def _lowered(receipt: Receipt) -> bool:
    return receipt.actuator == BETA and change_of(receipt) < 0
