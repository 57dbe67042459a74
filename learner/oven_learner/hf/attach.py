"""`oven.attach(trainer)`: the one line that plugs a Hugging Face or TRL trainer into the controller."""

from __future__ import annotations

import logging
import math
import signal
import threading
import types
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.checkpoint.stateful import Stateful
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oven_controller.errors import ConfigError
from oven_controller.mesh.code_hash import code_hash
from oven_controller.protocol.actions import EVALUATE
from oven_controller.protocol.messages import MetricSpec
from oven_controller.runs import relaunch
from oven_learner import ranks
from oven_learner.actuators import Actuators
from oven_learner.client import training_names
from oven_learner.client.client import OvenClient
from oven_learner.client.idle_client import idle_client
from oven_learner.hf import input_checks, knobs
from oven_learner.hf.checkpoints import TrainerCheckpoints
from oven_learner.hf.epochs import Epochs
from oven_learner.hf.missing_rewards import RewardFaults
from oven_learner.hf.repeated_rows import Repeated
from oven_learner.hf.rollback import to_go_back_to
from oven_learner.hf.step_metrics import StepMetrics
from oven_learner.link.bus_link import Link
from oven_learner.link.find_controller import Connection, seek
from oven_learner.link.mode import Mode
from oven_learner.loop import USER_BOUNDS, add_learning_rate
from oven_learner.optim.device_readback import Readback
from oven_learner.optim.gauges import ABSENT_IF_NAN, OptimizerGauges
from oven_learner.optim.learning_rate import LearningRateScale
from oven_learner.optim.rate_readback import IN_A_TRAINER, RateReadback
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.skip_unscored import Skipping
from oven_learner.rollback.checkpoint_record import Record
from oven_learner.rollback.in_memory import Rollback
from oven_learner.rollback.on_disk import OnDisk, Resumable
from oven_learner.teachers import Teachers, announce_anchor
from oven_learner.versions import installed

log = logging.getLogger("oven.learner")


