"""Attaches a training loop under accelerate, for `run --auto-attach`.

The loop is connected at its first `accelerator.backward`. Each optimizer step is observed when it ends, and decisions
are applied before the next forward pass of the model in training mode, between two steps.
"""

from __future__ import annotations

import atexit
import functools
import sys
from typing import Any

import torch

from oven_core.errors import OvenError
from oven_learner.client.loop_client import LoopClient
from oven_learner.custom_loop import connect
from oven_learner.import_hook import report
from oven_learner.integrations.trainers import is_training, report_attached


class _Loop:
    """The loop of this process: its prepared objects, and its client."""

    def __init__(self) -> None:
        self.prepared: list[Any] = []
        self.client: LoopClient | None = None
        self._is_off = False
        self._optimizer: Any = None
        self._step = self._polled_step = 0
        self._losses: list[torch.Tensor] = []

    def on_backward(self, accelerator: Any, loss: Any) -> None:
        """Connect before the first step, and remember the loss of a batch."""
        if self._is_off or is_training():
            return
        if self.client is None:
            self._connect(accelerator)
        if self.client is not None and isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach().clone())

    def on_step(self, optimizer: Any) -> None:
        """Observe an optimizer step. The loss is the mean over its batches, and is read from the device elsewhere."""
        is_own_step = optimizer is self._optimizer and optimizer.gradient_state.sync_gradients
        if self.client is None or not is_own_step or optimizer.step_was_skipped:
            return
        self._step += 1
        losses, self._losses = self._losses, []
        self.client.observe(self._step, {"loss": torch.stack(losses).mean()} if losses else {})  # type: ignore[dict-item]

    def on_forward(self, model: Any, _: Any) -> None:
        """Apply decisions before the first forward pass after a step."""
        if self.client is None or self._polled_step == self._step or not (model.training and torch.is_grad_enabled()):
            return
        self._polled_step = self._step
        self.client.poll()
        if self.client.stopping:
            report(f"the script ends: {self.client.stop_reason}")
            raise SystemExit(0)

    def close(self) -> None:
        """Publish the end of the run when the script ends."""
        if self.client is not None:
            reason, detail = self.client.end_reason(getattr(sys, "last_value", None))
            self.client.close(reason, detail=detail)

    def _connect(self, accelerator: Any) -> None:
        self._is_off = True  # unless this succeeds
        optimizers = [each for each in self.prepared if isinstance(each, torch.optim.Optimizer)]
        models = [each for each in self.prepared if isinstance(each, torch.nn.Module)]
        schedulers = [each for each in self.prepared if type(each).__name__ == "AcceleratedScheduler"]
        if len(optimizers) != 1 or len(models) != 1:
            report(
                f"the loop is not attached, because it prepared {len(models)} models and {len(optimizers)} optimizers "
                "instead of one each; see oven.connect"
            )
            return
        try:
            self.client = connect(
                model=models[0],
                optimizer=optimizers[0],
                scheduler=schedulers[0] if schedulers else None,
                recipe="accelerate",
            )
        except OvenError as error:
            report(f"the loop is not attached: {error}; it trains without the controller")
            return
        self._is_off, self._optimizer = False, optimizers[0]
        models[0].register_forward_pre_hook(self.on_forward)
        atexit.register(self.close)
        report_attached("a loop under accelerate", accelerator.process_index)


_LOOP = _Loop()


def wrap_accelerator(module: Any) -> None:
    """Wrap `prepare` and `backward` in accelerate's module `accelerator`."""
    prepare, backward = module.Accelerator.prepare, module.Accelerator.backward

    @functools.wraps(prepare)
    def prepare_and_remember(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        result = prepare(accelerator, *args, **kwargs)
        if not is_training():
            _LOOP.prepared += result if isinstance(result, tuple) else [result]
        return result

    @functools.wraps(backward)
    def backward_and_remember(accelerator: Any, loss: Any, **kwargs: Any) -> Any:
        _LOOP.on_backward(accelerator, loss)
        return backward(accelerator, loss, **kwargs)

    module.Accelerator.prepare, module.Accelerator.backward = prepare_and_remember, backward_and_remember


def wrap_optimizer(module: Any) -> None:
    """Wrap `step` in accelerate's module `optimizer`."""
    original = module.AcceleratedOptimizer.step

    @functools.wraps(original)
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        _LOOP.on_step(optimizer)
        return result

    module.AcceleratedOptimizer.step = step
