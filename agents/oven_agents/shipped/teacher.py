"""Adjusts the KL penalty that ties a policy to its teacher, or swaps the teacher, and undoes what did not help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window, change_of, is_named
from oven_agents.stats.policy_shift import is_off_policy, quality_dropped
from oven_agents.stats.robust_statistics import noise
from oven_core.protocol.messages import MetricSpec, Receipt, RunStarted, Value, Vote

TEACHER, BETA = "teacher.active", "grpo.beta"
INACTIVE_KL_PREFIX = "kl/"
"""Prefix of the metrics with the KL to an inactive teacher, which are sampled every few steps."""
CONFOUNDERS = (TEACHER, BETA, "run.rollback", "optimizer.lr_scale", "data.mixture", "reward.weights", "committee.*")
"""Knobs that change the reward or the KL directly. Only ticks after their last change are read."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The mean reward and the median KL of the window's later half, compared with the earlier half."""

    reward: float
    rise: float
    """Mean reward of the later half minus that of the earlier half."""
    kl: float
    growth: float
    """KL of the later half divided by the KL of the earlier half."""
    max_kl: float
    """Highest KL of a single step."""
    headroom: float
    """Distance of the reward or the held-out metric, whichever is closer, to its ceiling, as a share of the ceiling."""
    summary: str
    """The figures, as part of a vote's reason."""


