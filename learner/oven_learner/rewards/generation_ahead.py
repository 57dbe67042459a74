"""Generate the next completions in TRL's GRPOTrainer while judges score the current ones (`committee.ahead: 1`).

A step then takes as long as the slower of judging and of generating plus training, instead of their sum. The price is
that the policy is one optimizer step newer than the completions that it trains on. TRL computes log-probabilities under
the older policy (`old_per_token_logps`). So the loss's importance ratio and clip correct for the step in between, as
for `num_iterations` above 1 (Schulman et al. 2017, arXiv 1707.06347).

`_generate_and_score_completions` runs in its own thread per generation, like a coroutine. The trainer continues while
the remote members answer, and collects the rewards when the batch is due. Only the waiting is concurrent.

A batch made ahead is only used for its own rows, and dropped when it becomes invalid. TRL marks this by
`_buffered_inputs = None`, which a rollback, another teacher and a β above 0 set. Evaluations ask the members
separately. Checkpoints contain no batch in flight: a resumed run generates it again from the same rows.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.rewards.committee import Committee

Answer = TypeVar("Answer")

STEPS_AHEAD = MetricSpec(
    name="committee/steps_ahead",
    unit="optimizer steps between the policy that wrote these completions and the one that trains on them",
)
REPLACED = ("num_tokens",)
"""TRL metrics with a single value, instead of one per generation since the last log."""
PENDING = ("_pending_metrics", "_pending_extra_logs")
"""Attributes in which TRL stores values that reward functions log, until the rewards arrive."""


class _Dropped(BaseException):
    """Ends the thread of a batch that is no longer needed. Exception handlers of reward functions do not catch it."""


class GenerationAhead:
    """Generates ahead in all trainings of one trainer. Create it before `skip_unscored.Skipping`, which wraps the same
    methods.

    Raises ConfigError for an unsupported trainer.
    """

    def __init__(self, trainer: Any, committee: Committee) -> None:
        _check(trainer)
        self._trainer = trainer
        self._generate, self._fetch = trainer._generate_and_score_completions, trainer.get_batch_samples
        self._steps_ahead: float | None = None
        self._made: _Batch | None = None
        self.begin()
        trainer._generate_and_score_completions = self._due
        trainer.get_batch_samples = self._fetched
        trainer.oven_ahead = True  # the old policy's log-probabilities exist, so a clip has an effect
        committee.waiting = _waiting

    def drop(self) -> None:
        """Drop the batch in flight."""
        if self._made is not None:
            self._made.drop()
            self._made = None

    def take(self) -> dict[str, float]:
        """Return the metrics of the step that is ending."""
        value, self._steps_ahead = self._steps_ahead, None
        return {} if value is None else {STEPS_AHEAD.name: value}

    def begin(self) -> None:
        """Start a training and forget the rows of an earlier one."""
        self.drop()
        self._iterator: Any = None
        self._present: list[Any] = []
        """The rows of the current step, one list per micro-batch."""
        self._next: list[Any] = []
        """The rows of the next step's first micro-batch."""

    def _fetched(self, iterator: Any, batches: int, *rest: Any, **more: Any) -> Any:
        """Read the micro-batches of one optimizer step, and the first of the next."""
        if iterator is not self._iterator:  # another epoch, or another position in the data
            self._iterator, self._next = iterator, []
        fetched, items = self._fetch(iterator, batches - len(self._next), *rest, **more)
        self._present = [*self._next, *fetched]
        self._next, _ = self._fetch(iterator, 1, *rest, **more)
        return [*self._present], items

    def _due(self, inputs: Any) -> dict[str, Any]:
        trainer = self._trainer
        if not trainer.model.training:
            return self._generate(inputs)  # type: ignore[no-any-return]
        if trainer._buffered_inputs is None or (self._made is not None and self._made.inputs is not inputs):
            self.drop()
        batch, self._made = self._made, None
        following = self._following(inputs)
        if batch is None and following is None:
            self._steps_ahead = 0.0
            return self._generate(inputs)  # type: ignore[no-any-return]
        batch = batch or _Batch(trainer, self._generate, inputs)
        if following is not None:
            self._made = _Batch(trainer, self._generate, following, ahead=True)
        self._steps_ahead = float(trainer.state.global_step - batch.step)
        return batch.finish()

    def _following(self, inputs: Any) -> Any | None:
        """Return the next step's rows, or None if they are unknown or there is no next step."""
        state = self._trainer.state
        is_next = bool(self._next and self._present) and self._present[0] is inputs
        return self._next[0] if is_next and state.global_step + 1 < state.max_steps else None


