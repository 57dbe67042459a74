"""`oven.attach(trainer)`: the one line that plugs a Hugging Face or TRL trainer into the controller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oven_controller.errors import ConfigError
from oven_controller.messages import MetricSpec
from oven_learner import ranks
from oven_learner.actuators import Actuators
from oven_learner.client import OvenClient
from oven_learner.connection import Connection
from oven_learner.hf import gauges, snapshot
from oven_learner.hf.learning_rate import LearningRateScale
from oven_learner.hf.metrics import StepMetrics
from oven_learner.link import Link
from oven_learner.snapshots import KEPT, Snapshots

log = logging.getLogger("oven.learner")

USER_BOUNDS = (0.1, 3.0)
"""Bounds of an attached run's scalars, as multiples of the user's own value."""

Gauge = Callable[[Trainer], Mapping[str, float]]


class Attachment(TrainerCallback):
    """The callback that `attach` adds. It holds the trainer, which callbacks are not given."""

    def __init__(
        self,
        trainer: Trainer,
        link: Link,
        connection: Connection | None,
        *,
        recipe: str,
        actuators: Actuators,
        lr_bounds: tuple[float, float],
        metrics: tuple[MetricSpec, ...],
        evaluate: Callable[[], Mapping[str, float]] | None,
        evaluate_every: int,
        seconds: float | None,
        versions: Mapping[str, str],
        mesh_code: str,
    ) -> None:
        self.trainer = trainer
        self.actuators = actuators
        self.client: OvenClient | None = None
        self.last_evaluation: dict[str, float] = {}
        self._link, self._connection = link, connection
        self._recipe, self._lr_bounds = recipe, lr_bounds
        self._extra_metrics = metrics
        self._evaluate, self._evaluate_every = evaluate, evaluate_every
        self._seconds = seconds
        self._versions, self._mesh_code = versions, mesh_code
        self._step_metrics = StepMetrics(trainer)
        self._trained = 0
        self._budget: int | None = None
        self._rate = 0.0
        self._gauged = gauges.measurable(trainer)
        self._alignment: float | None = None
        self._scale: LearningRateScale | None = None
        self._pending: dict[str, float] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        trainer, several = self.trainer, ranks.world() > 1
        self._scale = LearningRateScale(trainer)
        low, high = self._lr_bounds
        self.actuators.scalar(
            "optimizer.lr_scale",
            self._scale.read,
            self._scale.write,
            low=low,
            high=high,
            scale="log",
            unit="× the schedule",
            risky=True,
        )
        if args.max_grad_norm and args.max_grad_norm > 0:
            own = float(args.max_grad_norm)
            self.actuators.scalar(
                "grad.clip",
                lambda: float(args.max_grad_norm),
                lambda value: setattr(args, "max_grad_norm", value),
                low=own * USER_BOUNDS[0],
                high=own * USER_BOUNDS[1],
                scale="log",
                unit="norm",
            )
        snapshots = None
        if snapshot.fits(trainer, KEPT + 1):
            snapshots = Snapshots(lambda: snapshot.take(trainer), lambda kept: snapshot.restore(trainer, kept))
        connection = self._connection
        self._budget = state.max_steps - state.global_step if state.max_steps > 0 else None
        self.client = OvenClient(
            self._link,
            self.actuators,
            recipe=self._recipe,
            metrics=(
                self._step_metrics.announced() + ((gauges.ALIGNMENT,) if self._gauged else ()) + self._extra_metrics
            ),
            max_steps=state.max_steps if state.max_steps > 0 else None,
            seconds=self._seconds,
            rules=connection.rules if connection else None,
            lockstep=bool(connection and connection.lockstep and not several),
            snapshots=snapshots,
            mesh_code=self._mesh_code,
            versions=self._versions,
            share=ranks.broadcast if several else None,
        )
        self.client.start(state.global_step)
        if self._evaluate is not None:
            self.last_evaluation = dict(self._evaluate())
            self.client.observe(state.global_step, self.last_evaluation)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        assert self._scale is not None
        self._rate = self._scale.now()
        self._alignment = gauges.alignment(self.trainer) if self._gauged else None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert self.client is not None
        self._trained += 1
        metrics = {**self._step_metrics.take(), "learning_rate": self._rate, **self._pending}
        if self._alignment is not None:
            metrics[gauges.ALIGNMENT.name] = self._alignment
        self._pending = {}
        last = self._budget is not None and self._trained >= self._budget
        if self._evaluate is not None and (last or self._trained % self._evaluate_every == 0):
            self.last_evaluation = dict(self._evaluate())
            metrics.update(self.last_evaluation)
        self.client.observe(state.global_step, metrics)
        if not last:
            self.client.poll()
        if last or self.client.stopping or self._out_of_time():
            # The budget is gradient steps, those that a rollback threw away included.
            control.should_training_stop = True
        if self.client.stopping:
            control.should_save = True

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
        for name, value in (metrics or {}).items():
            if name.startswith("eval_") and isinstance(value, int | float):
                self._pending["eval/" + name.removeprefix("eval_")] = float(value)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert self.client is not None
        stopped = self.client.stopping
        self.client.close("stopped" if stopped else "completed", detail=stopped, metrics=self.last_evaluation)

    def _out_of_time(self) -> bool:
        return bool(self._seconds and self.client and self.client.progress(0) >= 1.0)


def attach(
    trainer: Trainer,
    *,
    url: str | None = None,
    run: str | None = None,
    creds: str | Path | None = None,
    actuators: Actuators | None = None,
    lr_bounds: tuple[float, float] = USER_BOUNDS,
    recipe: str = "attached",
    metrics: tuple[MetricSpec, ...] = (),
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    evaluate_every: int = 20,
    seconds: float | None = None,
    link: Link | None = None,
) -> Attachment:
    """Publish every step of `trainer`, and apply what is decided between steps. Call it once, before `train()`.

    Found by itself: `optimizer.lr_scale`, `grad.clip`, and (when the model is small enough to copy) `run.checkpoint`
    and `run.rollback`; `run.hold` and `run.stop` always. `actuators` adds your own. `lr_bounds` are multiples of
    your schedule. The run begins in `observe`, unless the stack's rules say otherwise.

    Raises ConfigError when there is no controller to attach to, and RefusedError when it turns the credentials down.
    After the start nothing that happens to the controller reaches the training.
    """
    if any(isinstance(callback, Attachment) for callback in trainer.callback_handler.callbacks):
        raise ConfigError("this trainer is attached already; call oven.attach(trainer) once")
    connection: Connection | None = None
    if link is None:
        # Other ranks hear from rank 0: two clients of one run would be two learners.
        leader = trainer.accelerator.process_index == 0
        if leader:
            connection = Connection.find(url, run, creds)
            link = connection.link()
        else:
            link = ranks.SilentLink()
    attachment = Attachment(
        trainer,
        link,
        connection,
        recipe=recipe,
        actuators=actuators or Actuators(),
        lr_bounds=lr_bounds,
        metrics=metrics,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        seconds=seconds,
        versions=_versions(),
        mesh_code=_mesh_code(),
    )
    trainer.add_callback(attachment)
    return attachment


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("oven-controller", "torch", "transformers", "accelerate", "trl"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _mesh_code() -> str:
    from oven_controller.mesh.identity import code_hash

    return code_hash()
