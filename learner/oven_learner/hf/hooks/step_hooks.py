"""The interface of hooks into an attached trainer's steps, and several small hooks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, TrainerControl

from oven_core.protocol.messages import MetricSpec
from oven_learner import trainer_internals
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.optim import zero_gauges
from oven_learner.optim.lr_scale import LearningRateScale
from oven_learner.optim.optimizer_gauges import OptimizerGauges
from oven_learner.optim.rate_readback import TRAINER_REMEDY, RateReadback
from oven_learner.optim.sharding import find_sharding
from oven_learner.optim.zero_gauges import ZeroGauges
from oven_learner.ranks import Ranks
from oven_learner.rewards.generation_ahead import STEPS_AHEAD, GenerationAhead
from oven_learner.rewards.unscored_groups import UnscoredGroupSkipper

if TYPE_CHECKING:
    from oven_learner.rewards.committee import Committee

log = logging.getLogger("oven.learner")

UNSCORED = MetricSpec(name="rewards/unscored", better="down", unit="completions without any reward (None or NaN)")
INFINITE = MetricSpec(
    name="rewards/infinite", better="down", unit="completions whose infinite reward voids their group"
)
REPEATED = MetricSpec(name="data/repeated", unit="share of the step's rows that were read before")


@dataclass(slots=True)
class StepEnd:
    """The metrics of a step, to which each hook adds its own."""

    trained_steps: int
    """Number of gradient steps of this training run, including those that rollbacks threw away."""
    is_last: bool
    published_names: frozenset[str]
    """Names of metrics that are still in transit from the device and are published for this step."""
    metrics: dict[str, float]
    """The other metrics."""


class StepHook:
    """A feature of an attached trainer. Hooks are always called in the same order, and do nothing by default. They are
    called on every rank, because some communicate between ranks."""

    def begin(self, ranks: Ranks) -> None:
        """Prepare for a training run. The optimizer, the scheduler and the data loader already exist."""

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        """Return the metrics that the hook measures. Called after `begin` of all hooks."""
        return ()

    def before_update(self) -> Mapping[str, torch.Tensor]:
        """Return scalars on the device. Called after clipping and before `optimizer.step`."""
        return {}

    def after_update(self) -> Mapping[str, torch.Tensor]:
        """Return scalars on the device. Called after `optimizer.step` and before `scheduler.step`."""
        return {}

    def end_step(self, step: StepEnd) -> None:
        """Add metrics to the step before it is published."""

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        """Control the trainer before the next step. Called after decisions were applied."""

    def close(self) -> None:
        """Clean up after training has ended or failed."""


class Gauges(StepHook):
    """The optimizer's gauges (oven_learner.optim.optimizer_gauges), new for each training run."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._hooks = ExitStack()

    def begin(self, ranks: Ranks) -> None:
        model, optimizer, is_deepspeed = (
            self._trainer.model,
            self._trainer.optimizer,
            self._trainer.is_deepspeed_enabled,
        )
        obstacle = zero_gauges.describe_obstacle(optimizer) if is_deepspeed else ""
        self._gauges: OptimizerGauges | ZeroGauges
        if is_deepspeed and not obstacle:
            self._gauges = ZeroGauges(optimizer, model)
            self._hooks.callback(self._gauges.close)
        else:
            sharding = find_sharding(model, optimizer)
            self._gauges = OptimizerGauges(
                optimizer, model, publishes=ranks.leader, sharding=sharding, obstacle=obstacle
            )

    @property
    def unmeasured(self) -> Mapping[str, str]:
        """Gauge → the reason why it is not measured."""
        return self._gauges.unmeasured

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return self._gauges.metric_specs()

    def before_update(self) -> Mapping[str, torch.Tensor]:
        return self._gauges.before_step()

    def after_update(self) -> Mapping[str, torch.Tensor]:
        return self._gauges.after_step()

    def close(self) -> None:
        self._hooks.close()


