"""Generates the next completions in TRL's GRPOTrainer while judges score the current ones (`committee.ahead: 1`).

A step then takes as long as the slower of two parts instead of their sum: judging, and generation plus training. In
return, the policy is one optimizer step newer than the completions that it trains on. TRL computes log-probabilities
under the older policy (`old_per_token_logps`). So the loss's importance ratio and clip correct for the step in between,
as for `num_iterations` above 1 (Schulman et al. 2017, arXiv 1707.06347).

Each generation of a batch runs in its own thread, which takes turns with the trainer. The trainer
continues while the remote members answer, and collects the rewards when it needs the batch.

A batch that was generated ahead is only used for its own rows. A rollback, another teacher, or a β that rises above 0
makes it invalid and drops TRL's buffered completions. The batch is then dropped, too. Evaluations never use it.
Checkpoints contain no pending batch, so a resumed run generates it again from the same rows.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner import trainer_internals
from oven_learner.rewards.committee import Committee

Answer = TypeVar("Answer")
MetricStores = list[dict[str, list[Any]]]
"""The dicts in which TRL stores its own metrics, and those that rules log with `log_metric` and `log_extra`."""
STEPS_AHEAD = MetricSpec(
    name="committee/steps_ahead",
    unit="optimizer steps between the policy that wrote these completions and the one that trains on them",
)
SINGLE_VALUES = ("num_tokens",)
"""TRL metrics with a single value. Others have one value per generation since the last log."""


class _BatchDropped(BaseException):
    """Ends the thread of a batch that is no longer needed. Exception handlers of reward functions do not catch it."""


class GenerationAhead:
    """A wrapper that lets a trainer generate ahead. Raises ConfigError for an unsupported trainer."""

    def __init__(self, trainer: Any, committee: Committee) -> None:
        _check_support(trainer)
        self._trainer, self._committee = trainer, committee
        self._steps_ahead: float | None = None
        self._next_batch: _Batch | None = None
        self._iterator: Any = None
        self._current_rows: list[Any] = []
        """Rows of the current step, one list per micro-batch."""
        self._next_rows: list[Any] = []
        """Rows of the first micro-batch of the next step."""

    def install(self) -> None:
        """Wrap the trainer's methods. Call it before `UnscoredGroupSkipper.install`, which wraps one of them again."""
        trainer_internals.wrap(self._trainer, trainer_internals.GENERATE_BATCH, self._wrap_generation)
        trainer_internals.wrap(self._trainer, trainer_internals.GET_BATCHES, self._wrap_fetch)
        self._trainer.oven_ahead = True  # the old policy's log-probabilities exist, so a clip has an effect
        self._committee.wait_for_answers = _wait_in_batch

    def _wrap_generation(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        self._original_generate = generate
        return self._take_batch

    def _wrap_fetch(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        self._original_fetch = fetch
        return self._fetch_batches

    def drop(self) -> None:
        """Drop the pending batch."""
        if self._next_batch is not None:
            self._next_batch.drop()
            self._next_batch = None

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the step that is ending."""
        value, self._steps_ahead = self._steps_ahead, None
        return {} if value is None else {STEPS_AHEAD.name: value}

    def begin(self) -> None:
        """Start a training run, and forget the rows of an earlier one."""
        self.drop()
        self._iterator, self._current_rows, self._next_rows = None, [], []

    def _fetch_batches(self, iterator: Any, batch_count: int, *args: Any, **kwargs: Any) -> Any:
        """Read the micro-batches of one optimizer step, and the first one of the next step."""
        if iterator is not self._iterator:  # another epoch, or another position in the data
            self._iterator, self._next_rows = iterator, []
        fetched_rows, item_count = self._original_fetch(iterator, batch_count - len(self._next_rows), *args, **kwargs)
        self._current_rows = [*self._next_rows, *fetched_rows]
        self._next_rows, _ = self._original_fetch(iterator, 1, *args, **kwargs)
        return [*self._current_rows], item_count

    def _take_batch(self, inputs: Any) -> dict[str, Any]:
        """Return the batch for `inputs`, and start generating the next one."""
        trainer = self._trainer
        if not trainer.model.training:
            return self._original_generate(inputs)  # type: ignore[no-any-return]
        has_other_rows = self._next_batch is not None and self._next_batch.inputs is not inputs
        if has_other_rows or trainer_internals.has_dropped_buffer(trainer):
            self.drop()
        batch, self._next_batch = self._next_batch, None
        next_inputs = self._find_next_inputs(inputs)
        if batch is None and next_inputs is None:
            self._steps_ahead = 0.0
            return self._original_generate(inputs)  # type: ignore[no-any-return]
        if batch is None:
            batch = _Batch(trainer, self._original_generate, inputs)
            batch.generate()
        if next_inputs is not None:
            next_batch = _Batch(trainer, self._original_generate, next_inputs)
            next_batch.generate(ahead=True)
            self._next_batch = next_batch
        self._steps_ahead = float(trainer.state.global_step - batch.step)
        return batch.finish()

    def _find_next_inputs(self, inputs: Any) -> Any | None:
        """Return the next step's rows, or None if they are unknown or there is no next step."""
        state = self._trainer.state
        has_next_step = state.global_step + 1 < state.max_steps
        is_current = bool(self._next_rows and self._current_rows) and self._current_rows[0] is inputs
        return self._next_rows[0] if is_current and has_next_step else None


class _Batch(threading.Thread):
    """A batch that is generated in its own thread."""

    def __init__(self, trainer: Any, generate: Callable[[Any], Any], inputs: Any) -> None:
        super().__init__(name="oven-generation", daemon=True)
        self.inputs, self.step = inputs, trainer.state.global_step
        self._trainer, self._generate = trainer, generate
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_dropped = False
        self._is_asking, self._is_needed, self._has_ended = threading.Event(), threading.Event(), threading.Event()
        """Set when the thread asks the members, when the trainer needs or drops the batch, and when the thread ends."""
        self._device = torch.cuda.current_device() if trainer.accelerator.device.type == "cuda" else None
        self._metrics: MetricStores = []
        """Metrics of generation and rules. They are logged in the step that trains on the batch."""

    def generate(self, *, ahead: bool = False) -> None:
        """Start the thread, and wait until it asks the members and no longer needs the model."""
        trainer = self._trainer
        stores, iterations = trainer_internals.metric_stores(trainer), trainer.num_iterations
        self._metrics = [defaultdict(list) for _ in stores]
        trainer_internals.set_metric_stores(trainer, self._metrics)
        if ahead:  # with a higher number, TRL computes log-probabilities under the current policy
            trainer.num_iterations = 2 * iterations
        try:
            self.start()
            self._is_asking.wait()
        finally:
            trainer_internals.set_metric_stores(trainer, stores)
            trainer.num_iterations = iterations
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            self._result = self._generate(self.inputs)
        except BaseException as error:
            self._error = error
        finally:
            self._is_asking.set()
            self._has_ended.set()

    def wait_for_answers(self, ask: Callable[[], Answer]) -> Answer:
        """Call `ask` in this thread while the trainer continues."""
        self._is_asking.set()
        answer = ask()
        self._is_needed.wait()
        if self._is_dropped:
            raise _BatchDropped
        return answer

    def finish(self) -> dict[str, Any]:
        """Wait for the members' rewards, and return TRL's batch. Re-raises errors of the generation."""
        for store, metrics in zip(trainer_internals.metric_stores(self._trainer), self._metrics, strict=True):
            for name, values in metrics.items():
                store[name] = values if name in SINGLE_VALUES else [*store[name], *values]
        self._is_needed.set()
        self._has_ended.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[no-any-return]

    def drop(self) -> None:
        """Mark the batch as no longer needed, so that its thread ends."""
        self._is_dropped = True
        self._is_needed.set()


def _wait_in_batch(ask: Callable[[], Answer]) -> Answer:
    """Call `ask`. In the thread of a batch, the trainer continues in the meantime."""
    thread = threading.current_thread()
    return thread.wait_for_answers(ask) if isinstance(thread, _Batch) else ask()


def _check_support(trainer: Any) -> None:
    """Raise ConfigError for a trainer that does not support generation ahead."""
    trainer_internals.GENERATION_AHEAD.require(trainer)
    args, processes = trainer.args, trainer.accelerator.num_processes
    if processes > 1:
        raise ConfigError(
            f"committee.ahead: 1 supports one process, but this training run has {processes}; set committee.ahead to 0"
        )
    if trainer.num_iterations != 1 or args.steps_per_generation != args.gradient_accumulation_steps:
        raise ConfigError(
            "committee.ahead: 1 needs one generation per optimizer step, which is not the case for num_iterations "
            f"{trainer.num_iterations}, steps_per_generation {args.steps_per_generation} and "
            f"gradient_accumulation_steps {args.gradient_accumulation_steps}; use the defaults of the first two, or "
            "set committee.ahead to 0"
        )