class _Batch(threading.Thread):
    """A generation in progress. The constructor returns when the members have its completions and the model is free."""

    def __init__(self, trainer: Any, generate: Callable[[Any], Any], inputs: Any, *, ahead: bool = False) -> None:
        super().__init__(name="oven-generation", daemon=True)
        self.inputs, self.step = inputs, trainer.state.global_step
        self._trainer, self._generate = trainer, generate
        self._result: Any = None
        self._error: BaseException | None = None
        self._dropped = False
        self._asking, self._due, self._over = threading.Event(), threading.Event(), threading.Event()
        self._device = torch.cuda.current_device() if trainer.accelerator.device.type == "cuda" else None
        self._measurements = self._made(trainer, ahead)

    def _made(self, trainer: Any, ahead: bool) -> list[dict[str, list[Any]]]:
        """Return the metrics of generation and rules. They are logged in the step that trains on the batch."""
        before, iterations = _measured(trainer), trainer.num_iterations
        own: list[dict[str, list[Any]]] = [defaultdict(list) for _ in before]
        _measure(trainer, own)
        if ahead:  # makes TRL compute log-probabilities under the current policy
            trainer.num_iterations = 2 * iterations
        try:
            self.start()
            self._asking.wait()
        finally:
            _measure(trainer, before)
            trainer.num_iterations = iterations
        if self._error is not None:
            raise self._error
        return own

    def run(self) -> None:
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            self._result = self._generate(self.inputs)
        except BaseException as error:
            self._error = error
        finally:
            self._asking.set()
            self._over.set()

    def waiting(self, ask: Callable[[], Answer]) -> Answer:
        """Wait for `ask` in this thread while the trainer continues."""
        self._asking.set()
        answer = ask()
        self._due.wait()
        if self._dropped:
            raise _Dropped
        return answer

    def finish(self) -> dict[str, Any]:
        """Return TRL's batch, waiting for the members' rewards. Re-raises errors of the generation."""
        for recorded, own in zip(_measured(self._trainer), self._measurements, strict=True):
            for name, values in own.items():
                recorded[name] = values if name in REPLACED else [*recorded[name], *values]
        self._due.set()
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[no-any-return]

    def drop(self) -> None:
        """Stop waiting for the answers."""
        self._dropped = True
        self._due.set()


def _measured(trainer: Any) -> list[dict[str, list[Any]]]:
    """Return the dicts in which TRL, and rules via `log_metric` and `log_extra`, store their metrics."""
    return [trainer._metrics["train"], *(getattr(trainer, name) for name in PENDING)]


def _measure(trainer: Any, into: list[dict[str, list[Any]]]) -> None:
    trainer._metrics["train"], *pending = into
    for name, values in zip(PENDING, pending, strict=True):
        setattr(trainer, name, values)


def _waiting(ask: Callable[[], Answer]) -> Answer:
    """Ask remote members for a committee."""
    thread = threading.current_thread()
    return thread.waiting(ask) if isinstance(thread, _Batch) else ask()


def _check(trainer: Any) -> None:
    args = trainer.args
    if (processes := trainer.accelerator.num_processes) > 1:
        raise ConfigError(
            f"committee.ahead: 1 supports one process, and this training has {processes}; set committee.ahead to 0"
        )
    if trainer.num_iterations != 1 or args.steps_per_generation != args.gradient_accumulation_steps:
        raise ConfigError(
            f"committee.ahead: 1 makes one generation per optimizer step, and num_iterations {trainer.num_iterations} "
            f"with steps_per_generation {args.steps_per_generation} and gradient_accumulation_steps "
            f"{args.gradient_accumulation_steps} does not; use the defaults of the first two, or set "
            "committee.ahead to 0"
        )
