"""Remedies from the literature and from common practice, as arms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

import torch

from oven_bench.fixed_rules import Change
from oven_bench.gym.arms.alarm_rules import QUIET, Knobs, RuleArm, rollback_and_skip
from oven_core.protocol.actuators import BEST
from oven_core.protocol.messages import Observation, RunStarted
from oven_learner.client.best_weights import BEST_WEIGHTS


class LossSpike:
    """Rolls back before a loss spike and skips the data that came then (PaLM, arXiv 2204.02311, §5.1).

    The paper restarts about 100 steps before the spike and skips 200 to 500 batches, in runs of 255,000 steps. Here a
    run has 230 steps: 10 steps back and 40 batches on, in the same proportion. A policy gradient's loss measures
    nothing, so in a run with a reward only a loss that is not finite counts.
    """

    FACTOR = 1.25  # the paper gives no threshold: people looked at the curve
    STEPS, WINDOW = 3, 30  # the mean of the last STEPS losses is compared with the median of WINDOW earlier ones

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=self.STEPS)
        self._before: deque[float] = deque(maxlen=self.WINDOW)
        self._quiet_until = 0

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)
        self._loss_is_a_measure = all(spec.name != "reward" for spec in run.metrics)

    def look(self, observation: Observation) -> list[Change]:
        loss = observation.metrics.get("loss")
        if loss is None:
            return []
        if len(self._recent) == self.STEPS and math.isfinite(self._recent[0]):
            self._before.append(self._recent[0])
        self._recent.append(loss)
        if not self._spikes(loss) or observation.tick < self._quiet_until:
            return []
        self._quiet_until = observation.tick + QUIET
        return rollback_and_skip(self._knobs, observation.tick)

    def _spikes(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if not self._loss_is_a_measure or len(self._before) < self.WINDOW:
            return False
        return sum(self._recent) / self.STEPS > self.FACTOR * median(self._before)


class NotANumber:
    """After a loss or gradient that is not finite, rolls back to the last good copy at half the learning rate.

    Trainers' own guards do the same. Halving is dynamic loss scaling's answer to an overflow (arXiv 1710.03740, §3.2),
    applied to the learning rate.
    """

    QUIET = 2  # ticks: the effect of a rollback shows one step later

    def __init__(self) -> None:
        self._good_step = 0
        self._quiet_until = 0

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)

    def look(self, observation: Observation) -> list[Change]:
        if all(math.isfinite(observation.metrics.get(name, 0.0)) for name in ("loss", "grad_norm")):
            self._good_step = observation.tick - 1  # a step's metrics are those of the weights before it
            return []
        if observation.tick < self._quiet_until:
            return []
        self._quiet_until = observation.tick + self.QUIET
        cut = self._knobs.multiply("optimizer.lr_scale", 1 / 2)
        return self._knobs.act("run.rollback", max(0, self._good_step)) + cut


class ZClip:
    """Adaptive gradient clipping through the clipping knob (ZClip, arXiv 2504.02507).

    The paper clips an outlier itself, to mean + Z²/z standard deviations. A knob acts from the next step on, so here
    each step's threshold is mean + Z standard deviations of the steps before, which equals the paper's at z = Z. It is
    never above the user's own threshold. Outliers enter the statistics clipped, as in the paper.
    """

    ALPHA = 0.97  # of the running mean and variance of the gradient norm, as in the paper
    Z = 2.5  # threshold in standard deviations, as in the paper
    WARM_UP = 25  # steps that mean and variance start from, as in the paper
    LEAST_CHANGE = 0.1  # the knob is set when the threshold moved by this share, since each setting is an intervention

    def __init__(self) -> None:
        self._first: list[float] = []
        self._mean = self._variance = 0.0

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)
        self._own = self._knobs.value("grad.clip")

    def look(self, observation: Observation) -> list[Change]:
        norm = observation.metrics.get("grad_norm", math.nan)
        if self._own is None or not math.isfinite(norm):
            return []
        if len(self._first) < self.WARM_UP:
            self._first.append(norm)
            if len(self._first) < self.WARM_UP:
                return []
            self._mean = sum(self._first) / self.WARM_UP
            self._variance = sum((each - self._mean) ** 2 for each in self._first) / self.WARM_UP
        else:
            norm = min(norm, self._threshold())
            self._mean = self.ALPHA * self._mean + (1 - self.ALPHA) * norm
            self._variance = self.ALPHA * self._variance + (1 - self.ALPHA) * (norm - self._mean) ** 2
        threshold, now = min(self._own, self._threshold()), self._knobs.value("grad.clip")
        if now is not None and abs(threshold - now) <= self.LEAST_CHANGE * now:
            return []
        return self._knobs.set("grad.clip", threshold)

    def _threshold(self) -> float:
        return self._mean + self.Z * math.sqrt(self._variance)


class Plateau:
    """torch's ReduceLROnPlateau with its defaults: factor 0.1, patience 10, relative threshold 1e-4.

    The scheduler steps the learning rate of a dummy optimizer, and the knob follows it. It sees the mean training loss
    (or reward) of EPOCH steps instead of a validation loss per epoch, because a run has about eleven held-out
    measurements, one more than the patience.
    """

    EPOCH = 5  # steps

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)
        self._metric = "reward" if any(spec.name == "reward" for spec in run.metrics) else "loss"
        self._epoch: list[float] = []
        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self._optimizer, mode="max" if self._metric == "reward" else "min"
        )

    def look(self, observation: Observation) -> list[Change]:
        value = observation.metrics.get(self._metric, math.nan)
        if not math.isfinite(value):
            return []
        self._epoch.append(value)
        if len(self._epoch) < self.EPOCH:
            return []
        self._scheduler.step(sum(self._epoch) / self.EPOCH)
        self._epoch.clear()
        return self._knobs.set("optimizer.lr_scale", float(self._optimizer.param_groups[0]["lr"]))


class BestCheckpoint:
    """Ends with the weights of the best held-out reading, as `load_best_model_at_end` does in transformers' Trainer."""

    def __init__(self) -> None:
        self._requested = False

    def start(self, run: RunStarted) -> None: ...

    def look(self, observation: Observation) -> list[Change]:
        if self._requested:
            return []
        self._requested = True
        return [(BEST, BEST_WEIGHTS)]


ARMS: Sequence[RuleArm] = (
    RuleArm("loss_spike", lambda _: LossSpike()),
    RuleArm("not_a_number", lambda _: NotANumber()),
    RuleArm("zclip", lambda _: ZClip()),
    RuleArm("plateau", lambda _: Plateau()),
    RuleArm("best_checkpoint", lambda _: BestCheckpoint(), keeps_best=True),
)
