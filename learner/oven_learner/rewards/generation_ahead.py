"""`committee.ahead: 1` inside TRL's GRPOTrainer: the next completions are made while these are with the judges.

A step then takes as long as the slower of the two, judging or generating and training, and not as long as both. What
it costs: completions are trained on one optimizer step after the policy that wrote them. Their log-probabilities under
that policy are taken when they are made (TRL's `old_per_token_logps`; `sampling_log_probs`), so that the loss's
importance ratio and its clip correct for the step between, as they do for `num_iterations` above 1 (Schulman et al.
2017, arXiv 1707.06347).

`_generate_and_score_completions` runs in its own thread for each generation, as a coroutine would: the trainer
waits for it until it asks the remote members, continues while they answer, and takes the rewards and all that follows
from them when the batch is due. Only the waiting is concurrent. Rules run in the training process and are not waited
for beside it.

What was made ahead is used for the very rows that it was made for, and dropped when it no longer holds: TRL's own sign
for that is `_buffered_inputs = None`, which a rollback, another teacher and a β above 0 set. An evaluation asks the
members beside it. What is in flight is in no checkpoint: a resumed run makes it anew from the same rows.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.rewards import sampling_log_probs
from oven_learner.rewards.committee import Committee

Answer = TypeVar("Answer")

STEPS_AHEAD = MetricSpec(
    name="committee/steps_ahead",
    unit="optimizer steps between the policy that wrote these completions and the one that trains on them",
)
REPLACED = ("num_tokens",)
"""Metrics of TRL's that hold one value, and not one for each generation since the last log."""


PENDING = ("_pending_metrics", "_pending_extra_logs")
"""Where TRL keeps what reward functions log, until the rewards are there."""


class _Dropped(BaseException):
    """The batch is not wanted any more: its thread ends, past whatever a reward function catches."""


class GenerationAhead:
    """One trainer's, over all its trainings. Made before `skip_unscored.Skipping`, which wraps what this replaces.

    Raises ConfigError for a trainer of which it is not known to hold.
    """

    def __init__(self, trainer: Any, committee: Committee) -> None:
        _check(trainer)
        self._trainer = trainer
        self._generate, self._fetch = trainer._generate_and_score_completions, trainer.get_batch_samples
        self._steps_ahead: float | None = None
        self._made: _Batch | None = None
        self._forget()
        trainer._generate_and_score_completions = self._due
        trainer.get_batch_samples = self._fetched
        trainer.oven_ahead = True  # the old policy's log-probabilities are there, so that a clip acts
        committee.waiting = _waiting

    def begin(self) -> None:
        """Training begins; an earlier one's rows are not this one's."""
        self._forget()

    def drop(self) -> None:
        """What is in flight holds no more."""
        if self._made is not None:
            self._made.drop()
            self._made = None

    def take(self) -> dict[str, float]:
        """The metrics of the step that ends."""
        value, self._steps_ahead = self._steps_ahead, None
        return {} if value is None else {STEPS_AHEAD.name: value}

    def _forget(self) -> None:
        self.drop()
        self._iterator: Any = None
        self._present: list[Any] = []
        """The rows of the step under way, a list per micro-batch."""
        self._next: list[Any] = []
        """Those of the next step as far as they are read: its first micro-batch."""

    def _fetched(self, iterator: Any, batches: int, *rest: Any, **more: Any) -> Any:
        """The micro-batches of one optimizer step; the first of the next is read as well."""
        if iterator is not self._iterator:  # another epoch, or another place in the data
            self._iterator, self._next = iterator, []
        found, items = self._fetch(iterator, batches - len(self._next), *rest, **more)
        self._present = [*self._next, *found]
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
        """The next step's rows; None where it is not known that they come next, or that there is a next step."""
        state = self._trainer.state
        known = bool(self._next and self._present) and self._present[0] is inputs
        return self._next[0] if known and state.global_step + 1 < state.max_steps else None


class _Batch(threading.Thread):
    """One generation. Making it returns when its completions are with the members; what needed the model is done."""

    def __init__(self, trainer: Any, generate: Callable[[Any], Any], inputs: Any, *, ahead: bool = False) -> None:
        super().__init__(name="oven-generation", daemon=True)
        self.inputs, self.step = inputs, trainer.state.global_step
        self._trainer, self._generate = trainer, generate
        self._result: Any = None
        self._error: BaseException | None = None
        self._dropped = False
        self._asking, self._due, self._over = threading.Event(), threading.Event(), threading.Event()
        self._device = torch.cuda.current_device() if trainer.accelerator.device.type == "cuda" else None
        self._said = self._made(trainer, ahead)

    def _made(self, trainer: Any, ahead: bool) -> list[dict[str, list[Any]]]:
        """What generation and rules have measured, which is said of the step that trains on it."""
        kept, iterations = _measured(trainer), trainer.num_iterations
        own: list[dict[str, list[Any]]] = [defaultdict(list) for _ in kept]
        _measure(trainer, own)
        if ahead:  # TRL then asks for the log-probabilities under the policy of now
            trainer.num_iterations = 2 * iterations
        try:
            with sampling_log_probs.kept(trainer) if ahead else contextlib.nullcontext():
                self.start()
                self._asking.wait()
        finally:
            _measure(trainer, kept)
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
        """Called in this thread: while `ask` waits, the trainer continues."""
        self._asking.set()
        answer = ask()
        self._due.wait()
        if self._dropped:
            raise _Dropped
        return answer

    def finish(self) -> dict[str, Any]:
        """TRL's batch, with the members' rewards, which are waited for. Raises what making it raised."""
        for said, own in zip(_measured(self._trainer), self._said, strict=True):
            for name, values in own.items():
                said[name] = values if name in REPLACED else [*said[name], *values]
        self._due.set()
        self._over.wait()
        if self._error is not None:
            raise self._error
        result: dict[str, Any] = self._result
        return result

    def drop(self) -> None:
        """The answers are not waited for."""
        self._dropped = True
        self._due.set()


def _measured(trainer: Any) -> list[dict[str, list[Any]]]:
    """Where TRL, and rules by `log_metric` and `log_extra`, put down what they measure."""
    return [trainer._metrics["train"], *(getattr(trainer, name) for name in PENDING)]


def _measure(trainer: Any, into: list[dict[str, list[Any]]]) -> None:
    trainer._metrics["train"], *pending = into
    for name, values in zip(PENDING, pending, strict=True):
        setattr(trainer, name, values)


def _waiting(ask: Callable[[], Answer]) -> Answer:
    """A committee's way to ask its remote members."""
    thread = threading.current_thread()
    return thread.waiting(ask) if isinstance(thread, _Batch) else ask()


def _check(trainer: Any) -> None:
    args = trainer.args
    if trainer.accelerator.num_processes > 1:
        raise ConfigError(
            f"committee.ahead: 1 is for one process, and this training has {trainer.accelerator.num_processes}: ranks "
            "that generate ahead were not tried; set committee.ahead to 0"
        )
    if trainer.num_iterations != 1 or args.steps_per_generation != args.gradient_accumulation_steps:
        raise ConfigError(
            f"committee.ahead: 1 makes one generation per optimizer step, and num_iterations {trainer.num_iterations} "
            f"with steps_per_generation {args.steps_per_generation} and gradient_accumulation_steps "
            f"{args.gradient_accumulation_steps} does not: leave the first two at their defaults, or set "
            "committee.ahead to 0"
        )