class Teacher(Agent):
    """Signals: GRPO's objective is the reward minus β·KL(π_θ ‖ π_ref), so the KL penalty anchors the policy to its
    teacher. The anchor binds (holds the policy back) if three conditions are met. The reward stays flat below its
    ceiling, in training and on held-out data. The KL stays flat, too. And β·KL is at least MIN_PENALTY, which matters
    next to advantages of about 1. A policy leaves its teacher without a gain if its KL grows by half, the reward does
    not rise, and held-out quality falls. The KL must be between half a nat and MAX_RUNAWAY_KL. A teacher is absorbed if
    the KL to this teacher has fallen far below its first level and stays there while the reward is flat.

    Actions: for an anchor that binds, proposes the next stronger teacher (`choices` are in order, weakest first), or a
    third of β if there is none. For an absorbed teacher, proposes the next stronger one, unless the KL to that teacher
    is no larger. For a policy that leaves its teacher, proposes three times β (the direction of the adaptive controller
    of Ziegler et al. 2019, arXiv 1909.08593, §2.2). The agent undoes its last change if the reward is lower than
    before. It never tries that change again, so the search always ends.

    False alarms: β is not raised at a KL above MAX_RUNAWAY_KL, because a larger β does not bring such a policy back. β
    is not raised either if the KL estimate leaps, because sampler and trainer have then diverged
    (oven_agents.stats.policy_shift). A KL that was never high, or that leapt and came back, does not mean that a
    teacher is absorbed. If β has no effect, the agent may swap the teacher needlessly (in one of six test runs).

    Limits: the thresholds come from one recipe, with β from 0.1 to 1. Advantages that are not divided by their spread
    have another scale. Without headroom the agent is silent, even if the KL runs away at the ceiling. Some methods drop
    the KL term (DAPO, Yu et al. 2025, arXiv 2503.14476), but an anchor may protect what no reward measures. So the
    agent tries a stronger teacher before a lower β.
    """

    needs = ("kl", "reward")
    moves = (TEACHER, BETA)
    options = dict.fromkeys(("min_headroom", "max_flat_rise", "confidence", "late_progress"), SHARE_BOUNDS)

    HALF = 12
    """Number of ticks in each half of the window."""
    MIN_HEADROOM = 0.12
    """Minimum headroom, as a share of the ceiling. Below it, the reward can hardly improve."""
    MAX_FLAT_RISE = 0.1
    """Maximum rise of a flat reward between the halves, as a share of the headroom, 0 to 1."""
    MIN_PENALTY = 0.04
    """Minimum β·KL of an anchor that binds. It is a necessary condition, but not a sufficient one."""
    FLAT_RATIOS = (0.75, 1.2)
    """Minimum and maximum ratio between the KL of the later half and the earlier half at which the KL is flat."""
    RUNAWAY_RATIO = 1.5
    """Minimum ratio between the KL of the later half and the earlier half at which the KL runs away."""
    MIN_RUNAWAY_KL = 0.5
    """Minimum KL of a runaway, in nats per token. Below it, the policy may be moving towards the task."""
    ABSORBED_RATIO = 0.5
    """Maximum ratio between the window's KL and the KL of the first HALF ticks at which a teacher is absorbed."""
    MIN_DISTANCE_RATIO = 2.0
    """Minimum KL to a stronger teacher that has more to teach, as a multiple of the KL to the active one."""
    MIN_SAMPLES = 2
    """Minimum number of samples of the KL to a stronger teacher. A single sample is not reliable."""
    MAX_RUNAWAY_KL = 1.0
    """KL in nats per token above which β is not raised, because a raise has helped only below it."""
    MAX_LEAP = 5.0
    """Maximum ratio between a single step's KL and the median. Above it, sampler and trainer have diverged."""
    MIN_REWARD_FALL = 0.05
    """Minimum fall of the reward for which the last change is undone. It must also exceed three standard errors."""
    BETA_FACTOR = 3.0
    """Factor by which β is lowered or raised. It is large because only the order of magnitude of β matters."""
    CONFIDENCE = 0.8
    """Confidence of all proposals. The success rate was not measured."""
    LATE_PROGRESS = 0.9
    """Progress of the run, 0 to 1, after which a change would have too little time to take effect."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        announced = {spec.name for spec in run.actuators}
        if not announced & {TEACHER, BETA}:
            return (
                f"the run announces neither {TEACHER} nor {BETA}: it has no reference model; train with beta > 0, or "
                "pass teachers to oven.attach(trainer, teachers=…)"
            )
        if BETA not in announced:
            return f"the run announces no {BETA}, so the weight of its KL term is unknown"
        if reason := super().cannot_fire(run):
            return reason
        if not _reward_metrics(run):
            return (
                "the run announces no ceiling for `reward` or `reward/*`, so its headroom is unknown; announce the "
                'reward of a perfect answer, attach(…, metrics=(MetricSpec(name="reward", better="up", ceiling=1.0),))'
            )
        if not _held_out_metrics(run):
            return (
                "the run has no held-out metric with a ceiling, and a rising reward alone does not prove a gain; "
                "evaluate on held-out prompts, and announce the metric with held_out=True and its ceiling"
            )
        return None

    def vote(self, window: Window) -> Vote | None:
        since = window.last_change_tick(*CONFOUNDERS)
        comparison = self._compare_halves(window, since)
        if comparison is None or comparison.headroom < self.MIN_HEADROOM or window.progress > self.LATE_PROGRESS:
            return None
        return (
            self._undo(window, since, comparison)
            or self._tighten_anchor(window, comparison)
            or self._loosen_anchor(window, comparison)
            or self._replace_absorbed_teacher(window, comparison)
        )

    def _undo(self, window: Window, since: int, comparison: _Comparison) -> Vote | None:
        """Undo the last change to a lower β or a stronger teacher if the reward has been lower ever since."""
        last = next(
            (r for r in reversed(window.receipts) if r.status == "applied" and is_named(r.actuator, CONFOUNDERS)), None
        )
        if last is None or not (_is_upgrade(window, last) or _is_lowered(last)):
            return None
        before = _last_rewards(window, self.HALF, until=since)
        if len(before) < self.HALF or comparison.rise > 0 or last.before is None:
            return None
        old_reward = fmean(before)
        if old_reward - comparison.reward < max(self.MIN_REWARD_FALL, 3 * noise(before) / math.sqrt(self.HALF)):
            return None
        why = (
            f"the reward fell from {old_reward:.2f} to {comparison.reward:.2f} after {last.actuator} changed from "
            f"{last.before} to {last.after} at tick {last.tick}, and does not rise: return to {last.before}"
        )
        lost_reward = old_reward - comparison.reward
        return self._propose(window, last.actuator, last.before, why, lost_reward, "symptom:reward_fell_after_swap")

    def _tighten_anchor(self, window: Window, comparison: _Comparison) -> Vote | None:
        """Propose a larger β for a policy that leaves its teacher without a gain."""
        if comparison.growth < self.RUNAWAY_RATIO or comparison.rise > 0:
            return None
        if not self.MIN_RUNAWAY_KL <= comparison.kl <= self.MAX_RUNAWAY_KL:
            return None
        has_leapt = comparison.max_kl > self.MAX_LEAP * comparison.kl
        if has_leapt or quality_dropped(window) is False or is_off_policy(window):
            return None
        knob = window.knobs[BETA]
        raised = knob.raised_to(knob.number * self.BETA_FACTOR)
        if raised is None:
            return None
        why = (
            f"the policy moves away from its teacher without a gain ({comparison.summary}): "
            f"{BETA} {knob.number:.3g} → {raised:.3g}"
        )
        return self._propose(window, BETA, raised, why, 0.02, "symptom:kl_runaway")

    def _loosen_anchor(self, window: Window, comparison: _Comparison) -> Vote | None:
        """Propose a stronger teacher, or a smaller β if there is none, for an anchor that binds."""
        beta = window.knobs[BETA]
        low, high = self.FLAT_RATIOS
        if beta.number * comparison.kl < self.MIN_PENALTY or not low <= comparison.growth <= high:
            return None
        if comparison.rise > self.MAX_FLAT_RISE * comparison.headroom:
            return None
        why = f"the KL penalty limits the policy ({comparison.summary}; beta × KL {beta.number * comparison.kl:.2f})"
        stronger = _stronger_teacher(window)
        if stronger:
            why += f": {TEACHER} {window.knobs[TEACHER].value} → {stronger}"
            return self._propose(window, TEACHER, stronger, why, comparison.headroom / 2, "symptom:kl_anchor_binds")
        lowered = beta.lowered_to(beta.number / self.BETA_FACTOR)
        was_raised = any(change_of(receipt) > 0 for receipt in window.applied(BETA))
        if lowered is None or was_raised:
            return None
        why += f", and no teacher is stronger: {BETA} {beta.number:.3g} → {lowered:.3g}"
        return self._propose(window, BETA, lowered, why, comparison.headroom / 4, "symptom:kl_anchor_binds")

    def _replace_absorbed_teacher(self, window: Window, comparison: _Comparison) -> Vote | None:
        """Move from an absorbed teacher to the next stronger one."""
        stronger = _stronger_teacher(window)
        if (
            not stronger
            or comparison.growth > self.FLAT_RATIOS[1]
            or abs(comparison.rise) > self.MAX_FLAT_RISE * comparison.headroom
        ):
            return None
        since = window.last_change_tick(TEACHER)
        kls = window.series("kl", after=since)
        if len(kls) < 3 * self.HALF:
            return None
        old_kl = median(kls[: self.HALF])  # not the maximum, which may be due to a fault
        # Use the half of the window with the higher KL.
        kl = max(comparison.kl, comparison.kl / comparison.growth) if comparison.growth > 0 else comparison.kl
        if not (math.isfinite(old_kl) and 0 <= kl <= self.ABSORBED_RATIO * old_kl):
            return None
        distance_text = ""
        if any(spec.name == INACTIVE_KL_PREFIX + stronger for spec in window.run.metrics):
            distances = window.series(INACTIVE_KL_PREFIX + stronger, after=since, last=3)
            if len(distances) < self.MIN_SAMPLES or not median(distances) >= self.MIN_DISTANCE_RATIO * kl:
                return None
            distance_text = f", and is {median(distances):.3f} to {stronger}"
        active = window.knobs[TEACHER].value
        why = (
            f"the policy has absorbed {active}: the KL fell from {old_kl:.3f} to {comparison.kl:.3f}{distance_text} "
            f"({comparison.summary}): {TEACHER} → {stronger}"
        )
        return self._propose(window, TEACHER, stronger, why, comparison.headroom / 4, "symptom:reward_plateau")

    def _propose(self, window: Window, actuator: str, value: Value, why: str, gain: float, symptom: str) -> Vote:
        target = _held_out_metrics(window.run)[0].name
        return window.propose(
            actuator, value, confidence=self.CONFIDENCE, why=why, target=target, expected_change=round(gain, 3),
            horizon=40, evidence=(symptom,),
        )  # fmt: skip

    def _compare_halves(self, window: Window, since: int) -> _Comparison | None:
        """Compare the window's halves, or return None if they are not full and finite or no metric is held out."""
        rewards = _last_rewards(window, 2 * self.HALF, after=since)
        kls = window.series("kl", after=since, last=2 * self.HALF)
        newest = ((spec, window.series(spec.name, last=1)) for spec in _held_out_metrics(window.run))
        held_out = [(spec, values[0]) for spec, values in newest if values]
        if min(len(rewards), len(kls)) < 2 * self.HALF or not held_out:
            return None
        metric, value = held_out[0]
        if metric.ceiling is None or not all(map(math.isfinite, [*rewards, *kls, value])):
            return None
        ceiling = _reward_metrics(window.run)[0].ceiling or 1.0
        old_reward, reward = fmean(rewards[: self.HALF]), fmean(rewards[self.HALF :])
        old_kl, kl = median(kls[: self.HALF]), median(kls[self.HALF :])  # the estimate has a heavy tail
        gap = (metric.ceiling - value) / metric.ceiling
        summary = (
            f"reward {old_reward:.2f} → {reward:.2f} of {ceiling:g} and KL {old_kl:.3f} → {kl:.3f} in {2 * self.HALF} "
            f"ticks, {metric.name} {gap:.0%} below its ceiling"
        )
        growth = kl / old_kl if old_kl > 0 else math.inf
        headroom = min((ceiling - reward) / ceiling, gap)
        return _Comparison(reward, reward - old_reward, kl, growth, max(kls), headroom, summary)