class StepRate(StepHook):
    """Publishes the first parameter group's learning rate at each step. `readback` multiplies the trainer's schedule
    and reads the rates back."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._last_rate = 0.0

    def begin(self, ranks: Ranks) -> None:
        scale = LearningRateScale(self._trainer.optimizer, self._trainer.lr_scheduler)
        self.readback = RateReadback(scale, TRAINER_REMEDY)

    def after_update(self) -> Mapping[str, torch.Tensor]:
        # The optimizer's step may already have moved a warm-up on. But an optimizer without hooks has no warm-up, and
        # before the first step, which a GradScaler may skip, nothing has been read back.
        used_rate = self.readback.used_rate if self.readback.has_hooks else math.nan
        self._last_rate = self.readback.scale.rates()[0] if math.isnan(used_rate) else used_rate
        return {}

    def end_step(self, step: StepEnd) -> None:
        step.metrics["learning_rate"] = self._last_rate


class CommitteeScores(StepHook):
    """Publishes the metrics of a reward committee, and holds the run if its members repeatedly give no scores. If no
    member scored a step, the metrics that depend on its loss are omitted."""

    def __init__(self, trainer: Trainer, committee: Committee, hold: Callable[[str], object]) -> None:
        """`hold(reason)` holds the run."""
        self._committee, self._hold = committee, hold
        generates_ahead = bool(committee.ahead and committee.remote and committee.remote.members)
        if committee.ahead and not generates_ahead:
            log.warning("committee.ahead: 1 has no effect, because the committee has no remote members to wait for")
        self._generation = GenerationAhead(trainer, committee) if generates_ahead else None
        if self._generation is not None:
            self._generation.install()
        self._skipper = UnscoredGroupSkipper(trainer, committee)
        self._skipper.install()

    def begin(self, ranks: Ranks) -> None:
        self._skipper.begin()
        if self._generation is not None:
            self._generation.begin()

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return (*self._committee.metric_specs(), *((STEPS_AHEAD,) if self._generation else ()))

    def end_step(self, step: StepEnd) -> None:
        if self._generation is not None:
            step.metrics |= self._generation.take_metrics()
        # The values of metrics in transit are not known yet, so NaN stands for them.
        valid, hold_reason = self._skipper.end_step(step.metrics | dict.fromkeys(step.published_names, math.nan))
        step.metrics = {name: value for name, value in valid.items() if name not in step.published_names}
        step.metrics |= self._committee.take_cost()
        step.published_names &= valid.keys()
        if hold_reason:
            self._hold(hold_reason)

    def close(self) -> None:
        if self._generation is not None:
            self._generation.drop()
        self._committee.close()


class RewardFaults(StepHook):
    """Counts missing rewards. TRL gives a completion without a finite reward an advantage of 0 and continues."""

    def __init__(self, trainer: Any) -> None:
        self._counts_of_step: dict[str, float] = {}
        self._is_active = trainer_internals.REWARD_COUNTS.works_on(trainer)
        if not self._is_active:
            return

        def count_results(calculate: Callable[..., Any]) -> Callable[..., Any]:
            def calculate_and_count(*args: Any, **kwargs: Any) -> Any:
                rewards = calculate(*args, **kwargs)  # (all completions, functions)
                if trainer.model.training:
                    self._count(rewards)
                return rewards

            return calculate_and_count

        trainer_internals.wrap(trainer, trainer_internals.CALCULATE_REWARDS, count_results)

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return (UNSCORED, INFINITE) if self._is_active else ()

    def end_step(self, step: StepEnd) -> None:
        """Add the counts of this step's generation, if there was one."""
        step.metrics |= self._counts_of_step
        self._counts_of_step = {}

    def _count(self, rewards: torch.Tensor) -> None:
        unscored, infinite = rewards.isnan().all(dim=1).sum(), rewards.isinf().any(dim=1).sum()
        counts = torch.stack([unscored, infinite]).tolist()
        self._counts_of_step = {UNSCORED.name: float(counts[0]), INFINITE.name: float(counts[1])}


class RepeatedRows(StepHook):
    """Publishes the share of a step's rows that the run has read before.

    It needs a `Mixture`, whose order is known, and training on the rows themselves. Prompts are not counted, because a
    repeated prompt gets new answers. Rows are counted after training on them, because a skip discards rows that the
    loader has drawn ahead. A rollback in place changes neither the data's position nor the counts. A rollback by
    restart restores both.
    """

    def __init__(self, trainer: Trainer, mixture: Mixture) -> None:
        self._trainer, self._mixture = trainer, mixture
        self._chunk_rows = 0
        """Number of rows in a chunk, or 0 if they are not counted."""
        self._chunk = 0

    def begin(self, ranks: Ranks) -> None:
        """Prepare for counting. Each step of a trainer that trains on the rows themselves uses one chunk."""
        sampler, trainer = self._mixture.sampler, self._trainer
        self._chunk_rows = sampler.chunk_rows if sampler is not None and not sampler.trains_on_answers else 0
        self._chunk = 0 if trainer.args.ignore_data_skip else trainer.state.global_step

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return (REPEATED,) if self._chunk_rows else ()

    def end_step(self, step: StepEnd) -> None:
        if self._chunk_rows:
            rows = self._mixture.rows(self._chunk, self._chunk_rows)
            self._chunk += 1
            step.metrics[REPEATED.name] = self._mixture.read_rows.mark(rows)
