"""The callback that `attach` adds to a trainer. It runs the client and calls the hooks at each step."""

from __future__ import annotations

import logging
import math
import signal
import threading
import types
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.client.oven_client import OvenClient
from oven_learner.client.run_start import installed_versions, next_training_name
from oven_learner.completions.sampling import Sampling
from oven_learner.hf.checkpoints import SaveSchedule, TrainerCheckpoints
from oven_learner.hf.final_weights import create_best_weights
from oven_learner.hf.hooks.authored_prompts import AuthoredPromptsReader
from oven_learner.hf.hooks.completion_samples import CompletionSamples
from oven_learner.hf.hooks.evaluations import EVAL, TrainerEvaluation, UserEvaluation
from oven_learner.hf.hooks.frontier_drift import FrontierDrift
from oven_learner.hf.hooks.idle_teachers import IdleTeachers
from oven_learner.hf.hooks.step_hooks import (
    CommitteeScores,
    Gauges,
    RepeatedRows,
    RewardFaults,
    StepEnd,
    StepHook,
    StepRate,
)
from oven_learner.hf.hooks.step_metrics import StepMetrics, StepTiming
from oven_learner.hf.input_checks import check_trainable
from oven_learner.hf.knobs import mixture as mixtures
from oven_learner.hf.knobs import trainer_knobs
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.hf.knobs.trainer_knobs import UserValues
from oven_learner.hf.prompts import PromptSource
from oven_learner.hf.trainer_rollback import choose_rollback
from oven_learner.hf.training_length import EpochExtension, StepBudget
from oven_learner.link.find_controller import Connection
from oven_learner.link.link_interface import Link, SilentLink
from oven_learner.optim.device_readback import Readback
from oven_learner.optim.optimizer_gauges import ABSENT_IF_NAN
from oven_learner.optim.rate_knobs import RateKnobs
from oven_learner.ranks import Ranks
from oven_learner.rollback.rollback_protocol import Rollback
from oven_learner.teachers import Teachers, register_kl_knobs

if TYPE_CHECKING:
    from oven_learner.rewards.committee import Committee