def _reward_metrics(run: RunStarted) -> list[MetricSpec]:
    """Return `reward` if its ceiling is known, otherwise the rewards by level that have a ceiling."""
    bounded = [spec for spec in run.metrics if spec.ceiling is not None and spec.ceiling > 0]
    return [s for s in bounded if s.name == "reward"] or [s for s in bounded if s.name.startswith("reward/")]


def _held_out_metrics(run: RunStarted) -> list[MetricSpec]:
    """Return the held-out metrics, the most general one first: `eval/accuracy` before `eval/accuracy/len3`."""
    metrics = [spec for spec in run.metrics if spec.held_out and spec.better == "up" and (spec.ceiling or 0) > 0]
    return sorted(metrics, key=lambda spec: (spec.name.count("/"), spec.name))


def _last_rewards(window: Window, count: int, *, after: int = -1, until: int | None = None) -> list[float]:
    """Return the last `count` rewards of the ticks after `after` and up to `until`, oldest first. Without a reward, use
    the mean of the rewards by level that were measured at the tick."""
    names = [spec.name for spec in _reward_metrics(window.run)]
    rewards: list[float] = []
    for observation in reversed(window.observations):  # newest first, because this runs at every tick
        if observation.tick <= after or len(rewards) == count:
            break
        values = [observation.metrics[name] for name in names if name in observation.metrics]
        if values and (until is None or observation.tick <= until):
            rewards.append(fmean(values))
    rewards.reverse()
    return rewards