class Attachment(TrainerCallback):
    """The callback that `attach` adds. It holds the trainer, which callbacks are not given."""

    def __init__(
        self,
        trainer: Trainer,
        link: Link | None,
        connection: Connection | None,
        *,
        recipe: str,
        training: str | None,
        actuators: Actuators,
        lr_bounds: tuple[float, float],
        metrics: tuple[MetricSpec, ...],
        evaluate: Callable[[], Mapping[str, float]] | None,
        evaluate_every: int,
        seconds: float | None,
        charge_rollbacks: bool,
        versions: Mapping[str, str],
        mesh_code: str,
        teachers: Teachers | None,
        beta_bounds: tuple[float, float],
        committee: Committee | None,
        mixture: knobs.Mixture | None,
        stateful: Mapping[str, Stateful],
    ) -> None:
        self.trainer = trainer
        run = connection.run if connection else ""
        self.checkpoints = TrainerCheckpoints(
            trainer, run, stateful, lambda: training or training_names.count(run, link)
        )
        self.actuators = actuators
        self.client: OvenClient | None = None
        self.last_evaluation: dict[str, float] = {}
        self._link, self._connection = link, connection
        self._own = actuators
        self._recipe, self._lr_bounds = recipe, lr_bounds
        self._extra_metrics = metrics
        self._evaluate, self._evaluate_every = evaluate, evaluate_every
        self._seconds, self._charge = seconds, charge_rollbacks
        self.epochs = Epochs(trainer)
        self.resumable = False
        """Whether checkpoints are taken by themselves where copies in memory would do for rollback."""
        self._versions, self._mesh_code = versions, mesh_code
        self._teachers, self._beta_bounds = teachers, beta_bounds
        self._step_metrics = StepMetrics(trainer)
        self._reward_faults = None if committee else RewardFaults(trainer)  # it counts its own
        self._channels = tuple(getattr(trainer, "channels", ()))
        self._committee = committee
        self._skipping = Skipping(trainer, committee) if committee is not None else None
        self._ranks: ranks.Ranks | None = None
        self._mixture = mixture
        self._users = knobs.UsersOwn()
        self._readback = Readback(self._publish, ABSENT_IF_NAN)
        self._not_finite: Counter[str] = Counter()
        self._trained = 0
        self._budget: int | None = None
        self._to_save = self._to_save_own = self._saves_own = self._to_evaluate = False
        self._rollback: Rollback | None = None
        self._trained_before = self._step_before = 0
        self._handled_before: Any = None
        self._rate = 0.0
        self._gauges: OptimizerGauges | None = None
        self._numbers: dict[str, torch.Tensor] = {}
        self._repeated: Repeated | None = None
        self._scale: LearningRateScale | None = None
        self._pending: dict[str, float] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A second `train()` is a new incarnation of the run, as a restart would be."""
        if self.client is not None:
            self.client.close("failed", detail="training began again before it ended")
        trainer = self.trainer
        self._ranks = self._ranks or ranks.Ranks.join(args.ddp_timeout, processes=trainer.accelerator.num_processes)
        self.actuators = self._own.copy()
        self._scale = LearningRateScale(trainer.optimizer, trainer.lr_scheduler)
        cut = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        self._gauges = OptimizerGauges(
            trainer.optimizer,
            trainer.model,
            heard=self._ranks.leader,
            sharded="FSDP or DeepSpeed shards the gradients" if cut else "",
        )
        self._trained, self._pending, self.last_evaluation = 0, {}, {}
        self._readback.forget()
        self._not_finite.clear()
        self._announce_knobs()
        self.checkpoints.restore(self.trainer.callback_handler.train_dataloader)
        self._rollback = self._to_go_back_to()
        self._repeated = Repeated.of(trainer, self._mixture)
        connection, origin = self._connection, self.checkpoints.origin
        self._trained_before, self._step_before = origin.trained(state.global_step), state.global_step
        self._charge = self._ranks.same(self._charge or bool(connection and connection.charge_rollbacks))
        budget = state.max_steps - self._trained_before if self._charge else state.max_steps
        self._budget = max(1, budget) if state.max_steps > 0 else None
        self.epochs.begin(state)
        self.client = OvenClient(
            self._link or (connection.link() if connection else ranks.SilentLink()),
            self.actuators,
            recipe=self._recipe,
            training=self.checkpoints.training,
            metrics=self._announced(),
            max_steps=state.max_steps if state.max_steps > 0 else None,
            seconds=self._seconds,
            charge_rollbacks=self._charge,
            rules=connection.rules if connection else None,
            lockstep=bool(connection and connection.lockstep),
            snapshots=self._rollback,
            mesh_code=self._mesh_code,
            versions=self._versions,
            keys=connection.keys if connection else None,
            ranks=self._ranks,
            save=self._ask_to_save,
            settle=self._readback.settle,
            unmeasured=self._gauges.unmeasured,
        )
        saved = origin.record if origin.record and origin.record.training == self.checkpoints.training else None
        self.client.start(state.global_step, saved.actuators if saved else {})
        self.checkpoints.went_on()
        self._end_in_order_on_sigterm()
        if self._evaluate is not None:
            self.last_evaluation = dict(self._evaluate())
            self.client.observe(state.global_step, self.last_evaluation)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        assert self._ranks is not None and self._gauges is not None
        self._numbers = self._step_metrics.numbers(self._ranks) | self._gauges.before_step()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        assert self._scale is not None and self._ranks is not None and self._gauges is not None
        self._rate = self._scale.now()  # the scheduler has not moved it on yet
        if self._ranks.leader:  # nobody hears the others
            self._readback.ask(self._numbers | self._gauges.after_step())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert self.client is not None
        self._trained += 1
        measured = self._step_metrics.take()
        wanted = frozenset(self._readback.names)
        if self._skipping is not None:
            kept, why = self._skipping.take(measured | dict.fromkeys(wanted, math.nan))
            measured = {name: value for name, value in kept.items() if name not in wanted}
            wanted &= kept.keys()
            if why:
                self.client.hold(why)
        known = {**measured, "learning_rate": self._rate, **self._pending}
        if self._reward_faults is not None:
            known |= self._reward_faults.take()
        if self._repeated is not None:
            known |= self._repeated.take()
        self._pending = {}
        # A rollback costs no step at the end, unless the budget is one of gradient steps.
        spent = self._trained if self._charge else state.global_step
        last = self._budget is not None and spent >= self._budget
        due = last or self._to_evaluate or self._trained % self._evaluate_every == 0
        if self._evaluate is not None and due:
            self._to_evaluate = False
            self.last_evaluation = dict(self._evaluate())
            known.update(self.last_evaluation)
        self._readback.end_step(self.client.advance(state.global_step), state.global_step, known, wanted)
        if self._connection is not None and self._connection.lockstep:
            self._readback.settle()  # the tick closes when its observation is in the log
        if not last:
            self.client.poll()
        if self._to_evaluate and self._evaluate is None:
            self._to_evaluate, control.should_evaluate = False, True  # the trainer does, when this step is through
        if last or self.client.stopping:
            control.should_training_stop = True
        if self.client.restart:
            control.should_save = False  # what it goes back from is not to be gone on from
        elif self._to_save or (self.client.stopping and not self.client.out_of_time):
            control.should_save = True
        elif self._to_save_own and not control.should_save:
            control.should_save = self._saves_own = True
        self._to_save = self._to_save_own = False

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.checkpoints.epoch_began(self.trainer.callback_handler.train_dataloader)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.epochs.over() and not self._thrown_away(state):
            control.should_training_stop = True

    def _thrown_away(self, state: TrainerState) -> int:
        """Gradient steps of this training that its rollbacks in place threw away."""
        return self._trained - (state.global_step - self._step_before)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert self.client is not None and self._ranks is not None
        own, self._saves_own = self._saves_own, False
        client, trained = self.client, self._trained_before + self._trained
        saved = self.checkpoints.saved(
            state.global_step,
            lambda: Record(
                **client.position(),
                run="",
                training="",
                step=state.global_step,
                trained=trained,
                fresh=False,
                own=own,
                world=1,
                actuators={spec.name: spec.value for spec in client.actuators.specs() if spec.kind != "action"},
                inexact=self.checkpoints.inexact(self._thrown_away(state)),
            ),
        )
        disk = self._rollback.disk if isinstance(self._rollback, Resumable) else self._rollback
        if saved is not None and isinstance(disk, OnDisk):
            disk.saved(saved[0], client.tick, saved[1], saved[2], own=own)
            if self._ranks.leader:
                disk.tidy()

    def _to_go_back_to(self) -> Rollback | None:
        assert self._ranks is not None
        return to_go_back_to(
            self.trainer,
            self.checkpoints,
            self._ranks,
            lockstep=bool(self._connection and self._connection.lockstep),
            resumable=self.resumable,
            ask=self._ask_to_save_own,
            trained=lambda: self._trained_before + self._trained,
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        self._step_metrics.logged()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        self._pending |= self._step_metrics.evaluated(metrics or {})
        self.last_evaluation = {**self.last_evaluation, **self._pending}

    def _announced(self) -> tuple[MetricSpec, ...]:
        """Of two by one name the user's. Where the user holds something out, that alone judges: what the trainer
        evaluates is shown beside it."""
        assert self._gauges is not None
        measured = (
            self._step_metrics.announced()
            + self._gauges.announced()
            + (self._repeated.announced if self._repeated else ())
            + (self._committee.announced() if self._committee else ())
            + (self._reward_faults.announced if self._reward_faults else ())
            + tuple(metric for channel in self._channels for metric in channel.announced())
        )
        own = {metric.name for metric in self._extra_metrics}
        found = (metric for metric in measured if metric.name not in own)
        judged = any(metric.held_out for metric in self._extra_metrics)
        evaluated = (
            metric.model_copy(update={"held_out": not judged})
            for metric in self._step_metrics.announced_held_out()
            if metric.name not in own
        )
        return (*found, *self._extra_metrics, *evaluated)

    def _announce_knobs(self) -> None:
        """What this trainer has that acts when it is turned; the user's own actuators are there already."""
        assert self._scale is not None
        trainer, actuators = self.trainer, self.actuators
        knobs.check_trainable(trainer)
        add_learning_rate(actuators, RateReadback(self._scale, IN_A_TRAINER), self._lr_bounds)
        knobs.clipping.announce(trainer, actuators, self._users)
        knobs.weight_decay.announce(trainer, actuators)
        knobs.beta.announce(trainer, actuators, self._users, self._beta_bounds)
        knobs.epsilon.announce(trainer, actuators, self._users)
        announce_anchor(actuators, trainer, self._teachers, self._beta_bounds)
        for channel in self._channels:
            channel.announce(actuators)
        if self._evaluate is not None or trainer.args.eval_strategy != "no":
            actuators.action(EVALUATE, self._ask_to_evaluate, effect="measures")
        if self._mixture is not None:
            knobs.mixture.announce(actuators, self._mixture)
            knobs.skip.announce(trainer, actuators, self._mixture)
        if self._committee is not None and self._skipping is not None:
            self._committee.announce(actuators)
            self._skipping.begin()
        else:
            knobs.reward_weights.announce(trainer, actuators)

    def _publish(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        assert self.client is not None
        for name, value in metrics.items():
            if not math.isfinite(value):
                if not self._not_finite[name]:
                    log.warning("%s is %g at step %d; it is published as that", name, value, step)
                self._not_finite[name] += 1
        self.client.publish(tick, step, metrics)

    def _ask_to_evaluate(self, _: float | None) -> None:
        """Before the next step is published, whenever it would have been due."""
        self._to_evaluate = True

    def _ask_to_save(self) -> None:
        self._to_save = True

    def _ask_to_save_own(self) -> None:
        self._to_save_own = True

    def _end_in_order_on_sigterm(self) -> None:
        """`down`, Slurm and torchrun end a run by SIGTERM: with a checkpoint and a last word, unless the script has its
        own handler."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._handled_before = signal.signal(signal.SIGTERM, self._stop_on_signal)

    def _stop_on_signal(self, number: int, _: types.FrameType | None) -> None:
        if self.client is not None:
            self.client.request_stop(signal.Signals(number).name)

    def _let_signals_be(self) -> None:
        if self._handled_before is not None:
            signal.signal(signal.SIGTERM, self._handled_before)
            self._handled_before = None

    def _dismiss(self) -> None:
        if self._committee is not None:
            self._committee.close()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert self.client is not None
        self._dismiss()
        why = self.client.stopping
        reason: Literal["completed", "stopped"] = "stopped" if why and not self.client.out_of_time else "completed"
        self.client.close(reason, detail=why, metrics=self.last_evaluation)
        self._let_signals_be()
        for name, steps in self._not_finite.items():
            log.warning("%s was not finite in %d steps of %d", name, steps, self._trained)

    def failed(self, error: BaseException) -> None:
        """Training raised: say so in the log, and send what is left. A launcher that ends this rank because another
        died has sent its SIGTERM by now: that must not cut the last words off."""
        self._dismiss()
        if self.client is not None and isinstance(error, KeyboardInterrupt):
            self.client.close("stopped", detail="interrupted from the keyboard")
        elif self.client is not None:
            self.client.close("failed", detail=f"{type(error).__name__}: {error}"[:500])
        self._let_signals_be()


class IdleAttachment(Attachment):
    """In place of one, without a controller: the trainer was not touched, and it is not a callback of it."""

    def __init__(self, trainer: Trainer, mode: Mode, actuators: Actuators | None) -> None:
        self.trainer = trainer
        self.client = idle_client(mode, actuators.copy() if actuators is not None else Actuators())
        self.actuators = self.client.actuators
        self.last_evaluation = {}


def attach(
    trainer: Trainer,
    *,
    url: str | None = None,
    run: str | None = None,
    creds: str | Path | None = None,
    actuators: Actuators | None = None,
    lr_bounds: tuple[float, float] = USER_BOUNDS,
    recipe: str = "attached",
    training: str | None = None,
    metrics: tuple[MetricSpec, ...] = (),
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    evaluate_every: int = 20,
    seconds: float | None = None,
    charge_rollbacks: bool = False,
    teachers: Teachers | None = None,
    beta_bounds: tuple[float, float] = USER_BOUNDS,
    committee: Committee | None = None,
    mixture: knobs.Mixture | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    optional: bool = False,
    link: Link | None = None,
) -> Attachment:
    """Publish every step of `trainer`, and apply what is decided between steps. Call it once, before `train()`.

    Found by itself, where the trainer has it and a change acts (oven_learner.hf.knobs): `optimizer.lr_scale`,
    `optimizer.weight_decay`, `grad.clip`, β (`grpo.beta`, `rloo.beta`, `dpo.beta`, `distillation.beta`, each with what
    it refers to loaded), `grpo.epsilon` and `rloo.epsilon` where completions are reused, `reward.weights` of several
    reward functions; `run.hold`, `run.stop`, `run.checkpoint`, `run.rollback` and `run.undo_rollback` when the model
    is small enough to copy, and `run.evaluate` where there is an `evaluate`, or the trainer evaluates by itself.
    `teachers` adds `teacher.active`, `mixture` adds `data.mixture` and `data.skip`, `actuators` your own, which go
    before what would be found. `lr_bounds` are multiples of your schedule, `beta_bounds` of your β. The run begins in
    `observe`, unless the stack's rules say otherwise.

    The run ends when `max_steps` steps are kept: steps that a rollback threw away are trained again. With
    `charge_rollbacks` (or the setting of that name) they count, so that runs can be compared at equal cost.

    `training` names this training where the script has several, one after another in the same run: each is judged by
    its own numbers, and takes over no knob's value from the one before. Without it they are counted in the order in
    which they first begin, so that a script that is started again finds its own; name them where a restarted script may
    leave one out.

    `committee` is the GRPOTrainer's reward function when several members judge (oven_learner.rewards): it adds
    `reward.weights`, and groups and steps that no one scored train nothing.

    A model too large to copy, or sharded, goes back by a restart from the trainer's own checkpoints: `run --` and `up`
    start the command again, and `train()` continues from the right one by itself. `stateful` names objects with
    `state_dict` and `load_state_dict` (plain values and tensors) that a checkpoint has to bring back, as it does the
    mixture.

    Where there is no controller and it is `optional`, or OVEN_MODE says so, training continues as if this had not been
    called; what a mixture, a committee and `stateful` do for the training itself stays.

    Raises ConfigError when there is no controller to attach to and it is not optional, or the trainer has what would
    end its run later (oven_learner.hf.input_checks), and RefusedError when it turns the credentials down. `train()`
    raises ConfigError for a checkpoint that cannot be continued from. After the start nothing that happens to the
    controller reaches the training.
    """
    if any(isinstance(callback, Attachment) for callback in trainer.callback_handler.callbacks):
        raise ConfigError("this trainer is attached already; call oven.attach(trainer) once")
    mode, connection = Mode.of(optional), None
    if link is None or mode is Mode.DISABLED:
        # Other ranks hear from rank 0: two clients of one run would be two learners.
        leader = trainer.accelerator.process_index == 0
        there, connection = seek(mode, url, run, creds, leader=leader, same=ranks.told)
        if not there and not (mixture or committee or stateful):
            return IdleAttachment(trainer, mode, actuators)
        if not there:
            mode.say_why_not()
            link = ranks.SilentLink()
    input_checks.check(trainer)
    attachment = Attachment(
        trainer,
        link,
        connection,
        recipe=recipe,
        training=training,
        actuators=actuators or Actuators(),
        lr_bounds=lr_bounds,
        metrics=metrics,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        seconds=seconds,
        charge_rollbacks=charge_rollbacks,
        versions=installed(),
        mesh_code=code_hash(),
        teachers=teachers,
        beta_bounds=beta_bounds,
        committee=committee,
        mixture=mixture,
        stateful={**({knobs.mixture.MIXTURE: mixture} if mixture is not None else {}), **(stateful or {})},
    )
    if mixture is not None:
        knobs.mixture.plug_in(trainer, mixture)
    trainer.add_callback(attachment)
    _wrap_train(trainer, attachment)
    return attachment


def _wrap_train(trainer: Any, attachment: Attachment) -> None:
    """No callback hears of an exception, or can say which checkpoint to continue from."""
    train = trainer.train

    @wraps(train)
    def announced(resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        try:
            checkpoint = attachment.checkpoints.resumed(resume_from_checkpoint)
            attachment.epochs.resumed = attachment.checkpoints.origin.path
            result = train(checkpoint, *args, **kwargs)
        except BaseException as error:
            attachment.failed(error)
            raise
        if attachment.client is not None and attachment.client.restart:
            # What the script does after its training is for a training that is done. And a launcher ends all ranks when
            # the first has ended: rank 0 has last words to send.
            ranks.together()
            raise SystemExit(relaunch.EXIT_CODE)
        return result

    trainer.train = announced