log = logging.getLogger("oven.learner")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `attach`, which documents them."""

    actuators: Actuators
    lr_bounds: tuple[float, float]
    recipe: str
    training: str | None
    metrics: tuple[MetricSpec, ...]
    evaluate: Callable[[], Measurements] | None
    evaluate_every: int
    seconds: float | None
    charge_rollbacks: bool
    teachers: Teachers | None
    beta_bounds: tuple[float, float]
    committee: Committee | None
    mixture: Mixture | None
    stateful: Mapping[str, Stateful]
    sampling: Sampling | None
    """Settings for showing completions, or None if they are not shown."""


class Attachment(TrainerCallback):
    """The callback that `attach` adds. It stores the trainer, because transformers does not pass it to callbacks."""

    def __init__(self, trainer: Trainer, link: Link | None, connection: Connection | None, options: Options) -> None:
        self.trainer = trainer
        self.actuators = options.actuators
        """The knobs of the current training run."""
        self.client: OvenClient | None = None
        self.rollback: Rollback | None = None
        """The rollback mechanism of the current training run."""
        self.resumable = False
        """Whether to save checkpoints regularly even if snapshots in memory are enough for rollback."""
        run = connection.run if connection else ""
        self.checkpoints = TrainerCheckpoints(
            trainer, run, options.stateful, lambda: options.training or next_training_name(run, link)
        )
        self.epochs = EpochExtension(trainer)
        self.readback = Readback(self._publish, ABSENT_IF_NAN)
        self._link, self._connection, self._options = link, connection, options
        self._lockstep = bool(connection and connection.lockstep)
        self._charge_rollbacks = options.charge_rollbacks
        self._ranks: Ranks | None = None
        self._budget = StepBudget(limit=None, charge_rollbacks=False, steps_before=0, first_step=0)
        self._device_metrics: dict[str, torch.Tensor] = {}
        self._explained_directions = False
        self._nonfinite_counts: Counter[str] = Counter()  # metric → steps in which it was NaN or infinite
        self._user_values = UserValues()
        self._sigterm = EndOnSigterm(self._stop)
        self._channels = tuple(getattr(trainer, "channels", ()))
        self._create_hooks()

    def _create_hooks(self) -> None:
        """Create the hooks, in the order in which their metrics are announced and published."""
        trainer, options = self.trainer, self._options
        committee, evaluate = options.committee, options.evaluate
        self._step_metrics = StepMetrics(trainer)
        self._gauges = Gauges(trainer)
        faults = None if committee else RewardFaults(trainer)  # a committee counts missing rewards itself
        scores = CommitteeScores(trainer, committee, self._hold) if committee else None
        self._rate = StepRate(trainer)
        self._evaluation = TrainerEvaluation(trainer)
        self._user_evaluation = UserEvaluation(evaluate, options.evaluate_every, None) if evaluate else None
        self._save_schedule = SaveSchedule(self.checkpoints)
        source = options.mixture if isinstance(options.mixture, PromptSource) else None
        self._authored = AuthoredPromptsReader(trainer, source, committee) if source is not None else None
        hooks: list[StepHook | None] = [
            self._step_metrics,
            self._gauges,
            scores,
            self._completions_hook(),
            self._rate,
            self._evaluation,
            faults,
            RepeatedRows(trainer, options.mixture) if options.mixture else None,
            self._authored,
            IdleTeachers(trainer, options.teachers) if options.teachers is not None else None,
            self._frontier_hook(),
            self._user_evaluation,
            self._save_schedule,
            None if self._lockstep else self._timing_hook(),  # durations are not reproducible
        ]
        self._hooks = [hook for hook in hooks if hook is not None]

    def _timing_hook(self) -> StepTiming:
        timing = StepTiming(self.trainer)
        if self._user_evaluation is not None:
            timing.time_method(self._user_evaluation, "measure", "evaluate")
        return timing

    def _frontier_hook(self) -> FrontierDrift | None:
        """Return the hook that measures drift from a frontier model, or None if the run's settings name no model."""
        settings = self._connection.committee.frontier if self._connection else None
        if settings is None or not settings.model or self.checkpoints.run_folder is None:
            return None
        return FrontierDrift(self.trainer, settings, self.checkpoints.run_folder)

    def _completions_hook(self) -> CompletionSamples | None:
        """Return the hook that shows completions, if enabled. It wraps methods that earlier hooks have wrapped."""
        sampling, committee = self._options.sampling, self._options.committee
        return CompletionSamples(self.trainer, committee, sampling, lambda: self.client) if sampling else None

    @property
    def last_evaluation(self) -> dict[str, float]:
        """The latest results of the trainer's and the user's evaluations."""
        user_evaluation = self._user_evaluation
        return {**self._evaluation.last, **(user_evaluation.last if user_evaluation is not None else {})}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Announce the run. Like a restart, a second `train()` is a new incarnation of the run."""
        if self.client is not None:
            self.client.close("failed", detail="train() was called again before training ended")
        trainer, options, connection = self.trainer, self._options, self._connection
        self._ranks = self._ranks or Ranks.join(args.ddp_timeout, processes=trainer.accelerator.num_processes)
        self.actuators = options.actuators.copy()
        self.readback.forget()
        self._nonfinite_counts.clear()
        for hook in self._hooks:
            hook.begin(self._ranks)
        self._register_knobs()
        self.checkpoints.restore(trainer.callback_handler.train_dataloader)
        self.rollback = self._choose_rollback(self._ranks)
        has_charging_settings = bool(connection and connection.charge_rollbacks)
        self._charge_rollbacks = self._ranks.broadcast(self._charge_rollbacks or has_charging_settings)
        self._budget = self._create_step_budget(state)
        self.epochs.begin(state)
        announced = self._announced_metrics()
        self.client = OvenClient(
            self._link or (connection.link() if connection else SilentLink()),
            self.actuators,
            recipe=options.recipe,
            training=self.checkpoints.training,
            metrics=announced,
            max_steps=state.max_steps if state.max_steps > 0 else None,
            seconds=options.seconds,
            charge_rollbacks=self._charge_rollbacks,
            rules=connection.rules if connection else None,
            lockstep=self._lockstep,
            snapshots=self.rollback,
            mesh_code=mesh_code_hash(),
            versions=installed_versions(),
            keys=connection.keys if connection else None,
            ranks=self._ranks,
            save=self._save_schedule.request,
            settle=self.readback.settle,
            unmeasured=self._gauges.unmeasured,
            best=create_best_weights(trainer, announced, self._user_evaluation, self._ranks),
        )
        record = self.checkpoints.origin.record
        saved_record = record if record and record.training == self.checkpoints.training else None
        self.client.start(state.global_step, saved_record.actuators if saved_record else {})
        if isinstance(options.mixture, PromptSource):
            options.mixture.log_to(self.client)
        self.checkpoints.finish_relaunch()
        self._sigterm.begin()
        if self._user_evaluation is not None:
            first_results = self._user_evaluation.first_results()
            self.client.observe(state.global_step, first_results)
            self.client.record_evaluation(first_results)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._device_metrics = {}
        for hook in self._hooks:
            self._device_metrics |= hook.before_update()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        for hook in self._hooks:
            self._device_metrics |= hook.after_update()
        if self._ranks is not None and self._ranks.leader:  # the other ranks publish nothing
            self.readback.request(self._device_metrics)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Publish the step, and apply decisions."""
        assert self.client is not None
        self._budget.trained_steps += 1
        is_last = self._budget.is_used_up(state.global_step)
        step = StepEnd(self._budget.trained_steps, is_last, frozenset(self.readback.names), {})
        for hook in self._hooks:
            hook.end_step(step)
        self.readback.end_step(
            self.client.advance(state.global_step), state.global_step, step.metrics, step.published_names
        )
        if self._user_evaluation is not None and self._user_evaluation.new_results is not None:
            self.client.record_evaluation(self._user_evaluation.new_results)
        if self._lockstep:
            self.readback.settle()  # because the tick closes only when its observation is in the log
        if not is_last:
            self.client.poll()
        if is_last or self.client.stopping:
            control.should_training_stop = True
        for hook in self._hooks:
            hook.after_poll(control, self.client)

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.checkpoints.on_epoch_begin(self.trainer.callback_handler.train_dataloader)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop after the planned epochs, unless rollbacks threw away steps."""
        if self.epochs.end_epoch() and not self._budget.discarded_steps(state.global_step):
            control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Add the controller's files to the checkpoint that the trainer has written."""
        assert self.client is not None
        self._save_schedule.on_save(state, self.client, self._budget, self.rollback)

    def on_log(self, *_: Any, **__: Any) -> None:
        """Notify the metrics hook, because TRL resets its means after each log."""
        self._step_metrics.on_log()

    def on_evaluate(self, *_: Any, metrics: dict[str, float] | None = None, **__: Any) -> None:
        """Record the trainer's evaluation. The next step publishes it."""
        results = self._evaluation.record(metrics or {})
        if self.client is not None:
            self._explain_unknown_directions()
            self.client.record_evaluation(results)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Choose the final weights, announce the end, and send the remaining messages."""
        assert self.client is not None
        self.client.finish()
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._evaluation.on_best_restored(state)
        self._close_hooks()
        reason, detail = self.client.end_reason(None)
        self.client.close(reason, detail=detail, metrics=self.last_evaluation)
        self._sigterm.end()
        for name, steps in self._nonfinite_counts.items():
            log.warning("%s was not finite in %d of %d steps", name, steps, self._budget.trained_steps)

    def on_failure(self, error: BaseException) -> None:
        """Announce that training has failed, and send the remaining messages. Keep the SIGTERM handler installed until
        the end, because a launcher may send SIGTERM to this rank when another one has died."""
        self._close_hooks()
        if self.client is not None:
            reason, detail = self.client.end_reason(error)
            self.client.close(reason, detail=detail)
        self._sigterm.end()

    def _create_step_budget(self, state: TrainerState) -> StepBudget:
        steps_before = self.checkpoints.origin.steps_before(state.global_step)
        charged_steps = steps_before if self._charge_rollbacks else 0
        limit = max(1, state.max_steps - charged_steps) if state.max_steps > 0 else None
        return StepBudget(limit, self._charge_rollbacks, steps_before, state.global_step)

    def _choose_rollback(self, ranks: Ranks) -> Rollback | None:
        return choose_rollback(
            self.trainer,
            self.checkpoints,
            ranks,
            lockstep=self._lockstep,
            resumable=self.resumable,
            request_save=self._save_schedule.request_for_rollback,
            trained_steps=lambda: self._budget.total,
        )

    def _announced_metrics(self) -> tuple[MetricSpec, ...]:
        """Return all metrics of the run. The user's metrics take precedence over others with the same name."""
        user_metrics = self._options.metrics
        hook_metrics = [metric for source in (*self._hooks, *self._channels) for metric in source.metric_specs()]
        user_names = {metric.name for metric in user_metrics}
        return (
            *(metric for metric in hook_metrics if metric.name not in user_names),
            *user_metrics,
            *(metric for metric in self._trainer_evaluation_metrics() if metric.name not in user_names),
        )

    def _trainer_evaluation_metrics(self) -> tuple[MetricSpec, ...]:
        """Return the metrics of the trainer's own evaluation. If the user has held-out metrics, only those judge
        changes, and the trainer's are only shown."""
        metrics = self._evaluation.held_out_specs()
        if any(metric.held_out for metric in self._options.metrics):
            return tuple(metric.model_copy(update={"held_out": False}) for metric in metrics)
        return metrics

    def _explain_unknown_directions(self) -> None:
        """Log once how to declare the better direction of what `compute_metrics` returns. Only the first evaluation
        shows the names, because a call on other data could fail or change the user's state."""
        if self._explained_directions:
            return
        self._explained_directions = True
        user_names = {metric.name for metric in self._options.metrics}
        undirected = [m.name for m in self._trainer_evaluation_metrics() if m.held_out and m.better == "neither"]
        if names := [name for name in undirected if name not in user_names]:
            log.warning(
                "%s cannot judge changes, because the better direction is unknown; if higher is better, set "
                'TrainingArguments(metric_for_best_model="%s", greater_is_better=True), or pass '
                'attach(metrics=(MetricSpec(name="%s", better="up", held_out=True),))',
                ", ".join(names),
                names[0].removeprefix(EVAL),
                names[0],
            )

    def _register_knobs(self) -> None:
        """Register the knobs that take effect in this trainer. The user's own actuators are already registered."""
        trainer, actuators, options = self.trainer, self.actuators, self._options
        check_trainable(trainer)
        RateKnobs([self._rate.readback]).register(actuators, options.lr_bounds, trainer.state.max_steps)
        trainer_knobs.register_knobs(trainer, actuators, self._user_values, options.beta_bounds)
        register_kl_knobs(actuators, trainer, options.teachers, options.beta_bounds, lambda: self.client)
        for channel in self._channels:
            channel.register_knob(actuators)
        if self._user_evaluation is not None or trainer.args.eval_strategy != "no":
            actuators.action(EVALUATE, (self._user_evaluation or self._evaluation).request, effect="measures")
        if options.mixture is not None:
            mixtures.register_knobs(trainer, actuators, options.mixture)
        if self._authored is not None:
            self._authored.register_knob(actuators)
        if options.committee is not None:
            from oven_learner.rewards.committee_knobs import register_committee_knobs

            register_committee_knobs(actuators, options.committee)
        else:
            trainer_knobs.register_reward_weights(trainer, actuators)

    def _hold(self, reason: str) -> None:
        if self.client is not None:
            self.client.hold(reason)

    def _stop(self, reason: str) -> None:
        if self.client is not None:
            self.client.request_stop(reason)

    def _publish(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        assert self.client is not None
        for name, value in metrics.items():
            if not math.isfinite(value):
                if not self._nonfinite_counts[name]:
                    log.warning("%s is %g at step %d; it is published unchanged", name, value, step)
                self._nonfinite_counts[name] += 1
        self.client.publish(tick, step, metrics)

    def _close_hooks(self) -> None:
        for hook in self._hooks:
            hook.close()


class EndOnSigterm:
    """A signal handler that ends the run cleanly on SIGTERM, which `oven-controller down`, Slurm and torchrun send. The
    run then saves a checkpoint and sends its last messages. If the script has its own handler, that one is kept."""

    def __init__(self, stop: Callable[[str], object]) -> None:
        self._stop = stop
        self._previous_handler: Any = None

    def begin(self) -> None:
        """Install the handler. Called when training begins."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_signal)

    def end(self) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def _on_signal(self, number: int, _: types.FrameType | None) -> None:
        self._stop(signal.Signals(number).name)
