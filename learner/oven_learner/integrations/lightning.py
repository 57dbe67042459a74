"""A callback for Lightning: `Trainer(callbacks=[OvenCallback()])`. `run --auto-attach` adds it to every `Trainer.fit`.

It works with both packages, `lightning` and `pytorch_lightning`, whose classes differ.
"""

from __future__ import annotations

import functools
import importlib
import math
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from oven_core.errors import OvenError
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.loop_client import LoopClient
from oven_learner.custom_loop import connect
from oven_learner.import_hook import report
from oven_learner.integrations.trainers import report_attached
from oven_runs.metrics.metric_names import held_out, metric_name

EVAL_LOSS = MetricSpec(name="eval/loss", better="down", held_out=True)


class OvenHooks:
    """Publishes each optimizer step, and applies decisions after it. Use the callback `OvenCallback`."""

    client: LoopClient | None = None
    """The client, while the trainer trains."""

    def __init__(
        self,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        clip: float | None = None,
        *,
        required: bool = True,
    ) -> None:
        """Args:
        evaluate: measures held-out metrics, as for `connect`. Without it, the results of the trainer's own validation
            are published, and `eval/loss` is announced as held out.
        clip: replaces the Trainer's `gradient_clip_val`, and adds `grad.clip`.
        required: whether a controller that cannot be joined raises OvenError. If not, training continues without it.
        """
        self._evaluate, self._clip, self._is_required = evaluate, clip, required
        self._step = 0
        self._validation: dict[str, float] = {}
        self._previous_handler: Any = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Connect to the run."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        optimizers = trainer.optimizers
        validates = self._evaluate is None and trainer.enable_validation
        max_steps = trainer.estimated_stepping_batches
        self._step = trainer.global_step
        try:
            self.client = connect(
                model=module,
                optimizer=optimizers[0] if len(optimizers) == 1 else optimizers,
                scheduler=(schedulers[0] if len(optimizers) == 1 else schedulers) if schedulers else None,
                clip=self._clip,
                evaluate=self._evaluate,
                max_steps=int(max_steps) if math.isfinite(max_steps) and max_steps > 0 else None,
                step=self._step,
                metrics=(EVAL_LOSS,) if validates else (),
                recipe="lightning",
                optional=True,
            )
        except OvenError as error:
            if self._is_required:
                raise
            report(f"the LightningModule is not attached: {error}; it trains without the controller")
            return
        report_attached(f"{type(module).__name__} under Lightning", trainer.global_rank)
        # Lightning's own handler ends one rank while the others wait for it.
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_signal)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        """Publish the step if this batch completed one, and apply decisions."""
        if self.client is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        metrics = {"loss": loss.detach()} if loss is not None else {}  # another thread reads it from the device
        validation, self._validation = self._validation, {}
        self.client.observe(self._step, {**validation, **metrics})
        self.client.poll()
        trainer.should_stop = trainer.should_stop or self.client.stopping

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Keep the results of the trainer's validation for the next step."""
        if not trainer.sanity_checking and self._evaluate is None:
            for column, value in trainer.callback_metrics.items():
                if held_out(column) and (name := metric_name(column)):
                    self._validation[name] = float(value)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Publish the end of the run."""
        if self.client is not None:
            reason, detail = self.client.end_reason(None)
            self._close(reason, detail)

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """Publish that training failed."""
        if self.client is not None:
            reason, detail = self.client.end_reason(error)
            self._close(reason, detail)

    def _close(self, reason: Any, detail: str) -> None:
        assert self.client is not None
        self.client.close(reason, detail=detail, metrics=self._validation)
        self.client = None
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)

    def _on_signal(self, number: int, _: object) -> None:
        if self.client is not None:
            self.client.request_stop(signal.Signals(number).name)


@functools.cache
def callback_class(package: str) -> Any:
    """Return the callback's class for `lightning.pytorch` or `pytorch_lightning`."""
    return type("OvenCallback", (OvenHooks, importlib.import_module(package).Callback), {"__doc__": OvenHooks.__doc__})


def __getattr__(name: str) -> Any:
    if name != "OvenCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return callback_class("lightning.pytorch")
    except ModuleNotFoundError:
        return callback_class("pytorch_lightning")


def wrap_fit(package: str, module: Any) -> None:
    """Wrap `Trainer.fit` in Lightning's module `trainer.trainer`, so that it has the callback."""
    original = module.Trainer.fit

    @functools.wraps(original)
    def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(callback, OvenHooks) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, callback_class(package)(required=False))
        return original(trainer, *args, **kwargs)

    module.Trainer.fit = fit