def _stronger_teacher(window: Window) -> str:
    """Return the next stronger teacher that was neither rejected nor abandoned, or an empty string if there is none."""
    knob = window.knobs.get(TEACHER)
    if knob is None or knob.value not in knob.spec.choices:
        return ""
    rank = {name: index for index, name in enumerate(knob.spec.choices)}
    changes = window.applied(TEACHER)
    abandoned = {r.before for r in changes if rank.get(str(r.after), 0) < rank.get(str(r.before), 0)}
    rejections = " ".join(r.reason for r in window.receipts if r.actuator == TEACHER and r.status == "rejected")
    above = knob.spec.choices[rank[str(knob.value)] + 1 :]
    # The reason of a rejection quotes the teacher's name.
    return next((name for name in above if name not in abandoned and repr(name) not in rejections), "")


def _is_upgrade(window: Window, receipt: Receipt) -> bool:
    """Return whether the receipt swapped to a stronger teacher."""
    if receipt.actuator != TEACHER or TEACHER not in window.knobs:
        return False
    choices = window.knobs[TEACHER].spec.choices
    are_choices = receipt.before in choices and receipt.after in choices
    return are_choices and choices.index(str(receipt.after)) > choices.index(str(receipt.before))


def _is_lowered(receipt: Receipt) -> bool:
    return receipt.actuator == BETA and change_of(receipt) < 0
